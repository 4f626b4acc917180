#include "motley/cli/planning_input.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "motley/cluster/machine.h"
#include "motley/model/tables.h"

namespace motley::cli {
namespace {

constexpr double kCacheLineBytes = 64;  // the least that a random row reads

// The speeds that the cluster file states, for models that were never measured.
Result<std::vector<model::DeviceSpeed>> speeds_of(const cluster::Cluster& cluster, const std::string& file) {
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
                      .fixed_seconds = type.speed->fixed_seconds,
                      .lookups_per_second = type.speed->lookups_per_second > 0
                                                ? type.speed->lookups_per_second
                                                : type.speed->memory_bytes_per_second / kCacheLineBytes,
                      .compute_fraction = type.speed->compute_fraction,
                      .communication_fraction = type.speed->communication_fraction});
  }
  return speeds;
}

void warn_of_missing_links(const planning::Problem& problem) {
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
  if (!pairs.empty()) {
    std::fprintf(stderr, "motley: warning: no link is stated between %s: what is sent there is taken to cost nothing\n",
                 fmt::format("{}", fmt::join(pairs, "; ")).c_str());
  }
}

}  // namespace

Result<model::Profile> estimate_on(const cluster::Cluster& cluster, const std::string& file, const model::Graph& graph,
                                   std::int64_t batch) {
  MOTLEY_ASSIGN(const std::vector<model::DeviceSpeed> speeds, speeds_of(cluster, file));
  return model::estimate(graph, speeds, static_cast<double>(batch));
}

CLI::Validator above_zero() {
  return {[](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && std::isfinite(value) && value > 0
                       ? std::string()
                       : fmt::format("'{}' is not accepted; accepted: a number above 0", text);
          },
          "NUMBER"};
}

void add_planning_input(CLI::App& command, PlanningInput& input) {
  command.add_option("--profile", input.profile, "File of 'motley profile'");
  command.add_option("--model", input.model, "A published model instead, estimated from the cluster's speeds")
      ->check(CLI::IsMember(model::table_names()));
  command.add_option("--cluster", input.cluster, "Device types, prices, counts and links; default: this machine");
  command.add_option("--cost-model", input.cost_model, "pipeline: flushed steps; heterps: steady state")
      ->check(CLI::IsMember({"pipeline", "heterps"}))
      ->capture_default_str();
  command.add_option("--schedule", input.schedule, "Order of micro-batches (pipeline)")
      ->check(CLI::IsMember({"1f1b", "fill-drain"}))
      ->capture_default_str();
  command.add_option("--batch", input.batch, "Samples of a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))
      ->capture_default_str();
  command
      .add_option("--micro-batches", input.micro_batches,
                  "Into which a step is cut (pipeline); 0: the best power of two up to 64")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command.add_option("--samples", input.samples, "Samples that the job trains on in all, for its money")
      ->check(above_zero())
      ->capture_default_str();
  command.add_flag("--recompute", input.recompute, "Stages may recompute activations to save memory (pipeline)");
  command.add_option("--most-layers", input.most_layers, "Longer chains are joined to so many blocks")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

Result<PlanningData> planning_data(const PlanningInput& input) {
  if (input.profile.empty() == input.model.empty()) {
    return fail(ErrorCode::kInvalidInput, "--profile, --model: {}; accepted: one of them",
                input.model.empty() ? "neither is given" : "both are given");
  }
  PlanningData data{.profile = {}, .cluster = {}};
  if (!input.cluster.empty()) {
    MOTLEY_ASSIGN(data.cluster, cluster::read_cluster(input.cluster));
  } else {
    data.cluster = cluster::default_cluster(cluster::detect_machine());
  }
  if (!input.profile.empty()) {
    MOTLEY_ASSIGN(data.profile, model::read_profile(input.profile));
  } else {
    MOTLEY_ASSIGN(const model::Graph graph, model::table(input.model));
    const std::string file = input.cluster.empty() ? "this machine (see --cluster)" : input.cluster;
    MOTLEY_ASSIGN(data.profile, estimate_on(data.cluster, file, graph, input.batch));
  }
  return data;
}

Result<std::vector<planning::Problem>> planning_problems(const PlanningInput& input) {
  if (input.micro_batches > input.batch) {
    return fail(ErrorCode::kInvalidInput, "--micro-batches: {} is more than the batch has samples; accepted: 0 to {}",
                input.micro_batches, input.batch);
  }
  const bool pipeline = input.cost_model == "pipeline";
  std::vector<std::int64_t> counts = {std::max<std::int64_t>(1, input.micro_batches)};
  while (pipeline && input.micro_batches == 0 && 2 * counts.back() <= std::min(input.batch, kMostMicroBatches)) {
    counts.push_back(2 * counts.back());
  }
  MOTLEY_ASSIGN(const PlanningData data, planning_data(input));
  const model::Profile profile = model::coarsen(model::without_step_layer(data.profile), input.most_layers);
  std::vector<planning::Problem> problems;
  for (const std::int64_t count : counts) {
    Result<planning::Problem> problem =
        planning::make_problem(profile, data.cluster,
                               {.cost_model = pipeline ? planning::CostModel::kPipeline : planning::CostModel::kHeterps,
                                .job_samples = input.samples,
                                .batch = input.batch,
                                .micro_batches = count,
                                .schedule = input.schedule == "1f1b" ? planning::Schedule::kOneForwardOneBackward
                                                                     : planning::Schedule::kFillDrain,
                                .allow_recompute = input.recompute});
    if (!problem) {
      return fail(input.cluster.empty() ? problem.error().within("planning for this machine, as no --cluster is given")
                                        : problem.error());
    }
    problems.push_back(std::move(*problem));
  }
  warn_of_missing_links(problems.front());
  return problems;
}

}  // namespace motley::cli
