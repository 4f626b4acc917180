#include "motley/cli/measuring.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "motley/base/units.h"
#include "motley/train/profile/brief_run.h"

namespace motley::cli {
namespace {

// "flatten … fc1 on 1 × cpu; relu1 … output on 2 × gpu".
std::string in_words(const planning::Plan& plan) {
  std::vector<std::string> stages;
  for (const planning::Stage& stage : plan.stages) {
    stages.push_back(fmt::format("{} … {} on {} × {}", plan.layers[static_cast<std::size_t>(stage.first_layer)],
                                 plan.layers[static_cast<std::size_t>(stage.last_layer)], stage.replicas.front().count,
                                 stage.replicas.front().type));
  }
  return fmt::format("{}", fmt::join(stages, "; "));
}

}  // namespace

MeasuredSteps::MeasuredSteps(train::Job job, const planning::Problem& problem, planning::Objective objective,
                             const MeasureLimits& limits, std::stop_token stop)
    : job_(std::move(job)),
      problem_(problem),
      objective_(objective),
      limits_(limits),
      deadline_(Deadline::after(limits.seconds)),
      stop_(std::move(stop)) {}

planning::Plan MeasuredSteps::plan_of(const planning::Candidate& candidate) const {
  return planning::to_plan(problem_, candidate, planning::evaluate(problem_, candidate, objective_), objective_,
                           "measured");
}

planning::Evaluation MeasuredSteps::evaluate(const planning::Candidate& candidate) {
  const planning::Plan plan = plan_of(candidate);
  const auto known = seconds_.find(planning::to_json(plan));
  std::optional<double> seconds;
  std::string failure = "it did not run";
  if (known != seconds_.end()) {
    seconds = known->second;
  } else {
    const Result<train::StepTimes> times =
        train::run_plan_briefly(job_, plan,
                                {.motley = std::filesystem::read_symlink("/proc/self/exe"),
                                 .steps = limits_.steps,
                                 .deadline = deadline_,
                                 .stop = stop_});
    if (times) {
      seconds = times->step;
    } else {
      failure = times.error().message;
    }
    const bool cut_short = !times && (deadline_.passed() || stop_.stop_requested());
    if (!cut_short) {
      seconds_.emplace(planning::to_json(plan), seconds);
      if (!seconds && first_failure_.empty()) first_failure_ = failure;
      std::printf("%lld of %lld: %s (predicted %s): %s\n", static_cast<long long>(plans()),
                  static_cast<long long>(limits_.plans),
                  seconds ? format_seconds(*seconds).c_str() : ("did not run: " + failure).c_str(),
                  format_seconds(plan.predicted.step_seconds).c_str(), in_words(plan).c_str());
      std::fflush(stdout);
    }
  }
  planning::Evaluation evaluation = planning::evaluate(problem_, candidate, objective_, seconds);
  if (!seconds) {
    evaluation.feasible = false;
    evaluation.violation = failure;
  }
  return evaluation;
}

std::optional<planning::Measured> MeasuredSteps::measured(const planning::Candidate& candidate) const {
  const auto found = seconds_.find(planning::to_json(plan_of(candidate)));
  if (found == seconds_.end() || !found->second) return std::nullopt;
  return planning::Measured{.step_seconds = *found->second, .steps = limits_.steps};
}

std::int64_t MeasuredSteps::failed() const {
  return std::ranges::count_if(seconds_, [](const auto& entry) { return !entry.second.has_value(); });
}

}  // namespace motley::cli
