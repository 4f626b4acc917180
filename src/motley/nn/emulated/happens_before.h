// Which accesses to memory are ordered: vector clocks of streams and of the host, and the accesses of a block of memory
// that later ones have to come after (Lamport 1978; Flanagan and Freund, FastTrack, 2009). Nothing here knows threads
// or time: the order is that in which work was given to streams, so that an access that nothing orders is found in
// every run, whatever happened to be finished first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace motley::nn::emulated {

// How many operations of each stream, by its number, come before something.
class VectorClock {
 public:
  std::uint64_t at(int stream) const {
    return static_cast<std::size_t>(stream) < counts_.size() ? counts_[static_cast<std::size_t>(stream)] : 0;
  }
  // One more operation of this stream; returns its count.
  std::uint64_t advance(int stream);
  // What came before the other comes before this, too.
  void join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> counts_;
};

// An operation of a stream that reads or writes the bytes [begin, end).
struct Access {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  int stream = 0;
  std::uint64_t count = 0;  // of the stream's operations, this one included
  bool writes = false;
  const char* operation = "";  // its name, for messages; lives as long as the program

  bool overlaps(std::uint64_t from, std::uint64_t to) const { return begin < to && from < end; }
  bool is_before(const VectorClock& clock) const { return count <= clock.at(stream); }
};

// The accesses of a block of memory that a later one may not be ordered with.
class AccessHistory {
 public:
  // Adds an access, which comes after what is before `clock`. Returns an earlier one that touches the same bytes, of
  // which one of the two writes, and that it does not come after.
  std::optional<Access> add(const Access& access, const VectorClock& clock);

  // One that is not before `clock`, of the bytes [begin, end).
  std::optional<Access> find_unordered(std::uint64_t begin, std::uint64_t end, const VectorClock& clock) const;
  const std::vector<Access>& accesses() const { return accesses_; }
  void clear() { accesses_.clear(); }

 private:
  std::vector<Access> accesses_;
};

}  // namespace motley::nn::emulated
