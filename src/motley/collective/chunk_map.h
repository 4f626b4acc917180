// Which core of which server works on which part of the model. Workers and servers make the same map from the same
// numbers, so that it never travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace motley::collective {

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
std::size_t segment_count(std::span<const std::size_t> bucket_elements, std::size_t bytes_per_element,
                          std::size_t chunk_bytes, int bins);

// Cuts buckets into segments and gives each to the bin with the least so far, largest segments first (longest
// processing time first; Graham 1969: at most 4/3 - 1/(3 bins) of the best possible load). Equal segments go around the
// bins in their order, so that the segments of one bucket spread over all. A chunk of fewer bytes than a line of cache
// counts as one line. `speeds`: of the bins, in any unit, where they differ; then a segment goes to the bin that would
// be done with it first (Gonzalez, Ibarra and Sahni 1977: at most 2 - 2/(bins + 1) of the best).
ChunkMap make_chunk_map(std::span<const std::size_t> bucket_elements, std::size_t bytes_per_element,
                        std::size_t chunk_bytes, int bins, std::span<const double> speeds = {});

}  // namespace motley::collective
