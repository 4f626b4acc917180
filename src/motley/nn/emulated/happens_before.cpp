#include "motley/nn/emulated/happens_before.h"

#include <algorithm>

namespace motley::nn::emulated {

std::uint64_t VectorClock::advance(int stream) {
  const auto index = static_cast<std::size_t>(stream);
  if (index >= counts_.size()) counts_.resize(index + 1);
  return ++counts_[index];
}

void VectorClock::join(const VectorClock& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
}

std::optional<Access> AccessHistory::add(const Access& access, const VectorClock& clock) {
  std::optional<Access> unordered;
  // What comes after this access and is ordered with it comes after those that it covers, too: they are forgotten.
  std::erase_if(accesses_, [&](const Access& earlier) {
    if (!earlier.overlaps(access.begin, access.end)) return false;
    const bool is_before = earlier.is_before(clock);
    if (!is_before && (earlier.writes || access.writes)) unordered = earlier;
    const bool is_covered = access.begin <= earlier.begin && earlier.end <= access.end;
    return is_before && is_covered && (access.writes || (!earlier.writes && earlier.stream == access.stream));
  });
  accesses_.push_back(access);
  return unordered;
}

std::optional<Access> AccessHistory::find_unordered(std::uint64_t begin, std::uint64_t end,
                                                    const VectorClock& clock) const {
  for (const Access& access : accesses_) {
    if (access.overlaps(begin, end) && !access.is_before(clock)) return access;
  }
  return std::nullopt;
}

}  // namespace motley::nn::emulated
