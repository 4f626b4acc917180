#include "motley/train/loop/adapter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/log.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

// What moving takes, as long as nothing has moved: workers build their networks anew, and all state goes through rank
// 0.
constexpr double kBuildSeconds = 1;
constexpr double kStateBytesPerSecond = 100e6;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// By how much the slowdowns, relative to each other, differ: the largest factor by which one of them has moved against
// the geometric mean of all, less 1.
double drift(const std::vector<double>& before, const std::vector<double>& now) {
  double mean = 0;
  for (std::size_t i = 0; i < now.size(); ++i) mean += std::log(now[i] / before[i]) / static_cast<double>(now.size());
  double most = 0;
  for (std::size_t i = 0; i < now.size(); ++i) most = std::max(most, std::abs(std::log(now[i] / before[i]) - mean));
  return std::exp(most) - 1;
}

}  // namespace

Result<Adapter> Adapter::create(const model::Profile& profile, const cluster::Cluster& cluster,
                                const StageLayout& layout) {
  MOTLEY_ASSIGN(planning::Problem problem, planning::problem_of_plan(profile, cluster, layout.plan()));
  if (!std::ranges::equal(problem.layers, layout.plan().layers, {}, &planning::LayerSize::name)) {
    return fail(ErrorCode::kInvalidInput, "the profile of {} has other layers than the plan", problem.model);
  }
  double bytes = 0;
  for (const planning::LayerSize& layer : problem.layers) bytes += layer.parameter_bytes;
  Adapter adapter(std::move(problem));
  adapter.moving_seconds_ = kBuildSeconds + adapter.problem_.memory_per_parameter_byte * bytes / kStateBytesPerSecond;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const auto found = std::ranges::find(adapter.problem_.types, layout.type_of(rank), &planning::Type::name);
    if (found == adapter.problem_.types.end()) {
      return fail(ErrorCode::kInvalidInput, "the profile has no device type '{}', which the plan uses",
                  layout.type_of(rank));
    }
    adapter.types_.push_back(static_cast<int>(found - adapter.problem_.types.begin()));
  }
  adapter.searched_.assign(static_cast<std::size_t>(layout.ranks()), 1);
  adapter.follow(layout);
  return adapter;
}

Adapter::~Adapter() {
  stop_.request_stop();
}

void Adapter::follow(const StageLayout& layout) {
  plan_ = layout.plan();
  places_ = layout.places();
  stages_.clear();
  for (int rank = 0; rank < layout.ranks(); ++rank) stages_.push_back(static_cast<std::size_t>(layout.stage_of(rank)));
  ratios_.assign(stages_.size(), {});
}

double Adapter::predicted_seconds(std::size_t rank, double samples) const {
  const planning::Stage& stage = plan_.stages[stages_[rank]];
  double seconds = 0;
  for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    const planning::LayerOnType& time = problem_.at(layer, types_[rank]);
    const auto passes = static_cast<double>(plan_.micro_batches);
    seconds += passes * (time.forward.fixed + time.backward.fixed) +
               samples * (time.forward.per_sample + time.backward.per_sample);
    if (stage.recompute) seconds += passes * time.forward.fixed + samples * time.forward.per_sample;
  }
  return seconds;
}

std::vector<double> Adapter::slowdowns() const {
  std::vector<double> slowdowns;
  for (const std::deque<double>& ratios : ratios_) slowdowns.push_back(median({ratios.begin(), ratios.end()}));
  return slowdowns;
}

void Adapter::observe(std::span<const data::Observation> ranks, std::int64_t steps_left) {
  steps_left_ = steps_left;
  bool enough = true;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double predicted = predicted_seconds(rank, ranks[rank].samples);
    if (ranks[rank].samples > 0 && ranks[rank].seconds > 0 && predicted > 0) {
      ratios_[rank].push_back(ranks[rank].seconds / predicted);
    }
    if (ratios_[rank].size() > kSpeedSteps) ratios_[rank].pop_front();
    enough = enough && ratios_[rank].size() == kSpeedSteps;
  }
  if (!enough || search_.valid()) return;
  const std::vector<double> now = slowdowns();
  if (drift(searched_, now) <= kDrift) return;
  searched_ = now;
  std::vector<planning::WorkerSpeed> speeds;
  for (std::size_t rank = 0; rank < now.size(); ++rank) speeds.push_back({types_[rank], now[rank]});
  search_ = std::async(std::launch::async,
                       [workers = planning::problem_of_workers(problem_, speeds), plan = plan_, places = places_,
                        stop = stop_.get_token()]() -> Result<Found> {
                         MOTLEY_ASSIGN(planning::PlacedPlan running, planning::placement_of(workers, plan, places));
                         MOTLEY_ASSIGN(planning::PlacedPlan best, planning::repartition(workers, running, stop));
                         return Found{std::move(running), std::move(best)};
                       });
}

std::optional<Adapter::Move> Adapter::next_move() {
  if (!search_.valid() || search_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  Result<Found> found = search_.get();
  ratios_.assign(ratios_.size(), {});  // the search may have slowed this rank down
  if (!found) {
    spdlog::warn("no other plan was looked for: {}", found.error().message);
    return std::nullopt;
  }
  const double gain = found->running.step_seconds - found->best.step_seconds;
  const std::size_t slowest = static_cast<std::size_t>(std::ranges::max_element(searched_) - searched_.begin());
  std::string text = fmt::format(
      "worker {} takes {:.2f} times as long as the profile says, the fastest {:.2f}; a step of {} by the running plan, "
      "{} by the best one for them",
      slowest, searched_[slowest], *std::ranges::min_element(searched_), format_seconds(found->running.step_seconds),
      format_seconds(found->best.step_seconds));
  const bool pays = gain >= kLeastGain * found->running.step_seconds &&
                    gain * static_cast<double>(steps_left_) >= kWorth * moving_seconds_;
  if (!pays) {
    spdlog::info("the plan stays: {}; moving takes about {}, {} steps are left", text, format_seconds(moving_seconds_),
                 steps_left_);
    return std::nullopt;
  }
  Move move{std::move(found->best.plan), std::move(found->best.workers), std::move(text)};
  std::size_t place = 0;
  for (planning::Stage& stage : move.plan.stages) {
    for (planning::Replicas& replicas : stage.replicas) {
      replicas.type =
          problem_.types[static_cast<std::size_t>(types_[static_cast<std::size_t>(move.ranks[place++])])].name;
    }
  }
  return move;
}

void Adapter::moved(const StageLayout& layout, double seconds) {
  moving_seconds_ = seconds;
  follow(layout);
}

}  // namespace motley::train
