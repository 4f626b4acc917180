#include "motley/app/simulate_plan.h"

#include <charconv>

#include "motley/app/planning_input.h"
#include "motley/model/tables.h"
#include "motley/serial/json_schema.h"

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

struct PathFigures {
  double forward = 0, backward = 0, transfer = 0, gradient_sync = 0, optimizer = 0;
};
struct DeviceFigures {
  int stage = 0;
  int replica = 0;
  std::string type;
  double busy_seconds = 0;
  double bubble_fraction = 0;
};
struct StepFigures {
  std::string model;
  std::int64_t batch = 0;
  std::int64_t micro_batches = 0;
  std::string schedule;
  double step_seconds = 0;
  double throughput = 0;
  double communication_fraction = 0;
  PathFigures path;
  std::vector<DeviceFigures> devices;
};

template <class Archive>
void fields(Archive& archive, PathFigures& path) {
  archive.required("forward_seconds", path.forward);
  archive.required("backward_seconds", path.backward);
  archive.required("transfer_seconds", path.transfer);
  archive.required("gradient_sync_seconds", path.gradient_sync);
  archive.required("optimizer_seconds", path.optimizer);
}

template <class Archive>
void fields(Archive& archive, DeviceFigures& device) {
  archive.required("stage", device.stage);
  archive.required("replica", device.replica);
  archive.required("type", device.type);
  archive.required("busy_seconds", device.busy_seconds);
  archive.required("bubble_fraction", device.bubble_fraction);
}

template <class Archive>
void fields(Archive& archive, StepFigures& step) {
  archive.required("model", step.model);
  archive.required("global_batch_size", step.batch);
  archive.required("micro_batches", step.micro_batches);
  archive.required("pipeline_schedule", step.schedule);
  archive.required("step_seconds", step.step_seconds);
  archive.required("throughput", step.throughput, "samples per second");
  archive.required("communication_fraction", step.communication_fraction, "of the critical path");
  archive.required("critical_path", step.path, "where the step's time goes");
  archive.required("devices", step.devices);
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
      {{"shared_links", kBoolean,
        "let all stages between the same two device types share one link; otherwise each has its own to its "
        "neighbours, as for the planners"},
       &StepQuestion::shared_links},
      {{"profile_batch_size", kReal,
        "samples of the minibatch that a profile of PipeDream (graph.txt) was made with; 0: as its last linear layer "
        "tells",
        0},
       &StepQuestion::profile_batch_size},
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
                                                        .profile_batch_size = question.profile_batch_size,
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
  options.shared_links = question.shared_links;
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
  StepFigures figures = {.model = plan.model,
                         .batch = plan.batch,
                         .micro_batches = plan.micro_batches,
                         .schedule = planning::to_string(plan.schedule),
                         .step_seconds = timeline.step_seconds,
                         .throughput = static_cast<double>(plan.batch) / timeline.step_seconds,
                         .communication_fraction = timeline.communication_fraction,
                         .path = {.forward = path.forward,
                                  .backward = path.backward,
                                  .transfer = path.transfer,
                                  .gradient_sync = path.gradient_sync,
                                  .optimizer = path.update},
                         .devices = {}};
  for (const planning::Device& device : timeline.devices) {
    figures.devices.push_back({.stage = device.stage,
                               .replica = device.replica,
                               .type = device.type,
                               .busy_seconds = device.busy_seconds,
                               .bubble_fraction = device.bubble_fraction});
  }
  return write_json(std::move(figures));
}

std::string step_schema() {
  return json_schema<StepFigures>("motley simulate --json", "A simulated step: its time, and each device's part.");
}

}  // namespace motley::app
