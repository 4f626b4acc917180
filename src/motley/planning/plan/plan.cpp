// Reads, checks and writes plan.json, says objectives in words, and orders the tasks of a step. A stage names its
// layers, so that a person can move a cut by writing another name; what follows from the rest (equal shares) may be
// left out.
#include "motley/planning/plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/plan/renamed_keys.h"
#include "motley/serial/json_schema.h"

namespace motley::planning {
namespace {

constexpr std::size_t kLargestFile = 64'000'000;
constexpr std::int64_t kMaxDevices = 1'000'000;
constexpr std::int64_t kMaxSamples = 1'000'000'000;
constexpr NumberIs kSamples = NumberIs::between(1, kMaxSamples);

// A plan as its file has it.
struct ReplicasInFile {
  std::string type;
  std::int64_t count = 1;
  std::optional<double> batch_fraction;
};
struct StageInFile {
  std::variant<std::string, std::int64_t> first_layer, last_layer;
  std::vector<ReplicasInFile> replicas;
  GradientSync gradient_sync = GradientSync::kNone;
  bool recompute = false;
};
struct PlanInFile {
  Plan plan;  // without its stages
  std::vector<StageInFile> stages;
};

template <class Archive>
void fields(Archive& archive, ReplicasInFile& replicas) {
  archive.required("type", replicas.type, {kNotEmpty, "A device type of the cluster."});
  archive.defaulted("count", replicas.count, NumberIs::between(1, kMaxDevices));
  archive.optional("batch_fraction", replicas.batch_fraction,
                   {NumberIs::kFraction,
                    "Of the batch, for each device of this entry; in all entries of a stage or in none. None: equal "
                    "fractions."});
}

template <class Archive>
void fields(Archive& archive, StageInFile& stage) {
  archive.required("first_layer", stage.first_layer,
                   "A name of 'layers', or its index from 0; likewise last_layer, which belongs to the stage.");
  archive.required("last_layer", stage.last_layer);
  archive.required("replicas", stage.replicas, kNotEmpty);
  archive.defaulted("gradient_sync", stage.gradient_sync,
                    "How the stage's devices agree on their parameters; 'none' for one device only.");
  archive.defaulted("recompute", stage.recompute,
                    "Compute activations once more in the backward pass, instead of keeping them.");
}

template <class Archive>
void fields(Archive& archive, PlanInFile& file) {
  Plan& plan = file.plan;
  archive.version(2, kRenamedKeys);
  archive.required("model", plan.model);
  archive.required("layers", plan.layers,
                   {kNotEmpty, "The names of all layers of the model, in order; no two are equal."});
  archive.optional("merged_from", plan.merged_from,
                   "Layers of the model, where those of the plan are blocks that were merged from more. None: they are "
                   "the model's own.");
  archive.optional("parameter_shapes", plan.parameter_shapes,
                   "Of each layer the shapes of its parameters, such as '24x5, 24'; a model with others is refused. "
                   "None: not known.");
  archive.required("global_batch_size", plan.batch, {kSamples, "Samples of a step."});
  archive.defaulted("micro_batches", plan.micro_batches,
                    {kSamples, "The batch is cut into this many; at most the batch."});
  archive.defaulted("pipeline_schedule", plan.schedule);
  archive.required("stages", file.stages, {kNotEmpty, "In order; together they have every layer once."});
  archive.defaulted("cost_model", plan.cost_model, "heterps or pipeline.");
  archive.defaulted("method", plan.method, "The planner that made the plan.");
  archive.defaulted("objective", plan.objective, "In words.");
  archive.defaulted("predicted", plan.predicted, "By the cost model.");
  archive.optional("measured", plan.measured,
                   "Where the plan was chosen by steps of real runs: the median step of its own.");
  archive.optional("bound", plan.bound, "No plan has an objective below this.");
  archive.optional("bottleneck", plan.bottleneck, "Where the plan is slowest, in words.");
}

}  // namespace

const char* to_string(GradientSync gradient_sync) {
  return std::array{"none", "ring", "parameter-server"}[static_cast<std::size_t>(gradient_sync)];
}

const char* to_string(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::kGPipe ? "gpipe" : "1f1b";
}

// Found by argument-dependent lookup, so not in the anonymous namespace.
static auto every_value(GradientSync) {
  return std::array{GradientSync::kNone, GradientSync::kRing, GradientSync::kParameterServer};
}
static auto every_value(PipelineSchedule) {
  return std::array{PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kGPipe};
}

template <class Archive>
static void fields(Archive& archive, Prediction& predicted) {
  archive.required("step_seconds", predicted.step_seconds);
  archive.required("throughput", predicted.throughput, "Samples a second.");
  archive.required("hourly_cost", predicted.hourly_cost, "Of all devices of the plan.");
  archive.required("cost", predicted.cost, "For the job's samples.");
  archive.optional("step_seconds_low", predicted.step_seconds_low,
                   "As far as the measured times vary, 9 of 10 steps are between this and the next. 0: not known.");
  archive.optional("step_seconds_high", predicted.step_seconds_high);
}

template <class Archive>
static void fields(Archive& archive, Measured& measured) {
  archive.required("step_seconds", measured.step_seconds);
  archive.required("steps", measured.steps, {kSamples, "So many were measured."});
}

namespace {

template <class Value>
tl::unexpected<Error> refuse(const std::string& name, const std::string& field, const Value& value,
                             const std::string& accepted) {
  return fail(ErrorCode::kInvalidInput, "{}: field '{}' is {}; accepted is {}", name, field, value, accepted);
}

Status check_layer_names(const Plan& plan, const std::string& name) {
  std::set<std::string> names;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    if (!names.insert(plan.layers[layer]).second) {
      return refuse(name, fmt::format("layers[{}]", layer), '"' + plan.layers[layer] + '"',
                    "a name that no other layer has");
    }
  }
  return {};
}

template <class Replicas>
std::int64_t count_devices(const std::vector<Replicas>& groups) {
  std::int64_t devices = 0;
  for (const Replicas& replicas : groups) devices += replicas.count;
  return devices;
}

// A layer by its name, or by its index from 0.
Result<int> find_layer(const Plan& plan, const std::variant<std::string, std::int64_t>& layer, const std::string& name,
                       const std::string& field) {
  const std::string accepted = fmt::format("a name of 'layers', or an integer from 0 to {}", plan.layers.size() - 1);
  if (const auto* text = std::get_if<std::string>(&layer)) {
    const auto found = std::ranges::find(plan.layers, *text);
    if (found == plan.layers.end()) return refuse(name, field, '"' + *text + '"', accepted);
    return static_cast<int>(found - plan.layers.begin());
  }
  const std::int64_t index = std::get<std::int64_t>(layer);
  if (index >= static_cast<std::int64_t>(plan.layers.size())) return refuse(name, field, index, accepted);
  return static_cast<int>(index);
}

// What follows from the rest is filled in: equal fractions where none are given.
Result<Stage> read_stage(const Plan& plan, const StageInFile& file, const std::string& name, const std::string& path) {
  Stage stage{.gradient_sync = file.gradient_sync, .recompute = file.recompute};
  MOTLEY_ASSIGN(stage.first_layer, find_layer(plan, file.first_layer, name, path + ".first_layer"));
  MOTLEY_ASSIGN(stage.last_layer, find_layer(plan, file.last_layer, name, path + ".last_layer"));
  const auto all = std::ssize(file.replicas);
  const auto given =
      std::ranges::count_if(file.replicas, [](const auto& one) { return one.batch_fraction.has_value(); });
  if (given != 0 && given != all) {
    return refuse(name, path + ".replicas",
                  fmt::format("{} entries with a batch_fraction, {} without", given, all - given),
                  "one in all of them, or in none for equal ones");
  }
  const double equal = 1 / static_cast<double>(count_devices(file.replicas));
  for (const auto& [type, count, fraction] : file.replicas) {
    stage.replicas.push_back({type, count, fraction.value_or(equal)});
  }
  return stage;
}

}  // namespace

