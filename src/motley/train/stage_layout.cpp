#include "motley/train/stage_layout.h"

#include <algorithm>
#include <cmath>

namespace motley::train {

StageLayout::StageLayout(plan::Plan plan) : plan_(std::move(plan)) {
  for (int stage = 0; stage < stages(); ++stage) {
    double begin = 0;
    const std::size_t first = ranks_.size();
    for (const plan::Replicas& replicas : plan_.stages[static_cast<std::size_t>(stage)].replicas) {
      for (std::int64_t i = 0; i < replicas.count; ++i) {
        ranks_.push_back({stage, replicas.type, begin, begin + replicas.share});
        begin += replicas.share;
      }
    }
    for (std::size_t rank = first; rank < ranks_.size(); ++rank) {  // shares need not add up to 1 in the last bit
      ranks_[rank].begin /= begin;
      ranks_[rank].end /= begin;
    }
    ranks_.back().end = 1;
  }
}

std::vector<int> StageLayout::ranks_of(int stage) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < this->ranks(); ++rank) {
    if (stage_of(rank) == stage) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<data::Range> StageLayout::micro_batches(data::Range window) const {
  const std::uint64_t size = window.size();
  const std::uint64_t count = std::min<std::uint64_t>(static_cast<std::uint64_t>(plan_.micro_batches), size);
  std::vector<data::Range> ranges;
  for (std::uint64_t i = 0; i < count; ++i) {
    ranges.push_back({window.begin + static_cast<std::uint32_t>(size * i / count),
                      window.begin + static_cast<std::uint32_t>(size * (i + 1) / count)});
  }
  return ranges;
}

data::Range StageLayout::rows(int rank, std::uint32_t size) const {
  const Rank& of = ranks_[static_cast<std::size_t>(rank)];
  const auto row = [size](double share) { return static_cast<std::uint32_t>(std::lround(share * size)); };
  return {row(of.begin), row(of.end)};
}

std::uint32_t StageLayout::samples(int rank, data::Range window) const {
  std::uint32_t sum = 0;
  for (const data::Range& micro_batch : micro_batches(window)) sum += rows(rank, micro_batch.size()).size();
  return sum;
}

std::vector<StageLayout::Piece> StageLayout::pieces(int rank, int stage, std::uint32_t size) const {
  const data::Range own = rows(rank, size);
  std::vector<Piece> pieces;
  for (const int other : ranks_of(stage)) {
    const data::Range theirs = rows(other, size);
    const data::Range both{std::max(own.begin, theirs.begin), std::min(own.end, theirs.end)};
    if (both.begin < both.end) pieces.push_back({other, both});
  }
  return pieces;
}

}  // namespace motley::train
