// HeterPS's comparison (Liu et al., arXiv 2111.10635): CTRDNN, 2EMB, MATCHNET and NCE on CPU cores and two kinds of GPU
// at prices (examples/clicks/cluster.yaml), each method's plan for the lowest cost at half of the throughput that all
// devices together could reach; the cheapest plans of CPU cores alone and of one kind of GPU alone that reach it, or
// the most that these can do; the exact plan's own devices (where it has one kind only: those of AIBox's placement)
// placed as PaddleFleetX's examples do by hand, with their eight micro-batches, filled and drained, in equal parts; and
// PyTorch's DDP with EmbeddingBag(sparse=True) on Gloo. Plans of several methods that have the same stages are measured
// once.
//
// What a CPU core takes is measured here by `motley profile`; what a GPU takes for dense layers follows from the speeds
// in the cluster file, which says where they come from, and its rows are looked up by the cores of its host that its
// price includes, each as fast as one here. The cores of the parameter server are paid for, too.
//
// Everything is real but the speed of the devices: their times and links are slowed down alike, so that this machine
// can play two dozen of them, each in a namespace behind its link. So are a step's samples a second of slow motion, and
// ratios between them are those of the devices. Rows come from a parameter server behind no link: what they take a
// device is in its times.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/namespaced_job.h"
#include "bench/network_namespaces.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/server_process.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cluster/cluster.h"
#include "motley/planning/cost/problem.h"

namespace motley::bench {
namespace {

constexpr std::int64_t kBatch = 4096;
constexpr std::int64_t kHandMicroBatches = 8;
constexpr double kRooflineBatch = 256;          // at which an estimated layer is bound by arithmetic or by memory
constexpr double kMinThroughputFraction = 0.5;  // of the most samples a second that all devices reach together
constexpr double kSlowSamplesPerSecond = 1500;  // of the planned run, here
constexpr int kSteps = 6;
constexpr int kSettledSteps = 2;  // before the first that counts
constexpr int kFewSteps = 4;      // of rivals, which take longer
constexpr int kFewSettledSteps = 1;
constexpr double kPlanSeconds = 600;
constexpr double kMethodSeconds = 10;  // that each method may look for a plan
constexpr double kProfileSeconds = 40;
// Of the parameter server, for each core that does lookups; the paper counts such cores and does not say how many.
constexpr double kServersPerCore = 0.25;
constexpr const char* kCore = "cpu-core";
constexpr const char* kProfileBatches = "16,64,256,1024";
constexpr const char* kInputs =
    "emulated: a CPU core's times as measured here, a GPU's dense layers by the speeds of "
    "examples/clicks/cluster.yaml, "
    "its lookups by 2 (T4) or 6 (V100) such cores, and a quarter of a core of the parameter server for each that does "
    "lookups";

// Methods beside `exact`, and what their rows are called.
struct Method {
  const char* name;
  const char* row;
};
constexpr Method kMethods[] = {{"rl-lstm", "ratio_to_rl_lstm"},    {"rl-rnn", "ratio_to_rl_rnn"},
                               {"bayesian", "ratio_to_bayesian"},  {"genetic", "ratio_to_genetic"},
                               {"greedy", "ratio_to_greedy"},      {"random", "ratio_to_random"},
                               {"heuristic", "ratio_to_heuristic"}};

// Cores of a GPU's host that its price includes: g4dn.xlarge has 4 hyperthreads, and a server of the paper 48 cores for
// 8 cards.
constexpr std::pair<const char*, double> kHostCores[] = {{"t4", 2}, {"v100", 6}};

// Cores that do a device's lookups: those of its host, or itself.
double count_lookup_cores(const std::string& type) {
  const auto* const host = std::ranges::find(kHostCores, type, &std::pair<const char*, double>::first);
  return host == std::end(kHostCores) ? 1 : host->second;
}

struct Model {
  const char* name;
  int hand_cpu_layers;  // that the examples place on CPUs, from the first one on
  std::vector<std::string> flags;
};
const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"matchnet", 4, {}}, {"ctrdnn", 1, {}}, {"2emb", 1, {}}, {"nce", 1, {"--model.outputs", "22"}}};
  return all;
}

struct Measured {
  std::string plan;           // its stages, or why there is none
  double throughput = 0;      // samples a second of the devices
  double price_per_hour = 0;  // of them and the parameter server's cores
  double predicted = 0;       // samples a second; 0: not planned
  double per_dollar() const { return price_per_hour > 0 ? throughput * 3600 / price_per_hour : 0; }
  double error() const { return std::abs(throughput / predicted - 1); }
};