Result<Plan> read_plan(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, kLargestFile));
  return parse_plan(text, file.string());
}

Result<Plan> parse_plan(std::string_view text, const std::string& name) {
  MOTLEY_ASSIGN(const PlanInFile file, parse_json<PlanInFile>(text, name));
  Plan plan = file.plan;
  MOTLEY_TRY(check_layer_names(plan, name));
  for (std::size_t s = 0; s < file.stages.size(); ++s) {
    MOTLEY_ASSIGN(Stage stage, read_stage(plan, file.stages[s], name, fmt::format("stages[{}]", s)));
    plan.stages.push_back(std::move(stage));
  }
  MOTLEY_TRY(validate(plan, name));
  return plan;
}

std::string to_json(const Plan& plan) {
  PlanInFile file{.plan = plan};
  const auto layer = [&](int index) { return plan.layers.at(static_cast<std::size_t>(index)); };
  for (const Stage& stage : plan.stages) {
    const double share_of_each = 1 / static_cast<double>(count_devices(stage.replicas));
    const bool equal =
        std::ranges::all_of(stage.replicas, [&](const Replicas& each) { return each.share == share_of_each; });
    StageInFile& in_file = file.stages.emplace_back(
        StageInFile{layer(stage.first_layer), layer(stage.last_layer), {}, stage.gradient_sync, stage.recompute});
    for (const auto& [type, count, share] : stage.replicas) {
      in_file.replicas.push_back({type, count, equal ? std::nullopt : std::optional(share)});
    }
  }
  return write_json(std::move(file));
}

