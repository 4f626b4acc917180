#include "motley/train/loop/replanner.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

// What moving takes, as long as nothing has moved: workers build their networks anew, and all state goes through rank
// 0.
constexpr double kBuildSeconds = 1;
constexpr double kStateBytesPerSecond = 100e6;

// By how much a slowdown is off from 1, at most: a factor, less 1.
double deviation(const std::vector<double>& slowdowns) {
  double most = 0;
  for (const double slowdown : slowdowns) most = std::max(most, std::abs(std::log(slowdown)));
  return std::exp(most) - 1;
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

// Of a plan of workers: the device types of the ranks in its places.
void name_types(planning::Plan& plan, const std::vector<int>& ranks, const planning::Problem& problem,
                const std::vector<int>& types) {
  std::size_t place = 0;
  for (planning::Stage& stage : plan.stages) {
    for (planning::Replicas& replicas : stage.replicas) {
      const int type = types[static_cast<std::size_t>(ranks[place++])];
      replicas.type = problem.types[static_cast<std::size_t>(type)].name;
    }
  }
}

// The problem that the plan answers, and the type of each rank in it; -1: the rank has no place.
Result<std::pair<planning::Problem, std::vector<int>>> find_types(const model::Profile& profile,
                                                                  const cluster::Cluster& cluster,
                                                                  const StageLayout& layout) {
  MOTLEY_ASSIGN(planning::Problem problem, planning::problem_of_plan(profile, cluster, layout.plan()));
  if (!std::ranges::equal(problem.layers, layout.plan().layers, {}, &planning::LayerSize::name)) {
    return fail(ErrorCode::kInvalidInput, "the profile of {} has other layers than the plan", problem.model);
  }
  std::vector<int> types(static_cast<std::size_t>(layout.ranks()), -1);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    if (layout.find_stage(rank) < 0) continue;
    const auto found = std::ranges::find(problem.types, layout.device_type(rank), &planning::Type::name);
    if (found == problem.types.end()) {
      return fail(ErrorCode::kInvalidInput, "the profile has no device type '{}', which the plan uses",
                  layout.device_type(rank));
    }
    types[static_cast<std::size_t>(rank)] = static_cast<int>(found - problem.types.begin());
  }
  return std::pair(std::move(problem), std::move(types));
}

}  // namespace

Result<StageLayout> find_layout(const model::Profile& profile, const cluster::Cluster& cluster,
                                const StageLayout& layout, double seconds) {
  MOTLEY_ASSIGN(const auto found, find_types(profile, cluster, layout));
  const auto& [problem, types] = found;
  std::vector<planning::WorkerSpeed> speeds;
  std::vector<int> places;  // of the workers
  for (const int rank : layout.places()) {
    places.push_back(static_cast<int>(speeds.size()));
    speeds.push_back({types[static_cast<std::size_t>(rank)], 1});
  }
  const planning::Problem workers = planning::problem_of_workers(problem, speeds);
  MOTLEY_ASSIGN(const planning::PlacedPlan running, planning::make_placement(workers, layout.plan(), places));
  std::stop_source stop;
  auto search =
      std::async(std::launch::async, [&] { return planning::repartition(workers, running, stop.get_token()); });
  if (search.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) stop.request_stop();
  MOTLEY_ASSIGN(planning::PlacedPlan best, search.get());
  for (int& worker : best.workers) worker = layout.places()[static_cast<std::size_t>(worker)];
  name_types(best.plan, best.workers, problem, types);
  return StageLayout(std::move(best.plan), std::move(best.workers), layout.ranks());
}

Result<Replanner> Replanner::create(const model::Profile& profile, const cluster::Cluster& cluster,
                                    const StageLayout& layout) {
  MOTLEY_ASSIGN(auto found, find_types(profile, cluster, layout));
  auto& [problem, types] = found;
  double bytes = 0;
  for (const planning::LayerSize& layer : problem.layers) bytes += layer.parameter_bytes;
  Replanner replanner(std::move(problem), layout);
  replanner.moving_seconds_ =
      kBuildSeconds + replanner.problem_.memory_per_parameter_byte * bytes / kStateBytesPerSecond;
  replanner.types_ = std::move(types);
  replanner.searched_.assign(static_cast<std::size_t>(layout.ranks()), 1);
  replanner.ratios_.resize(static_cast<std::size_t>(layout.ranks()));
  return replanner;
}

Replanner::~Replanner() {
  stop_.request_stop();
}

double Replanner::predicted_seconds(int rank, double samples) const {
  const planning::Stage& stage = layout_.stage(rank);
  const auto passes = static_cast<double>(layout_.plan().micro_batches);
  double seconds = 0;
  for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    const planning::LayerOnType& time = problem_.at(layer, types_[static_cast<std::size_t>(rank)]);
    seconds += passes * (time.forward.fixed + time.backward.fixed) +
               samples * (time.forward.per_sample + time.backward.per_sample);
    if (stage.recompute) seconds += passes * time.forward.fixed + samples * time.forward.per_sample;
  }
  return seconds;
}

