// A model as its servers divide it: buckets that lie one after the other in memory, each cut into segments that single
// cores own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "motley/ps/protocol/chunk_map.h"

namespace motley::ps {

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
  explicit DividedModel(std::span<const std::uint64_t> bucket_elements);
  // Among the cores of all servers; see make_chunk_map for the speeds. May be called again with other numbers.
  void divide(std::size_t chunk_bytes, int bins, std::span<const double> bin_speeds);
  // Of the segments with these bins only this rank's servers are of interest, which have so many cores.
  void fold_bins(int cores);

  const std::vector<std::uint64_t>& bucket_elements() const { return bucket_elements_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Bucket& bucket(int index) const { return buckets_[static_cast<std::size_t>(index)]; }
  const std::vector<Segment>& segments() const { return map_.segments; }
  const std::vector<std::size_t>& load() const { return map_.load; }  // values of each bin
  std::size_t bytes() const { return bytes_; }                        // of all buckets' values
  // Where a segment's values begin, in values and in bytes.
  std::size_t element_index(const Segment& segment) const { return offset(segment) / sizeof(float); }
  std::size_t offset(const Segment& segment) const {
    return bucket(segment.bucket).offset + segment.begin * sizeof(float);
  }
  // Where each segment's frame begins in a memory of all frames; one more entry for the end.
  std::vector<std::size_t> frame_offsets(const collective::WireForm& form) const {
    return ps::frame_offsets(map_, form);
  }

 private:
  std::vector<std::uint64_t> bucket_elements_;
  std::vector<Bucket> buckets_;
  std::size_t bytes_ = 0;
  ChunkMap map_;
};

}  // namespace motley::ps
