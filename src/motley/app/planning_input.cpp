#include "motley/app/planning_input.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/app/renamed_keys.h"
#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/cluster/machine.h"
#include "motley/model/tables.h"
#include "motley/planning/methods.h"

namespace motley::app {
namespace {

constexpr double kCacheLineBytes = 64;                   // the least that a random row reads
constexpr std::size_t kMaxBytes = std::size_t{1} << 28;  // of a profile
constexpr int kLongModel = 128;                          // layers, above which all planners take long (pipeline)

// The speeds that the cluster file states, for models that were never measured.
Result<std::vector<model::DeviceSpeed>> list_speeds(const cluster::Cluster& cluster, const std::string& file) {
  std::vector<model::DeviceSpeed> speeds;
  for (const cluster::DeviceType& type : cluster.device_types) {
    if (!type.speed) {
      return fail(
          ErrorCode::kInvalidInput,
          "{}: device_types: '{}' has no speed, which a model that was not measured needs; accepted: speed: "
          "{{flops_per_second: 7e12, memory_bandwidth: '900 GB/s'}}, or --profile with a file of 'motley profile'",
          file, type.name);
    }
    speeds.push_back({.type = type.name,
                      .flops_per_second = type.speed->flops_per_second,
                      .bytes_per_second = type.speed->memory_bytes_per_second,
                      .layer_overhead_seconds = type.speed->layer_overhead_seconds,
                      .lookups_per_second = type.speed->lookups_per_second > 0
                                                ? type.speed->lookups_per_second
                                                : type.speed->memory_bytes_per_second / kCacheLineBytes,
                      .compute_fraction = type.speed->compute_fraction,
                      .communication_fraction = type.speed->communication_fraction});
  }
  return speeds;
}

// "cpu and gpu; gpu and gpu"; empty where all links are stated.
std::string list_missing_links(const planning::Problem& problem) {
  std::vector<std::string> pairs;
  for (int from = 0; from < problem.type_count(); ++from) {
    for (int to = from; to < problem.type_count(); ++to) {
      const bool several = from != to || problem.types[static_cast<std::size_t>(from)].count > 1;
      if (several && std::isinf(problem.link(from, to).bytes_per_second)) {
        pairs.push_back(fmt::format("{} and {}", problem.types[static_cast<std::size_t>(from)].name,
                                    problem.types[static_cast<std::size_t>(to)].name));
      }
    }
  }
  return fmt::format("{}", fmt::join(pairs, "; "));
}

}  // namespace

const OptionTable<PlanningInput>& PlanningInput::options() {
  using enum OptionKind;
  static const OptionTable<PlanningInput> options = {
      {{"profile", kPath, "profile to plan from, a file of 'motley profile'"}, &PlanningInput::profile},
      {choice("model", "published model to plan instead, estimated from the speeds in the cluster file",
              model::table_names()),
       &PlanningInput::model},
      {{"cluster", kPath, "cluster file: device types, prices, counts and links; default: this machine"},
       &PlanningInput::cluster},
      {choice("cost_model", "pipeline: synchronous pipeline; heterps: steady state, as in HeterPS",
              {"pipeline", "heterps"}),
       &PlanningInput::cost_model},
      {choice("pipeline_schedule", "order of the micro-batches in a stage (pipeline)", {"1f1b", "gpipe"},
              kRenamedSchedules),
       &PlanningInput::schedule},
      {{"global_batch_size", kInteger, "samples per step", 1, 1e9}, &PlanningInput::batch},
      {{"micro_batches", kInteger, "micro-batches per step (pipeline); 0: the best power of two up to 64", 0, 1e6},
       &PlanningInput::micro_batches},
      {{"total_samples", kReal, "samples that the whole training takes, for its cost", 1},
       &PlanningInput::total_samples},
      {{"recompute", kBoolean, "stages may recompute activations to save memory (pipeline)"},
       &PlanningInput::recompute},
      {{"max_layers", kInteger,
        "merge longer models into this many blocks; 0: only models that are too long for the devices, and say so", 0,
        kMostLayers},
       &PlanningInput::max_layers},
      {{"profile_batch_size", kReal,
        "samples of the minibatch that a profile of PipeDream (graph.txt) was made with; 0: as its last linear layer "
        "tells",
        0},
       &PlanningInput::profile_batch_size},
  };
  return options;
}

Result<model::Profile> estimate_on(const cluster::Cluster& cluster, const std::string& file, const model::Graph& graph,
                                   std::int64_t batch) {
  MOTLEY_ASSIGN(const std::vector<model::DeviceSpeed> speeds, list_speeds(cluster, file));
  return model::estimate(graph, speeds, static_cast<double>(batch));
}

namespace {

// A profile of our own, or one that PipeDream wrote, which is of one device type.
Result<model::Profile> read_any_profile(const PlanningInput& input, const cluster::Cluster& cluster) {
  const auto read_text = [](const std::string& text, const std::string&) -> Result<std::string> { return text; };
  MOTLEY_ASSIGN(const std::string text,
                read_document(input.documents, input.profile, read_text,
                              [](const std::string& file) { return read_file(file, kMaxBytes); }));
  if (!trimmed(text).starts_with("node")) return model::parse_profile(text, input.profile);
  std::vector<std::string> types;
  for (const cluster::DeviceType& type : cluster.device_types) {
    if (type.count > 0) types.push_back(type.name);
  }
  if (types.size() != 1) {
    return fail(ErrorCode::kInvalidInput,
                "{}: it is a profile of PipeDream, of one device type, but the cluster has {}: {}; accepted: a cluster "
                "of one",
                input.profile, types.size(), fmt::join(types, ", "));
  }
  auto profile = model::parse_pipedream(text, input.profile, input.profile_batch_size, types.front());
  if (!profile && input.profile_batch_size == 0) {
    return fail(ErrorCode::kInvalidInput, "{} (--profile-batch-size)", profile.error().message);
  }
  return profile;
}

}  // namespace

Result<PlanningData> planning_data(const PlanningInput& input) {
  if (input.profile.empty() == input.model.empty()) {
    return fail(ErrorCode::kInvalidInput, "--profile, --model: {}; accepted: one of them",
                input.model.empty() ? "neither is given" : "both are given");
  }
  PlanningData data{.profile = {}, .cluster = {}};
  const auto here = input.cluster.empty() ? std::optional(cluster::detect_machine()) : std::nullopt;
  MOTLEY_ASSIGN(data.cluster,
                here ? cluster::default_cluster(*here)
                     : read_document(input.documents, input.cluster, cluster::parse_cluster, cluster::read_cluster));
  if (!input.profile.empty()) {
    MOTLEY_ASSIGN(data.profile, read_any_profile(input, data.cluster));
    const model::DeviceProfile* const cpu = data.profile.device("cpu");
    if (here && cpu != nullptr && cpu->threads > 0) cluster::divide_cpu(*here, cpu->threads, data.cluster);
  } else {
    MOTLEY_ASSIGN(const model::Graph graph, model::table(input.model));
    const std::string file = here ? "this machine (see --cluster)" : input.cluster;
    MOTLEY_ASSIGN(data.profile, estimate_on(data.cluster, file, graph, input.batch));
  }
  return data;
}

namespace {

// How many of its layers planners bear on these devices, in any number of micro-batches.
int bearable_layers(const PlanningInput& input, const cluster::Cluster& cluster, int layers) {
  const bool is_pipeline = input.cost_model == "pipeline";
  planning::Problem devices;
  devices.cost_model = is_pipeline ? planning::CostModel::kPipeline : planning::CostModel::kHeterps;
  devices.batch = input.batch;
  devices.micro_batches = std::max<std::int64_t>(1, input.micro_batches);
  for (const cluster::DeviceType& type : cluster.device_types) {
    devices.types.push_back({.name = type.name, .count = type.count});
  }
  const int most = planning::max_exact_layers(devices);
  if (!is_pipeline) return std::min(most, layers);
  return most > 0 ? std::min(most, kLongModel) : kLongModel;
}

}  // namespace

Result<std::vector<planning::Problem>> planning_problems(const PlanningInput& input, const Tell& warn) {
  if (input.micro_batches > input.batch) {
    return fail(ErrorCode::kInvalidInput, "--micro-batches: {} is more than the batch has samples; accepted: 0 to {}",
                input.micro_batches, input.batch);
  }
  const bool pipeline = input.cost_model == "pipeline";
  std::vector<std::int64_t> counts = {std::max<std::int64_t>(1, input.micro_batches)};
  while (pipeline && input.micro_batches == 0 && 2 * counts.back() <= std::min(input.batch, kMaxMicroBatches)) {
    counts.push_back(2 * counts.back());
  }
  MOTLEY_ASSIGN(const PlanningData data, planning_data(input));
  model::Profile profile = model::without_step_layer(data.profile);
  const auto layers = static_cast<int>(profile.graph.layers.size());
  const int most = input.max_layers > 0 ? input.max_layers : bearable_layers(input, data.cluster, layers);
  if (most < layers) {
    profile = model::coarsen(profile, most);
    warn(fmt::format("{} layers are merged into {} blocks, between which alone is cut", layers,
                     profile.graph.layers.size()));
  }
  std::vector<planning::Problem> problems;
  for (const std::int64_t count : counts) {
    Result<planning::Problem> problem = planning::make_problem(
        profile, data.cluster,
        {.cost_model = pipeline ? planning::CostModel::kPipeline : planning::CostModel::kHeterps,
         .total_samples = input.total_samples,
         .batch = input.batch,
         .micro_batches = count,
         .schedule = input.schedule == "1f1b" ? planning::PipelineSchedule::kOneForwardOneBackward
                                              : planning::PipelineSchedule::kGPipe,
         .allow_recompute = input.recompute});
    if (!problem) {
      return fail(input.cluster.empty() ? problem.error().within("planning for this machine, as no --cluster is given")
                                        : problem.error());
    }
    if (std::ssize(profile.graph.layers) < layers) problem->merged_from = layers;
    problems.push_back(std::move(*problem));
  }
  const std::string missing = list_missing_links(problems.front());
  if (!missing.empty()) {
    warn(fmt::format("no link is stated between {}: what is sent there is taken to cost nothing", missing));
  }
  return problems;
}

const OptionTable<SearchLimits>& SearchLimits::options() {
  using enum OptionKind;
  static const OptionTable<SearchLimits> options = {
      {{"time_limit", kSeconds, "time limit of each method; the best plan found so far is kept", 1e-3},
       &SearchLimits::seconds},
      {{"seed", kInteger, "seed of the randomised methods", 0}, &SearchLimits::seed},
  };
  return options;
}

Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop,
                     const Ask& ask) {
  Solved best;
  std::vector<planning::Rival> feasible_ones;
  bool all_proved = true;
  Error refused;
  double bound = std::numeric_limits<double>::infinity();
  double seconds = 0;
  for (const planning::Problem& problem : problems) {
    const planning::Request request = {.problem = problem,
                                       .objective = objective,
                                       .seed = limits.seed,
                                       .seconds = limits.seconds / static_cast<double>(problems.size()),
                                       .stop = stop};
    Result<planning::Answer> tried = ask ? ask(planner, request) : planner.plan(request);
    if (!tried && tried.error().code == ErrorCode::kInvalidInput) {  // a number that the planner does not bear
      refused = tried.error();
      all_proved = false;
      bound = 0;
      continue;
    }
    MOTLEY_ASSIGN(planning::Answer answer, std::move(tried));
    all_proved = all_proved && answer.proved;
    const bool feasible = answer.best.has_value();
    const double value = feasible ? planning::value(answer.evaluation, objective.criterion) : 0;
    if (feasible || !answer.proved) bound = std::min(bound, answer.proved ? value : answer.bound);
    seconds += answer.seconds;
    if (feasible) feasible_ones.push_back({problem.micro_batches, *answer.best});
    const bool better = feasible && (best.problem == nullptr || !best.answer.best ||
                                     value < planning::value(best.answer.evaluation, objective.criterion));
    if (best.problem == nullptr || better) best = {&problem, std::move(answer)};
  }
  if (best.problem == nullptr) return fail(refused);
  std::erase_if(feasible_ones,
                [&](const planning::Rival& one) { return one.micro_batches == best.problem->micro_batches; });
  best.rivals = std::move(feasible_ones);
  best.answer.proved = all_proved;
  best.answer.bound = std::isfinite(bound) ? bound : 0;
  best.answer.seconds = seconds;
  best.refused = refused.message;
  return best;
}

}  // namespace motley::app
