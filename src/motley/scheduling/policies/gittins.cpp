// The Gittins index in two dimensions (devices and time), as Tiresias (Gu et al., NSDI 2019) uses it where durations of
// single jobs are unknown and their distribution is known: here that of the trace itself. For a job that has had a
// device-seconds, with S what a job takes,
//
//     G(a) = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a]
//
// is the chance of its being done for each device-second spent on it; those with most run. The index is constant
// between levels of attained service, so that two jobs alike do not preempt each other for ever, and inside a level
// jobs run by arrival.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/ranked_policy.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kLevels = 64;

class Gittins final : public RankedPolicy {
 public:
  using RankedPolicy::RankedPolicy;
  std::string name() const override { return "gittins"; }

  Result<Decision> decide(const State& state) override {
    if (levels_.empty()) learn(state);
    return RankedPolicy::decide(state);
  }

 protected:
  double rank(const State& state, int job) const override { return -indices_[level_of(state.device_seconds(job))]; }

  double next_step(const State& state, int number) const override {
    const double had = state.device_seconds(number);
    const std::size_t next = level_of(had) + 1;
    if (next == levels_.size()) return std::numeric_limits<double>::infinity();
    return state.now + std::max(1.0, std::ceil((levels_[next] - had) / state.job(number).workers));
  }

 private:
  // The levels are quantiles of what jobs take; the first is 0.
  void learn(const State& state) {
    std::vector<double> sizes;
    for (const Job& job : state.jobs) sizes.push_back(job.device_seconds());
    std::ranges::sort(sizes);
    std::vector<double> sums(sizes.size() + 1);  // of the smallest ones
    std::partial_sum(sizes.begin(), sizes.end(), sums.begin() + 1);
    levels_ = {0};
    for (std::size_t i = 1; i < kLevels; ++i) {
      const double size = sizes[i * sizes.size() / kLevels];
      if (size > levels_.back()) levels_.push_back(size);
    }
    for (const double level : levels_) {
      const auto first = static_cast<std::size_t>(std::ranges::upper_bound(sizes, level) - sizes.begin());
      double best = 0;
      for (std::size_t last = first; last < sizes.size(); ++last) {
        const auto done = static_cast<double>(last + 1 - first);
        const auto longer = static_cast<double>(sizes.size() - last - 1);
        const double spent = sums[last + 1] - sums[first] - done * level + longer * (sizes[last] - level);
        if (spent > 0) best = std::max(best, done / spent);
      }
      indices_.push_back(best);
    }
  }

  std::size_t level_of(double device_seconds) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(levels_, device_seconds) - levels_.begin()) - 1;
  }

  std::vector<double> levels_;   // device-seconds
  std::vector<double> indices_;  // of each level
};

}  // namespace

std::unique_ptr<Policy> make_gittins(const PolicyOptions& options) {
  return std::make_unique<Gittins>(options);
}

}  // namespace motley::scheduling
