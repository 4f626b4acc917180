// Four unlike machines on links of 1 Gb/s (examples/unequal): the plan that `motley plan --mix` makes, data parallelism
// with shares by speed, and data parallelism with equal shares on Gloo, as TAPP compares (Mao et al. 2021). Networks
// and devices are imitated: all sides sleep for what the same estimate says that a layer takes, and send real bytes.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/network_namespaces.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/file.h"
#include "motley/base/units.h"
#include "motley/cluster/cluster.h"
#include "motley/cost/problem.h"
#include "motley/model/tables.h"
#include "motley/planner/repartition.h"
#include "motley/transport/session.h"

namespace motley::bench {
namespace {

constexpr int kMachines = 4;
constexpr double kLinkBytesPerSecond = 125e6;
constexpr int kMostLayers = 32;
constexpr int kSteps = 6;
constexpr int kSettledStep = 1;  // before the first that counts
constexpr double kRunSeconds = 500;
constexpr std::int64_t kTappBatch = 32;  // a machine, of the rows against TAPP's figures
constexpr const char* kTransformer = "transformer";
constexpr const char* kModels[] = {"alexnet", "vgg11", "resnet18", kTransformer};
constexpr std::int64_t kBatches[] = {8, 32, 128};

struct Times {
  double step = 0;
  double waiting = 0;  // share of the step, the mean over the workers
};

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
    std::string hosts;
    for (int at = 0; at < kMachines; ++at) hosts += network_->address(at) + ":29400\n";
    MOTLEY_TRY(write_file(folder_ / "hosts", hosts));
    MOTLEY_ASSIGN(cluster_, cluster::read_cluster(cluster_file()));