class Heterps {
 public:
  Heterps(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    if (auto network = NetworkNamespaces::create(1, 0); !network) {
      rows_.left_out("heterps-*", network.error().message);
      return rows_.take();
    }
    MOTLEY_ASSIGN(cluster_, cluster::read_cluster(cluster_file()));
    for (const Model& model : models()) MOTLEY_TRY(compare(model));
    return rows_.take();
  }

 private:
  Status compare(const Model& model) {
    model_ = &model;
    MOTLEY_TRY(prepare_profile());
    MOTLEY_ASSIGN(const planning::Plan fastest, make_plan("exact", cluster_, {"--objective", "throughput"}));
    min_throughput_ = kMinThroughputFraction * fastest.predicted.throughput;
    const std::vector<std::string> min_cost = {"--objective", "cost", "--min-throughput",
                                               fmt::format("{}", min_throughput_)};
    MOTLEY_ASSIGN(const planning::Plan best, make_plan("exact", cluster_, min_cost));
    MOTLEY_TRY(slow_down_to(best.predicted.throughput));

    MOTLEY_ASSIGN(const Measured planned, train(best, kSteps, kSettledSteps));
    std::vector<std::pair<planning::Plan, Measured>> known = {{best, planned}};
    const auto measure = [&](const planning::Plan& plan) -> Result<Measured> {
      for (const auto& [other, measured] : known) {
        if (other.stages == plan.stages && other.micro_batches == plan.micro_batches) return measured;
      }
      MOTLEY_ASSIGN(const Measured measured, train(plan, kFewSteps, kFewSettledSteps));
      known.emplace_back(plan, measured);
      return measured;
    };
    std::vector<Measured> others;
    std::optional<planning::Plan> heuristic;
    for (const Method& method : kMethods) {
      const auto plan = make_plan(method.name, cluster_, min_cost);
      if (!plan) {  // what it said is above
        others.push_back({.plan = "none: it found no plan that reaches the floor"});
        continue;
      }
      if (std::string_view(method.name) == "heuristic") heuristic = *plan;
      MOTLEY_ASSIGN(Measured measured, measure(*plan));
      others.push_back(std::move(measured));
    }
    Measured barrier{.plan = "none: neither the plan nor AIBox's placement has both kinds of device"};
    auto hand = hand_plan(best);
    if (!hand && heuristic) hand = hand_plan(*heuristic);
    if (hand) {
      MOTLEY_ASSIGN(barrier, train(*hand, kFewSteps, kFewSettledSteps));
    }
    std::vector<Measured> single, ddp;
    for (const bool gpus : {false, true}) {
      MOTLEY_ASSIGN(const planning::Plan plan, single_type_plan(gpus, min_cost));
      MOTLEY_ASSIGN(Measured measured, measure(plan));
      single.push_back(std::move(measured));
      MOTLEY_ASSIGN(measured, train_with_ddp(plan.stages[0].replicas[0].type));
      ddp.push_back(std::move(measured));
    }
    report(known, others, single, barrier, ddp);
    return {};
  }

  // What each layer takes on each type: of GPUs from the cluster file's speeds and the sizes of the network that is
  // trained, but for lookups, and of a CPU core measured.
  Status prepare_profile() {
    const std::filesystem::path file = folder_ / "profile.json";
    std::vector<std::string> command = {options_.motley.string(),
                                        "profile",
                                        job().string(),
                                        "--estimate",
                                        "--cluster",
                                        cluster_file().string(),
                                        "--model.name",
                                        model_->name,
                                        "--data.num-samples",
                                        std::to_string(kBatch),
                                        "--global-batch-size",
                                        fmt::format("{:.0f}", kRooflineBatch),
                                        "--output",
                                        file.string(),
                                        "--overwrite"};
    command.insert(command.end(), model_->flags.begin(), model_->flags.end());
    MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
    MOTLEY_TRY(process->finish(Deadline::after(kPlanSeconds)));
    MOTLEY_ASSIGN(profile_, model::read_profile(file));
    std::vector<std::string> flags = {
        "--model.name", model_->name, "--data.num-samples",  std::to_string(kBatch), "--threads", "1",
        "--device",     "cpu",        "--global-batch-size", std::to_string(kBatch)};
    flags.insert(flags.end(), model_->flags.begin(), model_->flags.end());
    MOTLEY_ASSIGN(const model::Profile here, measure_profile(options_, job(), flags, kProfileBatches, kProfileSeconds));
    profile_.graph.distinct_lookups = here.graph.distinct_lookups;  // of batches up to a whole step's
    const std::vector<model::LayerTime>& core = here.devices.at(0).layers;
    for (model::DeviceProfile& device : profile_.devices) {
      if (device.type == kCore) device.rule = here.devices[0].rule;
      for (std::size_t layer = 0; layer < device.layers.size(); ++layer) {
        if (device.type == kCore) {
          device.layers[layer] = core.at(layer);
        } else if (profile_.graph.layers[layer].lookups > 0) {
          device.layers[layer] = core.at(layer);
          slow_down({&device.layers[layer], 1}, 1 / count_lookup_cores(device.type));
        }
      }
    }
    return write_file(file, model::to_json(profile_));
  }

