#include "motley/ps/protocol/divided_model.h"

#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

DividedModel::DividedModel(std::span<const std::uint64_t> bucket_elements)
    : bucket_elements_(bucket_elements.begin(), bucket_elements.end()) {
  const std::vector<std::size_t> offsets = ServerRegion::value_offsets(bucket_elements_);
  for (std::size_t bucket = 0; bucket < bucket_elements.size(); ++bucket) {
    buckets_.push_back({.elements = bucket_elements[bucket], .offset = offsets[bucket]});
  }
  bytes_ = offsets.back();
}

void DividedModel::divide(std::size_t chunk_bytes, int bins, std::span<const double> bin_speeds) {
  const std::vector<std::size_t> elements(bucket_elements_.begin(), bucket_elements_.end());
  map_ = make_chunk_map(elements, sizeof(float), chunk_bytes, bins, bin_speeds);
  for (Bucket& bucket : buckets_) bucket.first = bucket.last = 0;
  for (std::size_t index = 0; index < map_.segments.size(); ++index) {
    Bucket& bucket = buckets_[static_cast<std::size_t>(map_.segments[index].bucket)];
    if (bucket.last == 0) bucket.first = index;
    bucket.last = index + 1;
  }
}

void DividedModel::fold_bins(int cores) {
  for (Segment& segment : map_.segments) segment.bin %= cores;
}

}  // namespace motley::ps