    std::vector<double> ratios, reductions;
    double worst = -1;
    std::string worst_case;
    for (const char* model : kModels) {
      MOTLEY_ASSIGN(const model::Graph graph, graph_of(model));
      for (const std::int64_t batch : kBatches) {
        MOTLEY_TRY(prepare(graph, kMachines * batch));
        MOTLEY_ASSIGN(const Times planned, train("plan.json"));
        MOTLEY_ASSIGN(const Times parallel, is_parallel_ ? Result<Times>(planned) : train("parallel.json"));
        MOTLEY_ASSIGN(const Times bsp, train_on_gloo());
        const std::string name = fmt::format("tapp-{}-batch-{}", model, batch);
        const std::string note = fmt::format(
            "{} a step ({} predicted) by {}; balanced data parallelism {}, equal shares on Gloo {}; imitated devices, "
            "1 Gb/s",
            format_seconds(planned.step), format_seconds(plan_.predicted.step_seconds), describe(plan_),
            format_seconds(parallel.step), format_seconds(bsp.step));
        const double ratio = bsp.step / planned.step, reduction = 1 - planned.waiting / bsp.waiting;
        rows_.add(name, "step_ratio_bsp", ratio, "ratio", true, {}, {}, 1.0, note);
        rows_.add(name, "step_ratio_balanced", parallel.step / planned.step, "ratio", true, {}, {}, 1.0, "");
        rows_.add(name, "communication_share_reduction", reduction, "share", true, {}, {}, {},
                  fmt::format("workers wait for {:.3f} of a step, on Gloo {:.3f}", planned.waiting, bsp.waiting));
        if (batch == kTappBatch) {
          ratios.push_back(ratio);
          reductions.push_back(reduction);
        }
        const double loss = planned.step / std::min(planned.step, parallel.step) - 1;
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
  std::filesystem::path cluster_file() const { return options_.source_folder / "examples/unequal/cluster.yaml"; }

  static std::string describe(const plan::Plan& plan) {
    std::string text;
    for (const plan::Stage& stage : plan.stages) {
      text += text.empty() ? "" : " | ";
      for (const plan::Replicas& replicas : stage.replicas) {
        text += fmt::format("{}{}x{}", text.empty() || text.back() == ' ' ? "" : "+", replicas.count, replicas.type);
      }
      text += fmt::format("[{}-{}]", stage.first_layer, stage.last_layer);
    }
    return text + fmt::format(", {} micro-batches", plan.micro_batches);
  }

  // A published table's, or that of a transformer like GPT-2 whose vocabulary is bytes: 6 blocks, 512 wide, 128 tokens.
  Result<model::Graph> graph_of(const std::string& name) const {
    if (name != kTransformer) return model::table(name);
    const std::vector<std::string> flags = {"--model.layers", "6", "--model.width",   "512", "--model.heads", "8",
                                            "--batch",        "4", "--data.sequence", "128"};
    MOTLEY_ASSIGN(const model::Profile profile,
                  measure_profile(options_, options_.source_folder / "examples/text/job.yaml", flags, "1,4", 5));
    return model::without_step_layer(profile).graph;
  }

  // The profile, the plan and its rivals for this network and batch.
  Status prepare(const model::Graph& graph, std::int64_t batch) {
    std::vector<model::DeviceSpeed> speeds;
    for (const cluster::DeviceType& type : cluster_.device_types) {
      speeds.push_back({.type = type.name,
                        .flops_per_second = type.speed->flops_per_second,
                        .bytes_per_second = type.speed->memory_bytes_per_second,
                        .fixed_seconds = type.speed->fixed_seconds,
                        .lookups_per_second = type.speed->memory_bytes_per_second});
    }
    batch_ = batch;
    profile_ = model::coarsen(model::estimate(graph, speeds, static_cast<double>(batch) / kMachines), kMostLayers);
    MOTLEY_TRY(write_file(folder_ / "profile.json", model::to_json(profile_)));
    const std::filesystem::path file = folder_ / "plan.json";
    MOTLEY_ASSIGN(const auto process, ChildProcess::start({options_.motley.string(), "plan", "--profile",
                                                           (folder_ / "profile.json").string(), "--cluster",
                                                           cluster_file().string(), "--batch", std::to_string(batch),
                                                           "--goal", "step", "--mix", "--output", file.string()}));
    MOTLEY_TRY(process->finish(Deadline::after(kRunSeconds)));
    MOTLEY_ASSIGN(plan_, plan::read_plan(file));
    MOTLEY_ASSIGN(const plan::Plan parallel, parallel_plan());
    is_parallel_ = parallel.stages == plan_.stages && parallel.micro_batches == plan_.micro_batches;
    MOTLEY_TRY(write_file(folder_ / "parallel.json", plan::to_json(parallel)));
    return write_layers();
  }

  // One stage of all machines, each with the share of the batch that its speed deserves.
  Result<plan::Plan> parallel_plan() const {
    plan::Plan plan = plan_;
    plan.micro_batches = 1;
    plan.stages = {{.first_layer = 0,
                    .last_layer = static_cast<int>(plan.layers.size()) - 1,
                    .replicas = {},
                    .exchange = plan::Exchange::kRing}};
    std::vector<planner::WorkerSpeed> speeds;
    for (std::size_t type = 0; type < cluster_.device_types.size(); ++type) {
      for (std::int64_t i = 0; i < cluster_.device_types[type].count; ++i) {
        speeds.push_back({static_cast<int>(type), 1});
        plan.stages[0].replicas.push_back({cluster_.device_types[type].name, 1, 1.0 / kMachines});
      }
    }
    MOTLEY_ASSIGN(const cost::Problem types, cost::problem_of_plan(profile_, cluster_, plan));
    std::vector<int> places(speeds.size());
    std::iota(places.begin(), places.end(), 0);
    MOTLEY_ASSIGN(planner::Placement balanced,
                  planner::placement_of(planner::problem_of_workers(types, speeds), plan, places));
    for (std::size_t i = 0; i < plan.stages[0].replicas.size(); ++i) {
      plan.stages[0].replicas[i].share = balanced.plan.stages[0].replicas[i].share;
    }
    return plan;
  }

  // For the peer: what each layer takes on each machine with an equal share.
  Status write_layers() const {
    auto by_rank = nlohmann::json::array();
    for (const cluster::DeviceType& type : cluster_.device_types) {
      for (std::int64_t i = 0; i < type.count; ++i) {
        auto layers = nlohmann::json::array();
        const model::DeviceProfile& device = *profile_.device(type.name);
        for (std::size_t layer = 0; layer < device.layers.size(); ++layer) {
          const double samples = static_cast<double>(batch_) / kMachines;
          layers.push_back({{"parameters", profile_.graph.layers[layer].parameters},
                            {"forward", device.layers[layer].forward.at(samples)},
                            {"backward", device.layers[layer].backward.at(samples)}});
        }
        by_rank.push_back(std::move(layers));
      }
    }
    return write_file(folder_ / "layers.json", by_rank.dump());
  }

  Result<Times> train(const std::string& plan_file) {
    MOTLEY_ASSIGN(const plan::Plan plan, plan::read_plan(folder_ / plan_file));
    std::int64_t workers = 0;
    for (const plan::Stage& stage : plan.stages) {
      for (const plan::Replicas& replicas : stage.replicas) workers += replicas.count;
    }
    const std::filesystem::path run = folder_ / "run";
    const std::filesystem::path job = folder_ / "job.yaml";
    MOTLEY_TRY(write_file(
        job, fmt::format("name: bench-tapp\nmodel:\n  name: imitation\n  path: profile.json\nplan: {}\nbatch: {}\n"
                         "steps: {}\nshares:\n  mode: fixed\ndeadline:\n  join: 120\n  step: 120\n",
                         plan_file, batch_, kSteps)));
    std::string hosts;
    for (int at = 0; at < workers; ++at) hosts += network_->address(at) + ":29400\n";
    MOTLEY_TRY(write_file(folder_ / "hosts", hosts));
    const std::string secret = "MOTLEY_SECRET=" + transport::Secret::generate().hex();
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int rank = 0; rank < workers; ++rank) {
      std::vector<std::string> command = network_->host_prefix(rank);
      for (const std::string& word :
           {options_.motley.string(), std::string("train"), job.string(), std::string("--run-directory"), run.string(),
            std::string("--overwrite"), std::string("--quiet"), std::string("--hosts"), (folder_ / "hosts").string(),
            std::string("--rank"), std::to_string(rank)}) {
        command.push_back(word);
      }
      MOTLEY_ASSIGN(auto process, ChildProcess::start(command, {secret}));
      ranks.push_back(std::move(process));
    }
    const Deadline deadline = Deadline::after(kRunSeconds);
    for (const auto& rank : ranks) MOTLEY_TRY(rank->finish(deadline));
    return read_times(run);
  }

  static Result<Times> read_times(const std::filesystem::path& run) {
    MOTLEY_ASSIGN(const std::string text, read_file(run / "metrics.jsonl"));
    std::istringstream lines(text);
    std::vector<double> steps, waiting;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("step_seconds") || json["step"].get<int>() <= kSettledStep) continue;
      const std::vector<double> computed = json["compute_seconds"];
      steps.push_back(json["step_seconds"]);
      waiting.push_back(1 - std::reduce(computed.begin(), computed.end()) /
                                (steps.back() * static_cast<double>(computed.size())));
    }
    if (steps.empty()) return fail(ErrorCode::kInternal, "the job did not finish; what it said is above");
    return Times{median(steps), std::max(0.0, median(waiting))};
  }

