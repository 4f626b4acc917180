#include "motley/app/simulate_plan.h"

#include <charconv>

#include "motley/app/planning_input.h"

namespace motley::app {
namespace {

Result<planning::Straggler> parse_straggler(const std::string& text) {
  planning::Straggler straggler;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  const auto read = [&](auto& value, bool last) {
    const auto [rest, error] = std::from_chars(at, end, value);
    good = good && error == std::errc() && (last ? rest == end : rest != end && *rest == ':');
    at = good && !last ? rest + 1 : rest;
  };
  read(straggler.stage, false);
  read(straggler.replica, false);
  read(straggler.slowdown, true);
  if (!good) {
    return fail(ErrorCode::kInvalidInput,
                "--straggler: '{}' is not understood; accepted is STAGE:REPLICA:SLOWDOWN, such as 1:0:1.5", text);
  }
  return straggler;
}

}  // namespace

Result<SimulatedStep> simulate_plan(const StepQuestion& question) {
  SimulatedStep step;
  planning::Plan& plan = step.plan;
  MOTLEY_ASSIGN(plan, planning::read_plan(question.plan));
  MOTLEY_ASSIGN(
      const PlanningData data,
      planning_data(
          {.profile = question.profile, .model = question.model, .cluster = question.cluster, .batch = plan.batch}));
  plan.batch = question.batch > 0 ? question.batch : plan.batch;
  plan.micro_batches = question.micro_batches > 0 ? question.micro_batches : plan.micro_batches;
  if (question.batch > 0 || question.micro_batches > 0) {
    plan.predicted = {};
    MOTLEY_TRY(planning::validate(plan, question.plan + " with the given batch"));
  }
  MOTLEY_ASSIGN(const planning::Problem problem, planning::problem_of_plan(data.profile, data.cluster, plan));
  planning::Options options = question.options;
  for (const std::string& text : question.stragglers) {
    MOTLEY_ASSIGN(const planning::Straggler straggler, parse_straggler(text));
    options.stragglers.push_back(straggler);
  }
  Result<planning::Timeline> timeline = planning::simulate(problem, plan, options);
  if (!timeline) return fail(timeline.error().within(question.plan));
  step.timeline = std::move(*timeline);
  return step;
}

}  // namespace motley::app
