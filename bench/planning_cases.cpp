#include "bench/planning_cases.h"

#include <algorithm>

#include "motley/cluster/cluster.h"
#include "motley/model/profile.h"
#include "motley/model/tables.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"
#include "motley/planning/search/search.h"

namespace motley::bench {
namespace {

constexpr int kMaxLayers = 32;         // longer chains are joined, so that every method gets the same problem
constexpr double kDenseBatch = 256;    // of a step, and what profiles are taken at
constexpr double kSparseBatch = 4096;  // of models with tables, whose samples are small
constexpr double kGnmtMinibatch = 32;

Result<cluster::Cluster> rental(const BenchOptions& options) {
  return cluster::read_cluster(options.source_folder / "examples/rent/cluster.yaml");
}

planning::ProblemOptions problem_options(planning::CostModel cost_model, double batch) {
  return {
      .cost_model = cost_model, .total_samples = 1e8, .batch = static_cast<std::int64_t>(batch), .micro_batches = 8};
}

// Half of the most that devices of the best single type can do.
Result<PlanningCase> with_min_throughput(std::string name, planning::Problem problem) {
  PlanningCase planning{.name = std::move(name), .problem = std::move(problem), .objective = {}};
  double most = 0;
  for (const auto& plan_on_one_type : {planning::plan_cpu_only, planning::plan_gpu_only}) {
    const Result<planning::Answer> answer = plan_on_one_type(
        {.problem = planning.problem, .objective = {.criterion = planning::Criterion::kMaxThroughput}, .seconds = 10});
    if (answer && answer->best) most = std::max(most, answer->evaluation.throughput);
  }
  if (most == 0) return fail(ErrorCode::kInternal, "{}: no plan of one type fits", planning.name);
  planning.objective = {.criterion = planning::Criterion::kMinCost, .min_throughput = most / 2};
  return planning;
}

// A published profile has one device; the second is a third as fast for a fifth of the price.
Result<PlanningCase> imported_case(const std::filesystem::path& file, planning::CostModel cost_model) {
  const double minibatch = file.stem() == "gnmt" ? kGnmtMinibatch : 0;  // the others say it themselves
  MOTLEY_ASSIGN(model::Profile profile, model::read_pipedream(file, minibatch, "gpu"));
  profile = model::coarsen(profile, kMaxLayers);
  model::DeviceProfile slow = profile.devices.front();
  slow.type = "old-gpu";
  slow.origin = model::Origin::kScaled;
  slow.rule = "three times the time of gpu";
  for (model::LayerTime& layer : slow.layers) {
    for (model::Affine* time : {&layer.forward, &layer.backward}) {
      time->fixed *= 3;
      time->per_sample *= 3;
    }
  }
  profile.devices.push_back(std::move(slow));
  profile.links = {
      {"gpu", "gpu", 1.25e9, 10e-6}, {"old-gpu", "old-gpu", 1.25e9, 10e-6}, {"gpu", "old-gpu", 1.25e9, 10e-6}};
  cluster::Cluster cluster;
  cluster.device_types = {{"gpu", cluster::DeviceKind::kCuda, 8, 16e9, 2.5},
                          {"old-gpu", cluster::DeviceKind::kCuda, 16, 16e9, 0.5}};
  MOTLEY_ASSIGN(planning::Problem problem,
                planning::make_problem(profile, cluster, problem_options(cost_model, kDenseBatch)));
  return with_min_throughput("pipedream-" + file.stem().string(), std::move(problem));
}

}  // namespace

std::vector<model::DeviceSpeed> list_speeds(const cluster::Cluster& cluster) {
  std::vector<model::DeviceSpeed> speeds;
  for (const cluster::DeviceType& type : cluster.device_types) {
    const cluster::Speed speed = type.speed.value_or(cluster::Speed{});
    speeds.push_back({type.name, speed.flops_per_second, speed.memory_bytes_per_second, speed.layer_overhead_seconds,
                      speed.lookups_per_second, speed.compute_fraction, speed.communication_fraction});
  }
  return speeds;
}

std::filesystem::path shared_data(const BenchOptions& options) {
  const std::filesystem::path folder = options.source_folder / "../shared/data";
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

PlanningCase random_case(int layers, int types, std::uint64_t seed) {
  PlanningCase planning{.name = fmt::format("random-{}x{}-{}", layers, types, seed),
                        .problem = planning::random_problem({.layers = layers, .types = types, .max_count = 16}, seed),
                        .objective = {}};
  const planning::Request fastest{.problem = planning.problem,
                                  .objective = {.criterion = planning::Criterion::kMaxThroughput}};
  planning::Search search(fastest);
  for (int type = 0; type < types; ++type) search.consider(planning::all_on(planning.problem, type).type_of_layer);
  planning.objective = {.criterion = planning::Criterion::kMinCost,
                        .min_throughput = search.answer().evaluation.throughput / 2};
  return planning;
}

Result<PlanningCase> planning_case(const BenchOptions& options, const std::string& table,
                                   planning::CostModel cost_model) {
  MOTLEY_ASSIGN(const cluster::Cluster cluster, rental(options));
  MOTLEY_ASSIGN(const model::Graph graph, model::table(table));
  const bool sparse = std::ranges::any_of(graph.layers, [](const model::Layer& layer) { return layer.lookups > 0; });
  const double batch = sparse ? kSparseBatch : kDenseBatch;
  const model::Profile profile = model::coarsen(model::estimate(graph, list_speeds(cluster), batch), kMaxLayers);
  MOTLEY_ASSIGN(planning::Problem problem,
                planning::make_problem(profile, cluster, problem_options(cost_model, batch)));
  return with_min_throughput(table, std::move(problem));
}

Result<std::vector<PlanningCase>> planning_cases(const BenchOptions& options, planning::CostModel cost_model) {
  std::vector<PlanningCase> cases;
  for (const std::string& table : model::table_names()) {
    MOTLEY_ASSIGN(PlanningCase planning, planning_case(options, table, cost_model));
    cases.push_back(std::move(planning));
  }
  const std::filesystem::path data = shared_data(options);
  if (data.empty()) return cases;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(data / "profiles/pipedream")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    MOTLEY_ASSIGN(PlanningCase planning, imported_case(file, cost_model));
    cases.push_back(std::move(planning));
  }
  return cases;
}

}  // namespace motley::bench
