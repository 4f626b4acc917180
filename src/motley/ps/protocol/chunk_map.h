// A model as its servers divide it: buckets that lie one after the other in memory, each cut into segments that single
// cores own. Workers and servers make the same map from the same numbers, so that it never travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "motley/collective/wire_form.h"

namespace motley::ps {

// Consecutive values of one bucket: whole chunks, except at the bucket's end. A segment is what one core owns and what
// one frame carries; a chunk is what is summed and updated at a time.
struct Segment {
  int bucket = 0;
  std::size_t begin = 0;  // first element in the bucket
  std::size_t count = 0;
  int bin = 0;  // the core, counted over all servers
};

struct ChunkMap {
  std::vector<Segment> segments;  // in the order of buckets, and of elements within one
  std::vector<std::size_t> load;  // elements of each bin
};

// How many segments make_chunk_map would cut.
std::size_t segment_count(std::span<const std::size_t> bucket_elements, std::size_t chunk_bytes, int bins);

// Cuts buckets into segments and gives each to the bin with the least so far, largest segments first (longest
// processing time first; Graham 1969: at most 4/3 - 1/(3 bins) of the best possible load). Equal segments go around the
// bins in their order, so that the segments of one bucket spread over all. A chunk of fewer bytes than a line of cache
// counts as one line. `speeds`: of the bins, in any unit, where they differ; then a segment goes to the bin that would
// be done with it first (Gonzalez, Ibarra and Sahni 1977: at most 2 - 2/(bins + 1) of the best).
ChunkMap make_chunk_map(std::span<const std::size_t> bucket_elements, std::size_t chunk_bytes, int bins,
                        std::span<const double> speeds = {});

class DividedModel {
 public:
  struct Bucket {
    std::size_t elements = 0;
    std::size_t offset = 0;  // bytes, in gradients and in weights
    std::size_t first = 0;   // of its segments
    std::size_t last = 0;    // one past

    std::uint32_t segments() const { return static_cast<std::uint32_t>(last - first); }
  };

  DividedModel() = default;
  explicit DividedModel(std::vector<std::uint64_t> bucket_elements);
  // Among the cores of all servers; see make_chunk_map for the speeds. May be called again with other numbers.
  void divide(std::size_t chunk_bytes, int bins, std::span<const double> bin_speeds);
  // Of the segments with these bins only this rank's servers are of interest, which have so many cores.
  void fold_bins(int cores);
  // The segments of `count` bins from `first` on go around so many others.
  void move_bins(int first, int count, int to_first, int to_count);

  const std::vector<std::uint64_t>& bucket_elements() const { return bucket_elements_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Segment>& segments() const { return map_.segments; }
  const std::vector<std::size_t>& load() const { return map_.load; }  // values of each bin
  std::size_t bytes() const { return bytes_; }                        // of all buckets' values
  // Where the weights begin in a memory of all gradients and all weights: on a page of their own.
  std::size_t weights_at() const { return (bytes_ + kPage - 1) / kPage * kPage; }
  // Where a segment's values begin, in values and in bytes.
  std::size_t element_index(const Segment& segment) const { return offset(segment) / sizeof(float); }
  std::size_t offset(const Segment& segment) const {
    return buckets_[segment.bucket].offset + segment.begin * sizeof(float);
  }
  // Where each segment's frame begins in a memory of all frames, 64-byte aligned; one more entry for the end.
  std::vector<std::size_t> frame_offsets(const collective::WireForm& form) const;

 private:
  static constexpr std::size_t kPage = 4096;
  std::vector<std::uint64_t> bucket_elements_;
  std::vector<Bucket> buckets_;
  std::size_t bytes_ = 0;
  ChunkMap map_;
};

}  // namespace motley::ps