  std::filesystem::path cluster_file() const { return options_.source_folder / "examples/clicks/cluster.yaml"; }
  std::filesystem::path job() const { return options_.source_folder / "examples/clicks/job.yaml"; }

  Result<planning::Plan> make_plan(const std::string& method, const cluster::Cluster& cluster,
                                   const std::vector<std::string>& flags) const {
    const std::filesystem::path file = folder_ / "plan.json";
    std::filesystem::remove(file);
    MOTLEY_TRY(write_file(folder_ / "cluster.yaml", cluster::to_yaml(cluster)));
    std::vector<std::string> command = {options_.motley.string(),
                                        "plan",
                                        "--profile",
                                        (folder_ / "profile.json").string(),
                                        "--cluster",
                                        (folder_ / "cluster.yaml").string(),
                                        "--global-batch-size",
                                        std::to_string(kBatch),
                                        "--method",
                                        method,
                                        "--time-limit",
                                        method == "exact" ? "300s" : fmt::format("{:g}s", kMethodSeconds),
                                        "--output",
                                        file.string()};
    command.insert(command.end(), flags.begin(), flags.end());
    MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
    MOTLEY_TRY(process->finish(Deadline::after(kPlanSeconds)));
    return planning::read_plan(file);
  }

  // The cheapest plan of CPU cores alone that reaches the floor, or of the GPU type which does most for its cost; of a
  // type that does not reach it, the most that it can do.
  Result<planning::Plan> single_type_plan(bool gpus, const std::vector<std::string>& min_cost) const {
    std::optional<planning::Plan> best;
    for (const cluster::DeviceType& type : cluster_.device_types) {
      if ((type.kind == cluster::DeviceKind::kCuda) != gpus) continue;
      cluster::Cluster alone = cluster_;
      for (cluster::DeviceType& other : alone.device_types) {
        if (other.name != type.name) other.count = 0;
      }
      for (cluster::Node& node : alone.nodes) {
        std::erase_if(node.devices, [&](const cluster::NodeDevices& held) { return held.type != type.name; });
      }
      const char* const method = gpus ? "gpu-only" : "cpu-only";
      Result<planning::Plan> cheapest = make_plan(method, alone, min_cost);
      if (!cheapest) cheapest = make_plan(method, alone, {"--objective", "throughput"});
      MOTLEY_ASSIGN(planning::Plan plan, std::move(cheapest));
      if (!best ||
          plan.predicted.throughput / compute_price(plan) > best->predicted.throughput / compute_price(*best)) {
        best = std::move(plan);
      }
    }
    return *best;
  }

  // The devices of a plan, placed as the examples do by hand.
  Result<planning::Plan> hand_plan(const planning::Plan& plan) const {
    planning::Plan hand = plan;
    const int last = static_cast<int>(plan.layers.size()) - 1;
    hand.stages = {{.first_layer = 0,
                    .last_layer = model_->hand_cpu_layers - 1,
                    .replicas = {},
                    .gradient_sync = planning::GradientSync::kParameterServer},
                   {.first_layer = model_->hand_cpu_layers,
                    .last_layer = last,
                    .replicas = {},
                    .gradient_sync = planning::GradientSync::kRing}};
    std::array<std::int64_t, 2> counts = {};
    for (const planning::Stage& stage : plan.stages) {
      for (const planning::Replicas& replicas : stage.replicas) {
        const bool gpu = cluster_.device_type(replicas.type)->kind == cluster::DeviceKind::kCuda;
        hand.stages[gpu ? 1 : 0].replicas.push_back({replicas.type, replicas.count, 0});
        counts[gpu ? 1 : 0] += replicas.count;
      }
    }
    for (std::size_t stage = 0; stage < 2; ++stage) {
      if (counts[stage] == 0) return fail(ErrorCode::kUnavailable, "the plan has one kind of device");
      for (planning::Replicas& replicas : hand.stages[stage].replicas) {
        replicas.share = 1 / static_cast<double>(counts[stage]);
      }
      if (counts[stage] == 1) hand.stages[stage].gradient_sync = planning::GradientSync::kNone;
    }
    hand.predicted = {};
    hand.schedule = planning::PipelineSchedule::kGPipe;
    hand.micro_batches = kHandMicroBatches;
    return hand;
  }

