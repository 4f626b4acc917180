// The best counts under the pipeline model: branch and bound over a range of counts for every stage. A stage's
// computation, transfers and memory fall with its devices; its exchange and its price grow. So the step of a box of
// counts is at least that of its best parts taken together, and its price that of its least counts. What the best
// answer so far, the floors and the caps leave of step and price shrinks the ranges from both sides until they are
// empty, or single counts, or have to be halved. For cost, which is step times price, the step's own range is halved
// first, because a short range of steps leaves little of the counts.
#include <cmath>

#include "motley/planning/cost/provisioning.h"

namespace motley::planning {
namespace {

// An answer counts as better only by this share, so that rounding does not keep equal ones apart.
constexpr double kStrictly = 1 - 1e-12;
// The step's range is short enough where its ends differ by this factor.
constexpr double kShortRange = 1.05;
// Ranges are shrunk again while that helps, up to so many times.
constexpr int kMaxRounds = 4;

using Counts = std::vector<std::int64_t>;

// The first of low .. high that holds, where all after it hold too; `high` if none before it does.
std::int64_t find_first(std::int64_t low, std::int64_t high, const auto& holds) {
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

class PipelineCountSearch {
 public:
  PipelineCountSearch(const Problem& problem, const std::vector<Span>& spans, const Objective& objective,
                      std::int64_t max_boxes)
      : problem_(problem),
        spans_(spans),
        boxes_left_(max_boxes),
        for_cost_(objective.criterion == Criterion::kMinCost),
        max_price_(objective.max_hourly_cost * (1 + kTolerance)),
        max_cost_(objective.max_cost * (1 + kTolerance) * 3600 * static_cast<double>(problem.batch) /
                  problem.total_samples),
        max_step_(objective.min_throughput > 0
                      ? static_cast<double>(problem.batch) / (objective.min_throughput * (1 - kTolerance))
                      : kInfinity),
        costs_(spans.size()),
        used_(problem.types.size()) {
    const int count = static_cast<int>(spans.size());
    for (int s = 0; s < count; ++s) {
      const Span& span = spans[index(s)];
      const int next = s + 1 < count ? spans[index(s + 1)].type : -1;
      const Type& type = problem.type(span.type);
      stages_.push_back({.times = pipeline_stage(problem, span.first, span.last, span.type, next, s, count),
                         .type = index(span.type),
                         .price = type.price_per_hour,
                         .count = type.count,
                         .most = problem.max_replicas(span.type),
                         .memory = type.memory_bytes > 0 ? type.memory_bytes * (1 + kTolerance) : kInfinity});
    }
  }

  std::optional<Candidate> best() {
    Box box;
    for (const Stage& stage : stages_) {
      box.low.push_back(find_first(1, stage.most + 1, [&](std::int64_t k) { return fits(stage, k); }));
      box.high.push_back(stage.most);
      used_[stage.type] += box.low.back();
      if (box.low.back() > stage.most || used_[stage.type] > stage.count) return std::nullopt;
    }
    guess(box.low);
    set_costs(box.low, box.high);
    box.longest = std::min(max_step_, pipeline_time(problem_, costs_).step);
    search(box);
    if (best_.empty()) return std::nullopt;
    Candidate candidate;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto& [first, last, type] = spans_[s];
      candidate.push_back({first, last, type, best_[s], !stages_[s].fits(best_[s], false)});
    }
    return candidate;
  }

 private:
  struct Stage {
    PipelineStage times;
    std::size_t type;
    double price;
    std::int64_t count;  // of its type
    std::int64_t most;   // that this stage may have of them
    double memory;       // that a device has

    bool fits(std::int64_t k, bool recompute) const {
      return times.memory_bytes(static_cast<double>(k), recompute) <= memory;
    }
    // Recomputes only where it must, as that only takes time.
    double forward(std::int64_t k) const { return times.forward_seconds(static_cast<double>(k)); }
    double backward(std::int64_t k) const { return times.backward_seconds(static_cast<double>(k), !fits(k, false)); }
    double closing(std::int64_t k) const { return times.closing_seconds(static_cast<double>(k)); }
  };

  // All counts from low to high whose step takes shortest to longest.
  struct Box {
    Counts low;
    Counts high;
    double shortest = 0;
    double longest = kInfinity;
  };

  bool fits(const Stage& stage, std::int64_t k) const {
    return stage.fits(k, false) || (problem_.allow_recompute && stage.fits(k, true));
  }

  // Sets costs_: computation and transfers with these devices, exchange among `exchanging`.
  void set_costs(const Counts& computing, const Counts& exchanging) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      costs_[s].forward_seconds = stage.forward(computing[s]);
      costs_[s].backward_seconds = stage.backward(computing[s]);
      costs_[s].transfer_seconds =
          s + 1 == stages_.size()
              ? 0
              : stage.times.transfer_seconds(static_cast<double>(computing[s]), static_cast<double>(computing[s + 1]));
      costs_[s].exposed_sync_seconds = stage.times.exposed_seconds(
          stage.times.gradient_sync_seconds(static_cast<double>(exchanging[s])), static_cast<double>(computing[s]));
      costs_[s].update_seconds = stage.times.update_seconds;
    }
  }