std::vector<double> Replanner::slowdowns() const {
  std::vector<double> slowdowns;
  for (const std::deque<double>& ratios : ratios_) slowdowns.push_back(median({ratios.begin(), ratios.end()}));
  return slowdowns;
}

void Replanner::observe(std::span<const data::Observation> ranks, std::int64_t steps_left) {
  steps_left_ = steps_left;
  bool enough = true;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double predicted = predicted_seconds(static_cast<int>(rank), ranks[rank].samples);
    if (ranks[rank].samples > 0 && ranks[rank].seconds > 0 && predicted > 0) {
      ratios_[rank].push_back(ranks[rank].seconds / predicted);
    }
    if (ratios_[rank].size() > kSpeedSteps) ratios_[rank].pop_front();
    enough = enough && ratios_[rank].size() == kSpeedSteps;
  }
  if (!enough || search_.valid()) return;
  const std::vector<double> now = slowdowns();
  if ((has_searched_ ? drift(searched_, now) : deviation(now)) <= kDrift) return;
  has_searched_ = true;
  searched_ = now;
  std::vector<planning::WorkerSpeed> speeds;
  for (std::size_t rank = 0; rank < now.size(); ++rank) speeds.push_back({types_[rank], now[rank]});
  search_ = std::async(std::launch::async,
                       [workers = planning::problem_of_workers(problem_, speeds), layout = layout_,
                        stop = stop_.get_token()]() -> Result<Found> {
                         MOTLEY_ASSIGN(planning::PlacedPlan running,
                                       planning::make_placement(workers, layout.plan(), layout.places()));
                         MOTLEY_ASSIGN(planning::PlacedPlan best, planning::repartition(workers, running, stop));
                         return Found{std::move(running), std::move(best)};
                       });
}

std::optional<Replanner::Move> Replanner::next_move() {
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
  const bool pays = gain >= kMinGain * found->running.step_seconds &&
                    gain * static_cast<double>(steps_left_) >= kMinReturn * moving_seconds_;
  if (!pays) {
    spdlog::info("the plan stays: {}; moving takes about {}, and {} left", text, format_seconds(moving_seconds_),
                 steps_left_ == 1 ? "1 step is" : fmt::format("{} steps are", steps_left_));
    return std::nullopt;
  }
  Move move{std::move(found->best.plan), std::move(found->best.workers), std::move(text)};
  name_types(move.plan, move.ranks, problem_, types_);
  return move;
}

void Replanner::moved(const StageLayout& layout, double seconds) {
  moving_seconds_ = seconds;
  layout_ = layout;
  ratios_.assign(ratios_.size(), {});
}

Status PlanMover::observe(std::span<const data::Observation> ranks, std::int64_t step, double seconds,
                          std::int64_t steps_left) {
  if (replanner_) replanner_->observe(ranks, steps_left);
  const std::optional<PredictionCheck::Finding> finding = check_ ? check_->observe(seconds) : std::nullopt;
  if (!finding) return {};
  reporter_.clear_progress();
  spdlog::log(finding->is_wrong ? spdlog::level::warn : spdlog::level::info, "{}", finding->text);
  return reporter_.event(step, "prediction", finding->text);
}

bool PlanMover::has_found() {
  if (replanner_ && !found_) {
    found_ = replanner_->next_move();
    if (found_ && !follower_.may_follow(*found_)) found_.reset();
  }
  return found_.has_value();
}

Status PlanMover::move(std::int64_t step) {
  const double begin = monotonic_seconds();
  context_.set_phase(step, "moving to another plan");
  std::string text;
  if (context_.writes()) {
    text = nlohmann::ordered_json{{"plan", planning::to_json(found_->plan)}, {"ranks", found_->ranks}}.dump();
  }
  MOTLEY_ASSIGN(text, broadcast_text(context_.group, std::move(text), 0, context_.step_deadline()));
  const auto message = nlohmann::json::parse(text);
  MOTLEY_ASSIGN(planning::Plan plan,
                planning::parse_plan(message.at("plan").get<std::string>(), "the plan to move to"));
  MOTLEY_ASSIGN(const StageLayout* layout,
                follower_.follow(std::move(plan), message.at("ranks").get<std::vector<int>>()));
  if (!context_.writes()) {
    return {};
  }
  const double seconds = monotonic_seconds() - begin;
  replanner_->moved(*layout, seconds);
  expect(layout->plan().predicted);
  const std::string name = fmt::format("plan-after-step-{}.json", step);
  MOTLEY_TRY(write_file(folder_ / name, planning::to_json(layout->plan())));
  const std::string reason =
      fmt::format("{}; moving took {}, the new plan is {}", found_->reason, format_seconds(seconds), name);
  found_.reset();
  reporter_.clear_progress();
  spdlog::info("moved to another plan after step {}: {}", step, reason);
  return reporter_.event(step, "moved", reason);
}

}  // namespace motley::train