std::string plan_schema() {
  return json_schema<PlanInFile>("Motley plan",
                                 "Which layers run on which devices, how many of each, and what that is predicted to "
                                 "take and cost (plan.json).");
}

Status validate(const Plan& plan, const std::string& name) {
  const auto refuse = [&](const std::string& field, const auto& value, const std::string& accepted) {
    return planning::refuse(name, field, value, accepted);
  };
  if (plan.batch < 1 || plan.batch > kMaxSamples) {
    return refuse("global_batch_size", plan.batch, fmt::format("an integer from 1 to {}", kMaxSamples));
  }
  if (plan.micro_batches < 1 || plan.micro_batches > plan.batch) {
    return refuse("micro_batches", plan.micro_batches, fmt::format("an integer from 1 to {}", plan.batch));
  }
  const int layers = static_cast<int>(plan.layers.size());
  MOTLEY_TRY(check_layer_names(plan, name));
  if (!plan.parameter_shapes.empty() && plan.parameter_shapes.size() != plan.layers.size()) {
    return refuse("parameter_shapes", fmt::format("an array of {}", plan.parameter_shapes.size()),
                  fmt::format("an array of {}, one for each layer, or none", layers));
  }
  const auto describe_layer = [&](int layer) {
    return layer >= 0 && layer < layers ? fmt::format("{} ('{}')", layer, plan.layers[static_cast<std::size_t>(layer)])
                                        : std::to_string(layer);
  };

  int next = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::string path = fmt::format("stages[{}].", s);
    if (stage.first_layer != next || next >= layers) {
      return refuse(path + "first_layer", describe_layer(stage.first_layer),
                    next < layers ? describe_layer(next) + ", the first layer that no stage before it has"
                                  : "no further stage, as the stages before it have all layers");
    }
    if (stage.last_layer < next || stage.last_layer >= layers) {
      return refuse(path + "last_layer", describe_layer(stage.last_layer),
                    fmt::format("{} to {}", describe_layer(next), describe_layer(layers - 1)));
    }
    next = stage.last_layer + 1;

    double shares = 0;
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      const Replicas& replicas = stage.replicas[r];
      const std::string entry = fmt::format("{}replicas[{}].", path, r);
      if (replicas.type.empty()) return refuse(entry + "type", "''", "the name of a device type");
      if (replicas.count < 1 || replicas.count > kMaxDevices) {
        return refuse(entry + "count", replicas.count, fmt::format("an integer from 1 to {}", kMaxDevices));
      }
      if (!(replicas.share > 0 && replicas.share <= 1)) {
        return refuse(entry + "batch_fraction", replicas.share, "a number above 0, up to 1");
      }
      shares += static_cast<double>(replicas.count) * replicas.share;
    }
    const std::int64_t devices = count_devices(stage.replicas);
    if (devices == 0) return refuse(path + "replicas", "empty", "one or more device types");
    if (std::abs(shares - 1) > 1e-6) {
      return refuse(path + "replicas", fmt::format("of fractions whose sum (count times batch_fraction) is {}", shares),
                    "a sum of 1");
    }
    if (devices > 1 && stage.gradient_sync == GradientSync::kNone) {
      return refuse(path + "gradient_sync", "'none'",
                    fmt::format("'ring' or 'parameter-server', as the stage has {}", format_count(devices, "device")));
    }
  }
  if (next != layers || layers == 0) {
    return refuse("stages", next == 0 ? "empty" : fmt::format("done after layer {}", describe_layer(next - 1)),
                  layers == 0 ? "a plan of one or more layers"
                              : fmt::format("stages up to layer {}", describe_layer(layers - 1)));
  }

  for (const auto& [field, value] : {std::pair{"predicted.step_seconds", plan.predicted.step_seconds},
                                     {"predicted.throughput", plan.predicted.throughput},
                                     {"predicted.hourly_cost", plan.predicted.hourly_cost},
                                     {"predicted.cost", plan.predicted.cost},
                                     {"measured.step_seconds", plan.measured.value_or(Measured{}).step_seconds},
                                     {"bound", plan.bound.value_or(0)}}) {
    if (!(value >= 0) || std::isinf(value)) return refuse(field, value, "a finite number, 0 or more");
  }
  return {};
}

