// Four heterogeneous machines on links of 1 Gb/s (examples/heterogeneous): the plan that `motley plan
// --heterogeneous-stages` makes, data parallelism with shares by speed, and data parallelism with equal shares on Gloo:
// bulk-synchronous, with which TAPP compares (Mao et al. 2021), and overlapped, as DDP. Networks are synthetic and
// devices emulated: all sides sleep for what the same estimate says that a layer takes, and send real bytes. A step's
// communication share is what of it would go with links that take no time.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/namespaced_job.h"
#include "bench/network_namespaces.h"
#include "bench/pipeline_bench.h"
#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cluster/cluster.h"
#include "motley/model/tables.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/replan/repartition.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::bench {
namespace {

constexpr int kMachines = 4;
constexpr double kLinkBytesPerSecond = 125e6;
constexpr int kMaxLayers = 32;
constexpr int kSteps = 4;
constexpr int kSettledStep = 1;  // before the first that counts
constexpr double kPlanSeconds = 120;
constexpr std::int64_t kTappBatch = 32;  // a machine, of the rows against TAPP's figures
constexpr const char* kTransformer = "transformer";
constexpr const char* kModels[] = {"alexnet", "vgg11", "resnet18", kTransformer};
constexpr std::int64_t kBatches[] = {8, 32, 128};

class Tapp {
 public:
  Tapp(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    auto network = NetworkNamespaces::create(kMachines, kLinkBytesPerSecond);
    if (!network) {
      rows_.left_out("tapp-third-best-of-four and auto-choice", network.error().message);
      return rows_.take();
    }
    network_ = std::move(*network);
    MOTLEY_ASSIGN(cluster_, cluster::read_cluster(cluster_file()));

    std::vector<double> ratios, reductions;
    double worst = -1;
    std::string worst_case;
    for (const char* model : kModels) {
      MOTLEY_ASSIGN(const model::Graph graph, load_graph(model));
      for (const std::int64_t batch : kBatches) {
        MOTLEY_TRY(prepare(graph, kMachines * batch));
        MOTLEY_ASSIGN(const double planned, train("plan.json"));
        MOTLEY_ASSIGN(const double parallel, is_parallel_ ? Result<double>(planned) : train("parallel.json"));
        MOTLEY_ASSIGN(const double bsp, train_on_gloo("bsp"));
        MOTLEY_ASSIGN(const double ddp, train_on_gloo("ddp"));
        MOTLEY_ASSIGN(const double planned_computing, computing(plan_));
        const std::string name = fmt::format("tapp-{}-batch-{}", model, batch);
        const std::string note = fmt::format(
            "{} a step ({} predicted) by {}; balanced data parallelism {}, equal shares on Gloo {}, overlapped {}; "
            "emulated devices, "
            "1 Gb/s",
            format_seconds(planned), format_seconds(plan_.predicted.step_seconds), describe(plan_),
            format_seconds(parallel), format_seconds(bsp), format_seconds(ddp));
        const double share = std::max(0.0, 1 - planned_computing / planned), bsp_share = 1 - slowest_ / bsp;
        const double ratio = bsp / planned, reduction = 1 - share / bsp_share;
        rows_.add(name, "step_ratio_bsp", ratio, "ratio", true, {}, {}, 1.0, note);
        rows_.add(name, "step_ratio_ddp", ddp / planned, "ratio", true, {}, {}, 1.0, "");
        rows_.add(name, "step_ratio_balanced", parallel / planned, "ratio", true, {}, {}, 1.0, "");
        rows_.add(
            name, "communication_share_reduction", reduction, "share", true, {}, {}, {},
            fmt::format("{:.3f} of a step would go with links that take no time, on Gloo {:.3f}", share, bsp_share));
        if (batch == kTappBatch) {
          ratios.push_back(ratio);
          reductions.push_back(reduction);
        }
        const double loss = planned / std::min({planned, parallel, bsp, ddp}) - 1;
        if (loss > worst) {
          worst = loss;
          worst_case = fmt::format("worst of {}: {}", std::size(kModels) * std::size(kBatches), name);
        }
      }
    }
    std::ranges::sort(ratios);
    std::ranges::sort(reductions);
    const std::string four = "AlexNet, VGG-11, ResNet-18, a transformer at batch 32 a machine";
    rows_.add("tapp-third-best-of-four", "step_ratio_bsp", ratios[1], "ratio", true, 1.37, {}, {}, four);
    rows_.add("tapp-third-best-of-four", "communication_share_reduction", reductions[1], "share", true, 0.4892, {}, {},
              four);
    rows_.add("auto-choice", "worst_loss_to_best", worst, "share", false, 0.05, {}, {}, worst_case);
    return rows_.take();
  }

 private:
  std::filesystem::path cluster_file() const { return options_.source_folder / "examples/heterogeneous/cluster.yaml"; }