  Result<Times> train_on_gloo() {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int rank = 0; rank < kMachines; ++rank) {
      std::vector<std::string> command = network_->host_prefix(rank);
      for (const std::string& word :
           {options_.python.string(), (options_.source_folder / "bench/peers/gloo_imitation.py").string(),
            std::to_string(rank), std::to_string(kMachines), network_->address(0) + ":29500", std::string("eth0"),
            std::to_string(kSteps), (folder_ / "layers.json").string()}) {
        command.push_back(word);
      }
      MOTLEY_ASSIGN(auto process, ChildProcess::start(command));
      ranks.push_back(std::move(process));
    }
    const Deadline deadline = Deadline::after(kRunSeconds);
    MOTLEY_ASSIGN(const std::string line, ranks[0]->read_line(deadline));
    for (const auto& rank : ranks) MOTLEY_TRY(rank->finish(deadline));
    Times times;
    std::istringstream(line) >> times.step >> times.waiting;
    if (times.step <= 0) return fail(ErrorCode::kInternal, "the peer said '{}'", line);
    return times;
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  std::unique_ptr<NetworkNamespaces> network_;
  cluster::Cluster cluster_;
  model::Profile profile_;
  plan::Plan plan_;
  bool is_parallel_ = false;  // the plan is data parallelism itself
  std::int64_t batch_ = 0;
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
