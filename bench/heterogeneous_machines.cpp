#include "bench/heterogeneous_machines.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "bench/measured_profile.h"
#include "bench/namespaced_job.h"
#include "bench/planning_cases.h"
#include "motley/base/os/file.h"
#include "motley/model/tables.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/replan/repartition.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::bench {
namespace {

constexpr double kLinkBytesPerSecond = 125e6;
constexpr int kMaxLayers = 32;

}  // namespace

Result<HeterogeneousMachines> HeterogeneousMachines::create(const BenchOptions& options, std::filesystem::path folder) {
  HeterogeneousMachines machines(options, std::move(folder));
  MOTLEY_ASSIGN(machines.network_, NetworkNamespaces::create(kMachines, kLinkBytesPerSecond));
  MOTLEY_ASSIGN(machines.cluster_, cluster::read_cluster(machines.cluster_file()));
  return machines;
}

std::filesystem::path HeterogeneousMachines::cluster_file() const {
  return options_->source_folder / "examples/heterogeneous/cluster.yaml";
}

Result<model::Graph> HeterogeneousMachines::load_graph(const std::string& network) const {
  if (network != kTransformer) return model::table(network);
  const std::vector<std::string> flags = {"--model.num-layers",     "6",  "--model.hidden-size", "512",
                                          "--model.num-heads",      "8",  "--global-batch-size", "4",
                                          "--data.sequence-length", "128"};
  MOTLEY_ASSIGN(const model::Profile profile,
                measure_profile(*options_, options_->source_folder / "examples/text/job.yaml", flags, "1,4", 5));
  return model::without_step_layer(profile).graph;
}

Status HeterogeneousMachines::use(const std::string& network, std::int64_t batch) {
  MOTLEY_ASSIGN(const model::Graph graph, load_graph(network));
  batch_ = batch;
  profile_ =
      model::coarsen(model::estimate(graph, list_speeds(cluster_), static_cast<double>(batch) / kMachines), kMaxLayers);
  MOTLEY_TRY(write_file(profile_file(), model::to_json(profile_)));
  return write_layers();
}

// For the peer: what each layer takes on each machine with an equal share.
Status HeterogeneousMachines::write_layers() {
  slowest_ = 0;
  auto by_rank = nlohmann::json::array();
  for (const cluster::DeviceType& type : cluster_.device_types) {
    for (std::int64_t i = 0; i < type.count; ++i) {
      auto layers = nlohmann::json::array();
      const model::DeviceProfile& device = *profile_.device(type.name);
      double computing = 0;
      for (std::size_t layer = 0; layer < device.layers.size(); ++layer) {
        const double samples = static_cast<double>(batch_) / kMachines;
        computing += device.layers[layer].forward.at(samples) + device.layers[layer].backward.at(samples);
        layers.push_back({{"parameters", profile_.graph.layers[layer].parameters},
                          {"forward", device.layers[layer].forward.at(samples)},
                          {"backward", device.layers[layer].backward.at(samples)}});
      }
      by_rank.push_back(std::move(layers));
      slowest_ = std::max(slowest_, computing);
    }
  }
  return write_file(folder_ / "layers.json", by_rank.dump());
}

Result<double> HeterogeneousMachines::run(const planning::Plan& plan, int steps, int settling, double seconds) const {
  MOTLEY_TRY(write_file(folder_ / "run-plan.json", planning::to_json(plan)));
  std::int64_t workers = 0;
  for (const planning::Stage& stage : plan.stages) {
    for (const planning::Replicas& replicas : stage.replicas) workers += replicas.count;
  }
  const std::filesystem::path job = folder_ / "job.yaml";
  MOTLEY_TRY(write_file(
      job, fmt::format(
               "name: bench-tapp\nmodel:\n  name: synthetic\n  path: profile.json\nplan: run-plan.json\n"
               "global_batch_size: {}\nsteps: {}\nbatch_split:\n  mode: fixed\ndeadline:\n  join: 120s\n  step: 120s\n",
               batch_, steps)));
  MOTLEY_ASSIGN(std::vector<double> times,
                train_in_namespaces(*options_, *network_, folder_, static_cast<int>(workers), job, {}, {}, seconds));
  if (std::ssize(times) != steps) {
    return fail(ErrorCode::kInternal, "the job ended after {} of {} steps", times.size(), steps);
  }
  times.erase(times.begin(), times.begin() + settling);
  return median(times);
}

Result<double> HeterogeneousMachines::run_on_gloo(const std::string& mode, int steps) const {
  return run_peer_in_namespaces(*options_, *network_, kMachines, "gloo_synthetic.py",
                                {std::to_string(steps), (folder_ / "layers.json").string(), mode});
}

Result<double> HeterogeneousMachines::seconds_without_links(const planning::Plan& plan) const {
  MOTLEY_ASSIGN(planning::Problem problem, planning::problem_of_plan(profile_, cluster_, plan));
  for (planning::Link& link : problem.links) link = {};
  for (planning::Type& type : problem.types) type.bytes_per_second = std::numeric_limits<double>::infinity();
  MOTLEY_ASSIGN(const planning::Timeline timeline, planning::simulate(problem, plan));
  return timeline.step_seconds;
}

Result<planning::Plan> HeterogeneousMachines::balanced_data_parallelism(const planning::Plan& names) const {
  planning::Plan plan = names;
  plan.micro_batches = 1;
  plan.stages = {{.first_layer = 0,
                  .last_layer = static_cast<int>(plan.layers.size()) - 1,
                  .replicas = {},
                  .gradient_sync = planning::GradientSync::kRing}};
  std::vector<planning::WorkerSpeed> speeds;
  for (std::size_t type = 0; type < cluster_.device_types.size(); ++type) {
    for (std::int64_t i = 0; i < cluster_.device_types[type].count; ++i) {
      speeds.push_back({static_cast<int>(type), 1});
      plan.stages[0].replicas.push_back({cluster_.device_types[type].name, 1, 1.0 / kMachines});
    }
  }
  MOTLEY_ASSIGN(const planning::Problem types, planning::problem_of_plan(profile_, cluster_, plan));
  std::vector<int> places(speeds.size());
  std::iota(places.begin(), places.end(), 0);
  MOTLEY_ASSIGN(planning::PlacedPlan balanced,
                planning::make_placement(planning::problem_of_workers(types, speeds), plan, places));
  for (std::size_t i = 0; i < plan.stages[0].replicas.size(); ++i) {
    plan.stages[0].replicas[i].share = balanced.plan.stages[0].replicas[i].share;
  }
  return plan;
}

std::string describe_stages(const planning::Plan& plan) {
  std::string text;
  for (const planning::Stage& stage : plan.stages) {
    text += text.empty() ? "" : " | ";
    for (const planning::Replicas& replicas : stage.replicas) {
      text += fmt::format("{}{}x{}", text.empty() || text.back() == ' ' ? "" : "+", replicas.count, replicas.type);
    }
    text += fmt::format("[{}-{}]", stage.first_layer, stage.last_layer);
  }
  return text + fmt::format(", {} micro-batches", plan.micro_batches);
}

}  // namespace motley::bench