  static std::vector<std::string> list_types(const planning::Plan& plan) {
    std::vector<std::string> types;
    for (const planning::Stage& stage : plan.stages) {
      for (const planning::Replicas& replicas : stage.replicas) {
        types.insert(types.end(), static_cast<std::size_t>(replicas.count), replicas.type);
      }
    }
    return types;
  }

  // An hour of a plan's devices, and of the parameter server's cores.
  double compute_price(const planning::Plan& plan) const {
    double price = 0;
    for (const std::string& type : list_types(plan)) price += cluster_.device_type(type)->price_per_hour;
    double cores = 0;  // that do lookups
    for (const planning::Replicas& replicas : plan.stages.front().replicas) {
      cores += static_cast<double>(replicas.count) * count_lookup_cores(replicas.type);
    }
    return price + std::ceil(kServersPerCore * cores) * cluster_.device_type(kCore)->price_per_hour;
  }

  static std::string describe(const planning::Plan& plan) {
    std::string text;
    for (const planning::Stage& stage : plan.stages) {
      text += text.empty() ? "" : " | ";
      std::string devices;
      for (const planning::Replicas& replicas : stage.replicas) {
        devices += fmt::format("{}{}x{}", devices.empty() ? "" : "+", replicas.count, replicas.type);
      }
      text += fmt::format("{}[{}-{}]", devices, stage.first_layer, stage.last_layer);
    }
    return text;
  }

  Status slow_down_to(double throughput) {
    slowness_ = throughput / kSlowSamplesPerSecond;
    model::Profile slow = profile_;
    for (model::DeviceProfile& device : slow.devices) slow_down(device.layers, slowness_);
    return write_file(folder_ / "emulation.json", model::to_json(slow));
  }

  // A namespace for each of these devices, and one more for the server.
  Result<std::unique_ptr<NetworkNamespaces>> connect(const std::vector<std::string>& types) const {
    MOTLEY_ASSIGN(const planning::Problem problem, planning::make_problem(profile_, cluster_, {.batch = kBatch}));
    std::vector<double> rates;
    for (const std::string& type : types) {
      const auto found = std::ranges::find(problem.types, type, &planning::Type::name);
      rates.push_back(found->bytes_per_second / slowness_);
    }
    rates.push_back(0);
    return NetworkNamespaces::create(rates);
  }

  Result<Measured> train(const planning::Plan& plan, int steps, int settled) const {
    const std::vector<std::string> types = list_types(plan);
    MOTLEY_ASSIGN(const auto network, connect(types));
    const int last = static_cast<int>(types.size());
    MOTLEY_ASSIGN(const ServerProcess server,
                  ServerProcess::start(options_, 1, {network->host_prefix(last), network->address(last)}));
    MOTLEY_TRY(write_file(folder_ / "run-plan.json", planning::to_json(plan)));
    std::vector<std::string> flags = {"--model.name",
                                      model_->name,
                                      "--data.num-samples",
                                      std::to_string(kBatch * steps),
                                      "--global-batch-size",
                                      std::to_string(kBatch),
                                      "--steps",
                                      std::to_string(steps),
                                      "--threads",
                                      "1",
                                      "--plan",
                                      (folder_ / "run-plan.json").string(),
                                      "--emulation",
                                      (folder_ / "emulation.json").string(),
                                      "--batch-split.mode",
                                      "fixed",
                                      "--gradient-sync.servers",
                                      server.address(),
                                      "--checkpoint.keep",
                                      "0",
                                      "--evaluate.every-epochs=-1",
                                      "--deadline.join",
                                      "180s",
                                      "--deadline.step",
                                      "180s"};
    flags.insert(flags.end(), model_->flags.begin(), model_->flags.end());
    MOTLEY_ASSIGN(std::vector<double> seconds,
                  train_in_namespaces(options_, *network, folder_, last, job(), flags, server.environment()));
    if (static_cast<int>(seconds.size()) != steps) {
      return fail(ErrorCode::kInternal, "the job ended after {} of {} steps", seconds.size(), steps);
    }
    seconds.erase(seconds.begin(), seconds.begin() + settled);
    return report(
        {describe(plan), kBatch * slowness_ / median(seconds), compute_price(plan), plan.predicted.throughput});
  }