std::string describe(const Objective& objective) {
  const std::string text = objective.criterion == Criterion::kMinCost         ? "lowest cost"
                           : objective.criterion == Criterion::kMaxThroughput ? "highest throughput"
                                                                              : "shortest step time";
  std::vector<std::string> limits;
  if (objective.min_throughput > 0) {
    limits.push_back(fmt::format("at least {} samples/s", format_number(objective.min_throughput)));
  }
  if (std::isfinite(objective.max_cost)) {
    limits.push_back(fmt::format("at most {} in all", format_number(objective.max_cost)));
  }
  if (std::isfinite(objective.max_hourly_cost)) {
    limits.push_back(fmt::format("at most {} an hour", format_number(objective.max_hourly_cost)));
  }
  return limits.empty() ? text : fmt::format("{} with {}", text, fmt::join(limits, " and "));
}

Status validate(const Objective& objective) {
  if (!(objective.min_throughput >= 0) || std::isinf(objective.min_throughput)) {
    return fail(ErrorCode::kInvalidInput,
                "objective: min_throughput is {}; accepted: samples a second of at least 0 (0: no minimum throughput)",
                objective.min_throughput);
  }
  for (const auto& [field, cap] :
       {std::pair{"max_cost", objective.max_cost}, {"max_hourly_cost", objective.max_hourly_cost}}) {
    if (!(cap > 0)) {
      return fail(ErrorCode::kInvalidInput, "objective: {} is {}; accepted: a number above 0", field, cap);
    }
  }
  return {};
}

std::int64_t count_warm_up(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                           std::int64_t micro_batches) {
  return schedule == PipelineSchedule::kGPipe ? micro_batches
                                              : std::min(micro_batches, static_cast<std::int64_t>(stages - stage));
}

Task task_at(std::int64_t position, std::int64_t warm_up, std::int64_t micro_batches) {
  const std::int64_t turn = position - warm_up;
  if (turn < 0) return {true, position};
  if (turn < 2 * (micro_batches - warm_up)) {
    return turn % 2 == 0 ? Task{false, turn / 2} : Task{true, warm_up + turn / 2};
  }
  return {false, position - micro_batches};
}

}  // namespace motley::planning
