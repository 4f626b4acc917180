// The best counts under the HeterPS model. A stage's seconds a sample fall with its devices, so that for a target of e
// seconds every stage has a least count, in closed form, and nothing but that count can be best at that target. What is
// left is one number: e. Only those e matter at which some stage's least count changes; counts and price grow as e
// falls.
//
// Fastest: bisect for the smallest e whose counts are within the limits.
//
// Cheapest, cost(e) = e * price(e): go down from the largest allowed e. Counts that beat the best so far, at an e'
// below e, have a price of at least price(e), hence e' < best / price(e): all targets between are jumped over. The
// search ends once a bound on all that is left reaches the best: with counts that need not be whole, e * k(e) of a
// stage falls until k = 1 is enough and rises with e from there, so that over all e' <= e it is least at min(e, seconds
// with k = 1).
#include <cmath>

#include "motley/planning/cost/provisioning.h"

namespace motley::planning {
namespace {

double below(double value) {
  return std::nextafter(value, 0.0);
}

// Devices, not necessarily whole, with which fixed + divided / k reaches `seconds`.
double devices_for(double seconds, double fixed, double divided) {
  if (divided == 0) return fixed <= seconds ? 0 : kInfinity;
  return fixed < seconds ? divided / (seconds - fixed) : kInfinity;
}

class HeterpsCountSearch {
 public:
  HeterpsCountSearch(const Problem& problem, const std::vector<Span>& spans, const Objective& objective)
      : spans_(spans),
        max_price_(objective.max_hourly_cost * (1 + kTolerance)),
        // cost is seconds a sample times price per hour
        max_cost_(objective.max_cost * (1 + kTolerance) * 3600 / problem.total_samples),
        slowest_(objective.min_throughput > 0 ? 1 / (objective.min_throughput * (1 - kTolerance)) : kInfinity),
        counts_(spans.size()),
        used_(problem.types.size()) {
    stages_.reserve(spans.size());
    int previous = -1;
    for (const Span& span : spans) {
      const Type& type = problem.type(span.type);
      const HeterpsStage times = heterps_stage(problem, span.first, span.last, span.type, previous);
      stages_.push_back({.times = times,
                         .type = index(span.type),
                         .price = type.price_per_hour,
                         .count = static_cast<double>(type.count),
                         .alone = times.seconds(1)});
      previous = span.type;
    }
  }

  std::optional<Candidate> cheapest() {
    std::optional<Candidate> best;
    double best_cost = max_cost_;
    for (double target = slowest_; provision(target);) {
      const double cost = seconds_ * price_;
      if (best ? cost < best_cost : cost <= best_cost) {
        best = candidate();
        best_cost = cost;
      }
      if (relaxed_cost_ >= best_cost) break;
      target = std::min(below(seconds_), best_cost / price_);
    }
    return best;
  }

  std::optional<Candidate> fastest() {
    if (!provision(slowest_)) return std::nullopt;
    double high = seconds_;
    double low = 0;
    for (const Stage& stage : stages_) low = std::max(low, stage.times.seconds(stage.count));
    while (high > 0 && provision(below(high))) {
      high = seconds_;
      const double middle = low + (high - low) / 2;
      if (provision(middle)) {
        high = seconds_;
      } else {
        low = middle;
      }
    }
    if (!provision(high) || !(seconds_ * price_ <= max_cost_ || fastest_within(high, slowest_))) return std::nullopt;
    return candidate();
  }

 private:
  struct Stage {
    HeterpsStage times;
    std::size_t type;
    double price;
    double count;  // of its type
    double alone;  // seconds with one device
  };

  // The least counts with which every stage takes at most `target`; false where limits of counts or price forbid them.
  bool provision(double target) {
    price_ = 0;
    seconds_ = 0;
    relaxed_cost_ = 0;
    std::fill(used_.begin(), used_.end(), 0.0);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      double count = 1;
      double seconds = stage.alone;
      if (target >= stage.alone) {
        relaxed_cost_ += stage.price * stage.alone;
      } else {
        const double devices = std::max(devices_for(target, stage.times.compute_fixed, stage.times.compute_divided),
                                        devices_for(target, stage.times.data_fixed, stage.times.data_divided));
        if (!(devices < stage.count + 1)) return false;
        relaxed_cost_ += stage.price * target * devices;
        // Rounding may put the quotient on the wrong side of an integer.
        count = std::max(1.0, std::ceil(devices));
        while (count > 1 && stage.times.seconds(count - 1) <= target) --count;
        while ((seconds = stage.times.seconds(count)) > target && count <= stage.count) ++count;
      }
      counts_[s] = count;
      seconds_ = std::max(seconds_, seconds);
      price_ += stage.price * count;
      used_[stage.type] += count;
      if (used_[stage.type] > stage.count) return false;
    }
    return price_ <= max_price_;
  }

  // The smallest seconds in (low, high] whose cost is within the cap; provisions for it. The smaller half comes first.
  bool fastest_within(double low, double high) {
    if (!provision(high) || seconds_ <= low || low * price_ > max_cost_ || relaxed_cost_ > max_cost_) return false;
    const double largest = seconds_;
    const double middle = low + (largest - low) / 2;
    if (middle > low && middle < largest && (fastest_within(low, middle) || fastest_within(middle, below(largest)))) {
      return true;
    }
    return provision(largest) && seconds_ * price_ <= max_cost_;
  }

  Candidate candidate() const {
    Candidate candidate;
    for (std::size_t s = 0; s < spans_.size(); ++s) {
      const auto& [first, last, type] = spans_[s];
      candidate.push_back({first, last, type, static_cast<std::int64_t>(counts_[s])});
    }
    return candidate;
  }

  const std::vector<Span>& spans_;
  const double max_price_;
  const double max_cost_;
  const double slowest_;
  std::vector<Stage> stages_;

  // Of the last call of provision.
  std::vector<double> counts_;  // whole, of every stage
  std::vector<double> used_;    // of every type
  double seconds_ = 0;          // of the slowest stage, at most the target
  double price_ = 0;
  double relaxed_cost_ = 0;  // no counts that reach the target, or a shorter one, cost less
};

}  // namespace

std::optional<Candidate> exact_heterps_counts(const Problem& problem, const std::vector<Span>& stages,
                                              const Objective& objective) {
  HeterpsCountSearch search(problem, stages, objective);
  return objective.criterion == Criterion::kMinCost ? search.cheapest() : search.fastest();
}

}  // namespace motley::planning