  // Equal shares on all devices of a type.
  Result<Measured> train_with_ddp(const std::string& name) const {
    const cluster::DeviceType& type = *cluster_.device_type(name);
    const std::int64_t samples = kBatch / type.count;
    auto layers = nlohmann::json::array();
    const model::DeviceProfile& device = *profile_.device(name);
    for (std::size_t layer = 0; layer < device.layers.size(); ++layer) {
      layers.push_back({{"name", profile_.graph.layers[layer].name},
                        {"forward", slowness_ * device.layers[layer].forward.at(static_cast<double>(samples))},
                        {"backward", slowness_ * device.layers[layer].backward.at(static_cast<double>(samples))}});
    }
    MOTLEY_TRY(write_file(folder_ / "layers.json", layers.dump()));
    MOTLEY_ASSIGN(const auto network, connect(std::vector<std::string>(static_cast<std::size_t>(type.count), name)));
    MOTLEY_ASSIGN(const double seconds,
                  run_peer_in_namespaces(options_, *network, static_cast<int>(type.count), "gloo_clicks.py",
                                         {std::to_string(kFewSteps), std::to_string(samples), model_->name,
                                          (folder_ / "layers.json").string()}));
    return report({fmt::format("DDP on {}x{}", type.count, name),
                   static_cast<double>(samples * type.count) * slowness_ / seconds,
                   static_cast<double>(type.count) * type.price_per_hour});
  }

  const Measured& report(const Measured& measured) const {
    rows_.print(fmt::format("{}: {}", model_->name, format_text(measured)));
    return measured;
  }

  static std::string format_text(const Measured& measured) {
    if (measured.throughput == 0) return measured.plan;
    return fmt::format("{}: {:.0f} samples/s, {:.3f} an hour, {:.0f} million samples a dollar", measured.plan,
                       measured.throughput, measured.price_per_hour, 1e-6 * measured.per_dollar());
  }

  // `known`: plans that were measured, the exact one first; `others`: what those of kMethods came to.
  void report(const std::vector<std::pair<planning::Plan, Measured>>& known, const std::vector<Measured>& others,
              const std::vector<Measured>& single, const Measured& barrier, const std::vector<Measured>& ddp) {
    const auto find_best = [](const std::vector<Measured>& all) {
      return *std::ranges::max_element(all, {}, &Measured::per_dollar);
    };
    const std::string name = std::string("heterps-") + model_->name;
    const Measured& planned = known.front().second;
    std::string errors;
    for (const auto& [plan, measured] : known) {
      errors += fmt::format("{}{:+.3f}", errors.empty() ? "" : ", ", measured.throughput / measured.predicted - 1);
    }
    rows_.add(name, "prediction_error", planned.error(), "share", false, 0.10, {}, {},
              fmt::format("of the exact plan, {}; predicted {:.0f} samples/s, floor {:.0f}, {} micro-batches; measured "
                          "over predicted less 1, of each plan that was measured: {}; {}; samples a second of the "
                          "devices, played {:.0f} times as slow",
                          format_text(planned), planned.predicted, min_throughput_, known.front().first.micro_batches,
                          errors, kInputs, slowness_));
    const auto add = [&](const std::string& metric, const Measured& other) {
      const double ratio =
          other.throughput > 0 ? planned.per_dollar() / other.per_dollar() : std::numeric_limits<double>::quiet_NaN();
      rows_.add(name, metric, ratio, "ratio", true, {}, {}, 1.0, format_text(other));
    };
    add("ratio_to_best_single_type", find_best(single));
    add("ratio_to_barrier", barrier);
    add("ratio_to_ddp", find_best(ddp));
    for (std::size_t method = 0; method < others.size(); ++method) add(kMethods[method].row, others[method]);
    add("ratio_to_cpu_only", single[0]);
    add("ratio_to_gpu_only", single[1]);
    rows_.add(name, "throughput_ratio_to_cpu_only", planned.throughput / single[0].throughput, "ratio", true, {}, {},
              1.0, "published: up to 14.5 times the throughput, and 4.12 times as cheap; of other devices and counts");
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  cluster::Cluster cluster_;
  const Model* model_ = nullptr;
  model::Profile profile_;
  double min_throughput_ = 0;  // samples a second
  double slowness_ = 1;        // times as long as the devices of the table take
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_heterps(const BenchOptions& options) {
  if (options.quick) {
    RowList(options).left_out("heterps-*", "they take minutes");
    return std::vector<BenchRow>();
  }
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return Heterps(options, folder.path()).run();
}

}  // namespace motley::bench