  // The most that step times price may be.
  double cost_limit() const {
    return for_cost_ && !best_.empty() ? std::min(max_cost_, best_value_ * kStrictly) : max_cost_;
  }

  // The price of these counts; sets used_.
  double add_up(const Counts& counts) {
    std::ranges::fill(used_, 0);
    double price = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      used_[stages_[s].type] += counts[s];
      price += stages_[s].price * static_cast<double>(counts[s]);
    }
    return price;
  }

  // Takes the counts where they are within all limits and better than the best.
  void consider(const Counts& counts) {
    const double price = add_up(counts);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (counts[s] > stages_[s].most || used_[stages_[s].type] > stages_[s].count) return;
    }
    set_costs(counts, counts);
    const double step = pipeline_time(problem_, costs_).step;
    const double value = for_cost_ ? step * price : step;
    if (price <= max_price_ && step <= max_step_ && step * price <= max_cost_ &&
        (best_.empty() || value < best_value_ * kStrictly)) {
      best_ = counts;
      best_value_ = value;
    }
  }

  // A good answer to begin with: the slowest stage gets more devices, as long as there are any; then single devices are
  // added, taken away and moved while that helps.
  void guess(Counts counts) {
    for (;;) {
      consider(counts);  // adds them up
      std::size_t slowest = stages_.size();
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        const auto seconds = [&](std::size_t of) { return costs_[of].forward_seconds + costs_[of].backward_seconds; };
        if (counts[s] < stages_[s].most && used_[stages_[s].type] < stages_[s].count &&
            (slowest == stages_.size() || seconds(s) > seconds(slowest))) {
          slowest = s;
        }
      }
      if (slowest == stages_.size()) break;
      const Stage& stage = stages_[slowest];
      counts[slowest] +=
          std::min({stage.most - counts[slowest], stage.count - used_[stage.type], 1 + counts[slowest] / 16});
    }
    Counts from;
    while (from != best_) {
      from = best_;
      for (std::size_t more = 0; more <= from.size(); ++more) {  // the last index stands for no stage
        for (std::size_t fewer = 0; fewer <= from.size(); ++fewer) {
          counts = best_;
          if (more < from.size()) ++counts[more];
          if (fewer < from.size() && (--counts[fewer] == 0 || !fits(stages_[fewer], counts[fewer]))) continue;
          consider(counts);
        }
      }
    }
  }

  // Shrinks the box to what can still be better; false: nothing can.
  bool shrink(Box& box) {
    bool changed = true;
    for (int round = 0; round < kMaxRounds && changed; ++round) {
      changed = false;
      const double price = add_up(box.low);
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        box.high[s] = std::min(box.high[s], box.low[s] + stages_[s].count - used_[stages_[s].type]);
        if (box.low[s] > box.high[s]) return false;
      }

      set_costs(box.high, box.low);
      box.shortest = std::max(box.shortest, pipeline_time(problem_, costs_).step);
      if (!for_cost_ && !best_.empty()) box.longest = std::min(box.longest, best_value_ * kStrictly);
      if (price > 0) box.longest = std::min(box.longest, cost_limit() / price);
      const double allowed = std::min(max_price_, cost_limit() / box.shortest);
      if (box.shortest > box.longest || price > allowed || (for_cost_ && !best_.empty() && best_value_ == 0)) {
        return false;
      }

      for (std::size_t s = 0; s < stages_.size(); ++s) {
        const Stage& stage = stages_[s];
        const std::int64_t low = box.low[s];
        const std::int64_t high = box.high[s];
        const StageCost cost = costs_[s];
        if (const double more = (allowed - price) / stage.price; more < static_cast<double>(high - low)) {
          box.high[s] = low + static_cast<std::int64_t>(more);
        }
        const auto too_long = [&] { return least_step_seconds(problem_, costs_) > box.longest; };
        box.high[s] = find_first(low, box.high[s], [&](std::int64_t k) {
          costs_[s].exposed_sync_seconds = stage.closing(k + 1) - stage.times.update_seconds;
          return too_long();
        });
        costs_[s] = cost;
        box.low[s] = find_first(low, box.high[s], [&](std::int64_t k) {
          costs_[s].forward_seconds = stage.forward(k);
          costs_[s].backward_seconds = stage.backward(k);
          // With fewer devices backward is longer, and hides more of the exchange.
          costs_[s].exposed_sync_seconds = stage.times.exposed_seconds(
              stage.times.gradient_sync_seconds(static_cast<double>(low)), static_cast<double>(k));
          return !too_long();
        });
        costs_[s] = cost;
        changed |= box.low[s] != low || box.high[s] != high;
      }
    }
    return true;
  }

  void search(Box box) {
    if (boxes_left_-- <= 0 || !shrink(box)) return;
    consider(box.low);
    // The stage whose range says least about the step.
    std::size_t widest = stages_.size();
    double most = -1;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const std::int64_t low = box.low[s];
      const std::int64_t high = box.high[s];
      const double width = stages_[s].forward(low) + stages_[s].backward(low) - stages_[s].forward(high) -
                           stages_[s].backward(high) + stages_[s].closing(high) - stages_[s].closing(low);
      if (low < high && width > most) {
        most = width;
        widest = s;
      }
    }
    if (widest == stages_.size()) return;
    Box first = box;
    Box second = std::move(box);
    if ((for_cost_ || max_cost_ < kInfinity) && first.shortest > 0 && first.longest > kShortRange * first.shortest) {
      first.longest = second.shortest = std::sqrt(first.shortest * first.longest);
    } else {
      const auto low = static_cast<double>(first.low[widest]);
      const auto high = static_cast<double>(first.high[widest]);
      first.high[widest] = static_cast<std::int64_t>(std::sqrt(low * high));
      second.low[widest] = first.high[widest] + 1;
    }
    search(std::move(first));
    search(std::move(second));
  }

  const Problem& problem_;
  const std::vector<Span>& spans_;
  std::int64_t boxes_left_;
  const bool for_cost_;
  const double max_price_;
  const double max_cost_;  // step times price
  const double max_step_;
  std::vector<Stage> stages_;
  std::vector<StageCost> costs_;
  Counts used_;
  Counts best_;  // empty: none yet
  double best_value_ = kInfinity;
};

}  // namespace

std::optional<Candidate> exact_pipeline_counts(const Problem& problem, const std::vector<Span>& stages,
                                               const Objective& objective, std::int64_t max_boxes) {
  return PipelineCountSearch(problem, stages, objective, max_boxes).best();
}

}  // namespace motley::planning