  static std::string describe(const planning::Plan& plan) {
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

  // A published table's, or that of a transformer like GPT-2 whose vocabulary is bytes: 6 blocks, 512 wide, 128 tokens.
  Result<model::Graph> load_graph(const std::string& name) const {
    if (name != kTransformer) return model::table(name);
    const std::vector<std::string> flags = {"--model.num-layers",     "6",  "--model.hidden-size", "512",
                                            "--model.num-heads",      "8",  "--global-batch-size", "4",
                                            "--data.sequence-length", "128"};
    MOTLEY_ASSIGN(const model::Profile profile,
                  measure_profile(options_, options_.source_folder / "examples/text/job.yaml", flags, "1,4", 5));
    return model::without_step_layer(profile).graph;
  }

  // The profile, the plan and its rivals for this network and batch.
  Status prepare(const model::Graph& graph, std::int64_t batch) {
    batch_ = batch;
    profile_ = model::coarsen(model::estimate(graph, list_speeds(cluster_), static_cast<double>(batch) / kMachines),
                              kMaxLayers);
    MOTLEY_TRY(write_file(folder_ / "profile.json", model::to_json(profile_)));
    const std::filesystem::path file = folder_ / "plan.json";
    std::filesystem::remove(file);
    MOTLEY_ASSIGN(
        const auto process,
        ChildProcess::start({options_.motley.string(), "plan", "--profile", (folder_ / "profile.json").string(),
                             "--cluster", cluster_file().string(), "--global-batch-size", std::to_string(batch),
                             "--objective", "step-time", "--heterogeneous-stages", "--output", file.string()}));
    MOTLEY_TRY(process->finish(Deadline::after(kPlanSeconds)));
    MOTLEY_ASSIGN(plan_, planning::read_plan(file));
    MOTLEY_ASSIGN(const planning::Plan parallel, parallel_plan());
    is_parallel_ = parallel.stages == plan_.stages && parallel.micro_batches == plan_.micro_batches;
    MOTLEY_TRY(write_file(folder_ / "parallel.json", planning::to_json(parallel)));
    return write_layers();
  }

  // One stage of all machines, each with the share of the batch that its speed deserves.
  Result<planning::Plan> parallel_plan() const {
    planning::Plan plan = plan_;
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

  // A step of the plan if links took no time, replayed.
  Result<double> computing(const planning::Plan& plan) const {
    MOTLEY_ASSIGN(planning::Problem problem, planning::problem_of_plan(profile_, cluster_, plan));
    for (planning::Link& link : problem.links) link = {};
    for (planning::Type& type : problem.types) type.bytes_per_second = std::numeric_limits<double>::infinity();
    MOTLEY_ASSIGN(const planning::Timeline timeline, planning::simulate(problem, plan));
    return timeline.step_seconds;
  }

  // For the peer: what each layer takes on each machine with an equal share.
  Status write_layers() {
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

  Result<double> train(const std::string& plan_file) {
    MOTLEY_ASSIGN(const planning::Plan plan, planning::read_plan(folder_ / plan_file));
    std::int64_t workers = 0;
    for (const planning::Stage& stage : plan.stages) {
      for (const planning::Replicas& replicas : stage.replicas) workers += replicas.count;
    }
    const std::filesystem::path job = folder_ / "job.yaml";
    MOTLEY_TRY(write_file(
        job, fmt::format(
                 "name: bench-tapp\nmodel:\n  name: synthetic\n  path: profile.json\nplan: {}\nglobal_batch_size: {}\n"
                 "steps: {}\nbatch_split:\n  mode: fixed\ndeadline:\n  join: 120s\n  step: 120s\n",
                 plan_file, batch_, kSteps)));
    MOTLEY_ASSIGN(std::vector<double> steps,
                  train_in_namespaces(options_, *network_, folder_, static_cast<int>(workers), job, {}));
    if (steps.size() != kSteps) {
      return fail(ErrorCode::kInternal, "the job ended after {} of {} steps", steps.size(), kSteps);
    }
    steps.erase(steps.begin(), steps.begin() + kSettledStep);
    return median(steps);
  }

  Result<double> train_on_gloo(const std::string& mode) const {
    return run_peer_in_namespaces(options_, *network_, kMachines, "gloo_synthetic.py",
                                  {std::to_string(kSteps), (folder_ / "layers.json").string(), mode});
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  std::unique_ptr<NetworkNamespaces> network_;
  cluster::Cluster cluster_;
  model::Profile profile_;
  planning::Plan plan_;
  bool is_parallel_ = false;  // the plan is data parallelism itself
  std::int64_t batch_ = 0;
  double slowest_ = 0;  // seconds that the slowest machine computes an equal share
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_tapp(const BenchOptions& options) {
  if (options.quick) {
    RowList(options).left_out("tapp-third-best-of-four and auto-choice", "they take minutes");
    return std::vector<BenchRow>();
  }
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return Tapp(options, folder.path()).run();
}

}  // namespace motley::bench
