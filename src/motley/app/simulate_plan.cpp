#include "motley/app/simulate_plan.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "motley/app/planning_input.h"
#include "motley/model/tables.h"

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
                "--straggler: '{}' is not accepted; accepted: STAGE:REPLICA:SLOWDOWN, such as 1:0:1.5", text);
  }
  return straggler;
}

}  // namespace

const OptionTable<StepQuestion>& StepQuestion::options() {
  using enum OptionKind;
  static const OptionTable<StepQuestion> options = {
      {{"profile", kPath, "how long the layers take (profile.json)"}, &StepQuestion::profile},
      {choice("model", "published model instead of a profile, as for motley plan", model::table_names()),
       &StepQuestion::model},
      {{"cluster", kPath, "cluster file: device types and links"}, &StepQuestion::cluster},
      {{"straggler", kTexts, "STAGE:REPLICA:SLOWDOWN, a device that is slower than its profile; may be repeated"},
       &StepQuestion::stragglers},
      {{"jitter", kReal, "relative standard deviation of computation times", 0}, &StepQuestion::jitter},
      {{"seed", kInteger, "seed of the jitter", 0}, &StepQuestion::seed},
      {{"global_batch_size", kInteger, "samples per step; default: the plan's", 1}, &StepQuestion::batch},
      {{"micro_batches", kInteger, "micro-batches per step; default: the plan's", 1}, &StepQuestion::micro_batches},
      {{"dedicated_links", kBoolean,
        "give each stage its own link to its neighbours, as the cost model does; otherwise stages between the same "
        "device types share one"},
       &StepQuestion::dedicated_links},
  };
  return options;
}

Result<SimulatedStep> simulate_plan(const StepQuestion& question) {
  SimulatedStep step;
  planning::Plan& plan = step.plan;
  MOTLEY_ASSIGN(plan, read_document(question.documents, question.plan, planning::parse_plan, planning::read_plan));
  MOTLEY_ASSIGN(const PlanningData data, planning_data({.profile = question.profile,
                                                        .model = question.model,
                                                        .cluster = question.cluster,
                                                        .batch = plan.batch,
                                                        .documents = question.documents}));
  plan.batch = question.batch > 0 ? question.batch : plan.batch;
  plan.micro_batches = question.micro_batches > 0 ? question.micro_batches : plan.micro_batches;
  if (question.batch > 0 || question.micro_batches > 0) {
    plan.predicted = {};
    MOTLEY_TRY(planning::validate(plan, question.plan + " with the given batch"));
  }
  MOTLEY_ASSIGN(const planning::Problem problem, planning::problem_of_plan(data.profile, data.cluster, plan));
  planning::Options options;
  options.jitter = question.jitter;
  options.seed = question.seed;
  options.links_contended = !question.dedicated_links;
  options.keep_events = question.keep_events;
  for (const std::string& text : question.stragglers) {
    MOTLEY_ASSIGN(const planning::Straggler straggler, parse_straggler(text));
    options.stragglers.push_back(straggler);
  }
  Result<planning::Timeline> timeline = planning::simulate(problem, plan, options);
  if (!timeline) return fail(timeline.error().within(question.plan));
  step.timeline = std::move(*timeline);
  return step;
}

std::string to_json(const SimulatedStep& step) {
  const auto& [plan, timeline] = step;
  const planning::Path& path = timeline.critical;
  nlohmann::ordered_json json = {{"model", plan.model},
                                 {"global_batch_size", plan.batch},
                                 {"micro_batches", plan.micro_batches},
                                 {"pipeline_schedule", planning::to_string(plan.schedule)},
                                 {"step_seconds", timeline.step_seconds},
                                 {"throughput", static_cast<double>(plan.batch) / timeline.step_seconds},
                                 {"communication_fraction", timeline.communication_fraction},
                                 {"critical_path",
                                  {{"forward_seconds", path.forward},
                                   {"backward_seconds", path.backward},
                                   {"transfer_seconds", path.transfer},
                                   {"gradient_sync_seconds", path.gradient_sync},
                                   {"optimizer_seconds", path.update}}}};
  for (const planning::Device& device : timeline.devices) {
    json["devices"].push_back({{"stage", device.stage},
                               {"replica", device.replica},
                               {"type", device.type},
                               {"busy_seconds", device.busy_seconds},
                               {"bubble_fraction", device.bubble_fraction}});
  }
  return json.dump(2) + "\n";
}

}  // namespace motley::app
