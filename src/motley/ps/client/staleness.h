// Bounded staleness (Ho et al. 2013): how far a rank's steps may be ahead of the slowest one's, how much of a step its
// push is then, and how old what it gets is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "motley/collective/gradient_reducer.h"

namespace motley::ps {

class Staleness {
 public:
  // None: all ranks take each step together, and nothing below has an effect.
  explicit Staleness(std::optional<std::uint32_t> bound) : bound_(bound) {}
  bool is_async() const { return bound_.has_value(); }
  // As in ServerOptimizer.
  void begin_step(double total_weight, bool together) {
    MOTLEY_INVARIANT(total_weight > 0, "the weights of a step add up to {}", total_weight);
    step_weight_ = total_weight;
    ahead_ = together ? 0 : bound_.value_or(0);
  }
  // What a push of this rank's samples is announced with.
  double push_weight(double weight) const { return is_async() ? weight / step_weight_ : weight; }
  std::uint32_t ahead() const { return ahead_; }
  // How far each rank's round is behind `own`.
  static void describe(std::uint32_t own, std::span<const std::uint32_t> rounds, collective::Outcome& outcome) {
    for (std::size_t rank = 0; rank < rounds.size(); ++rank) {
      const auto behind = static_cast<std::int32_t>(own - rounds[rank]);
      outcome.staleness = std::max(outcome.staleness, behind);
      if (behind > 0) outcome.missing_ranks.push_back(static_cast<int>(rank));
    }
  }

 private:
  const std::optional<std::uint32_t> bound_;
  double step_weight_ = 1;   // of all ranks in a step
  std::uint32_t ahead_ = 0;  // rounds that this rank may be ahead
};

}  // namespace motley::ps
