// Cutting and packing.
#include "motley/ps/protocol/chunk_map.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace motley::ps {
namespace {

// A frame over TCP costs as much as some tens of kilobytes do; more than this only delays the answer.
constexpr std::size_t kLargestSegmentBytes = 256 << 10;
constexpr std::size_t kSegmentsOfABin = 4;  // at least, where chunks are small enough, so that bins even out
constexpr std::size_t kLine = 64;

// Elements of a segment.
std::size_t segment_length(std::span<const std::size_t> bucket_elements, std::size_t chunk_bytes, int bins) {
  const std::size_t total =
      std::accumulate(bucket_elements.begin(), bucket_elements.end(), std::size_t{0}) * sizeof(float);
  const std::size_t chunk = std::max(chunk_bytes / kLine, std::size_t{1}) * kLine;
  const std::size_t even = total / (static_cast<std::size_t>(bins) * kSegmentsOfABin);
  const std::size_t chunks = std::max(std::min(even, kLargestSegmentBytes) / chunk, std::size_t{1});
  return chunks * chunk / sizeof(float);
}

}  // namespace

std::size_t segment_count(std::span<const std::size_t> bucket_elements, std::size_t chunk_bytes, int bins) {
  const std::size_t length = segment_length(bucket_elements, chunk_bytes, bins);
  std::size_t count = 0;
  for (const std::size_t elements : bucket_elements) count += (elements + length - 1) / length;
  return count;
}

ChunkMap make_chunk_map(std::span<const std::size_t> bucket_elements, std::size_t chunk_bytes, int bins,
                        std::span<const double> speeds) {
  const std::size_t length = segment_length(bucket_elements, chunk_bytes, bins);
  ChunkMap map;
  for (std::size_t bucket = 0; bucket < bucket_elements.size(); ++bucket) {
    for (std::size_t begin = 0; begin < bucket_elements[bucket]; begin += length) {
      map.segments.push_back({static_cast<int>(bucket), begin, std::min(length, bucket_elements[bucket] - begin)});
    }
  }
  std::vector<std::size_t> order(map.segments.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t index) { return map.segments[index].count; });
  map.load.resize(bins);
  for (const std::size_t index : order) {
    Segment& segment = map.segments[index];
    double earliest = std::numeric_limits<double>::infinity();
    for (std::size_t bin = 0; bin < map.load.size(); ++bin) {  // of equal ones the lowest number
      const double done = static_cast<double>(map.load[bin] + segment.count) / (speeds.empty() ? 1 : speeds[bin]);
      if (done >= earliest) continue;
      earliest = done;
      segment.bin = static_cast<int>(bin);
    }
    map.load[segment.bin] += segment.count;
  }
  return map;
}

DividedModel::DividedModel(std::vector<std::uint64_t> bucket_elements) : bucket_elements_(std::move(bucket_elements)) {
  const std::vector<std::size_t> offsets = collective::value_offsets(bucket_elements_, sizeof(float));
  for (std::size_t bucket = 0; bucket < bucket_elements_.size(); ++bucket) {
    buckets_.push_back({.elements = bucket_elements_[bucket], .offset = offsets[bucket]});
  }
  bytes_ = offsets.back();
}

void DividedModel::divide(std::size_t chunk_bytes, int bins, std::span<const double> bin_speeds) {
  map_ = make_chunk_map(bucket_elements_, chunk_bytes, bins, bin_speeds);
  for (Bucket& bucket : buckets_) bucket.first = bucket.last = 0;
  for (std::size_t index = 0; index < map_.segments.size(); ++index) {
    Bucket& bucket = buckets_[map_.segments[index].bucket];
    if (bucket.last == 0) bucket.first = index;
    bucket.last = index + 1;
  }
}

void DividedModel::fold_bins(int cores) {
  for (Segment& segment : map_.segments) segment.bin %= cores;
}

void DividedModel::move_bins(int first, int count, int to_first, int to_count) {
  for (Segment& segment : map_.segments) {
    const bool is_in = segment.bin >= first && segment.bin < first + count;
    if (is_in) segment.bin = to_first + (segment.bin - first) % to_count;
  }
}

std::vector<std::size_t> DividedModel::frame_offsets(const collective::WireForm& form) const {
  std::vector<std::size_t> offsets = {0};
  for (const Segment& segment : segments()) {
    offsets.push_back(offsets.back() + (form.frame_bytes(segment.count) + 63) / 64 * 64);
  }
  return offsets;
}

}  // namespace motley::ps
