// Every shape of plan (one to four stages, unlike replicas, both schedules) against one worker that runs the same job:
// the weights after kSteps steps in float64, where stages add up by rings, and the losses in float32, where they add up
// at a parameter server. Networks that normalise by the batch are compared with a worker that runs the same
// micro-batches.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "bench/job_run.h"
#include "bench/measured_profile.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/planning/plan/plan.h"
#include "motley/serial/safetensors.h"

namespace motley::bench {
namespace {

constexpr std::int64_t kSteps = 50;
constexpr double kProfileSeconds = 2;  // only the layers' names are wanted

struct Network {
  std::string name;
  std::string job;  // in examples/
  std::vector<std::string> flags;
  std::int64_t batch;
  bool tied = false;  // layers share a parameter, so that several stages cannot meet at a server
};

// With larger steps ResNet-18 on eight samples amplifies the rounding of float32 until losses differ by a tenth, also
// between two runs of one worker that cut the batch otherwise.
const std::vector<Network>& networks() {
  static const std::vector<Network> all = {
      {"mlp", "fashion-mnist", {"--model.name", "mlp", "--model.hidden", "[64, 64, 64]", "--model.dropout", "0.2"}, 24},
      {"ctrdnn",
       "clicks",
       {"--data.samples", "20000", "--data.values", "3000", "--tables.place", "worker", "--tables.rows", "2000"},
       24},
      {"transformer",
       "text",
       {"--model.width", "32", "--data.sequence", "16", "--model.dropout", "0.1", "--threads", "1"},
       24},
      {"tied transformer",
       "text",
       {"--model.width", "32", "--data.sequence", "16", "--threads", "1", "--model.tied", "true", "--clip_norm", "0.5"},
       24,
       true},
      {"resnet18",
       "fashion-mnist",
       {"--model.name", "resnet18", "--model.norm", "group", "--optimizer.learning_rate", "0.001",
        "--optimizer.momentum", "0", "--optimizer.nesterov", "false"},
       8}};
  return all;
}

const Network kBatchNorm = {"resnet18 with BatchNorm",
                            "fashion-mnist",
                            {"--model.name", "resnet18", "--model.norm", "batch", "--optimizer.learning_rate", "0.001",
                             "--optimizer.momentum", "0", "--optimizer.nesterov", "false"},
                            8};

// The largest difference of any tensor, relative to its norm; of 64-bit floats.
Result<double> relative_difference(const std::string& one, const std::string& other) {
  MOTLEY_ASSIGN(const SafetensorsFile expected, parse_safetensors(std::as_bytes(std::span(one))));
  MOTLEY_ASSIGN(const SafetensorsFile seen, parse_safetensors(std::as_bytes(std::span(other))));
  double worst = 0;
  for (const SafetensorsEntry& entry : expected.entries) {
    const auto found = std::ranges::find(seen.entries, entry.name, &SafetensorsEntry::name);
    if (found == seen.entries.end() || found->shape != entry.shape || seen.entries.size() != expected.entries.size()) {
      return fail(ErrorCode::kInternal, "the runs' weights have other tensors: {}", entry.name);
    }
    if (entry.type != "F64") continue;
    double square = 0, difference = 0;
    for (std::size_t at = 0; at < entry.end - entry.begin; at += sizeof(double)) {
      double a = 0, b = 0;
      std::memcpy(&a, &expected.bytes_of(entry)[at], sizeof(double));
      std::memcpy(&b, &seen.bytes_of(*found)[at], sizeof(double));
      square += a * a;
      difference += (a - b) * (a - b);
    }
    if (difference > 0) worst = std::max(worst, std::sqrt(difference / std::max(square, 1e-300)));
  }
  return worst;
}

// Of the two runs' losses, relative, of the step where they differ most.
double loss_difference(const std::vector<double>& one, const std::vector<double>& other) {
  double worst = one.size() == other.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    worst = std::max(worst, std::abs(other[i] / one[i] - 1));
  }
  return worst;
}

class Equality {
 public:
  explicit Equality(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    double weights = 0, losses = 0;
    int shapes = 0, served = 0;
    for (const Network& network : networks()) {
      if (options_.quick && &network != &networks().front()) {
        rows_.left_out(network.name, "it takes minutes");
        continue;
      }
      MOTLEY_ASSIGN(const std::vector<std::string> layers, layers_of(network));
      MOTLEY_ASSIGN(const JobRun exact, train(network, "float64", nullptr, {}));
      MOTLEY_ASSIGN(const JobRun single, train(network, "float32", nullptr, {}));
      for (std::size_t stages = 1; stages <= 4; ++stages) {
        for (const auto schedule : {planning::Schedule::kOneForwardOneBackward, planning::Schedule::kFillDrain}) {
          const planning::Plan ring = draw(network, layers, stages, schedule, planning::Exchange::kRing);
          MOTLEY_ASSIGN(const JobRun run, train(network, "float64", &ring, {}));
          MOTLEY_ASSIGN(const double difference, relative_difference(exact.weights, run.weights));
          say(ring, difference);
          weights = std::max(weights, difference);
          ++shapes;
        }
        if (network.tied && stages > 1) continue;
        const planning::Plan server = draw(network, layers, stages, planning::Schedule::kOneForwardOneBackward,
                                           planning::Exchange::kParameterServer);
        MOTLEY_ASSIGN(const JobRun run, train(network, "float32", &server, {}));
        const double difference = loss_difference(single.losses, run.losses);
        say(server, difference);
        losses = std::max(losses, difference);
        ++served;
      }
    }
    const std::string names = options_.quick ? "mlp with dropout"
                                             : "mlp and transformer with dropout, tied transformer, ctrdnn, resnet18 "
                                               "with GroupNorm";
    rows_.add("equality-fp64", "worst_relative_difference", weights, "", false, 1e-9, {}, {},
              fmt::format("weights after {} steps, {} plans of {}", kSteps, shapes, names));
    rows_.add("equality-fp32-server", "worst_loss_difference", losses, "", false, 1e-3, {}, {},
              fmt::format("of any step, {} plans of {}", served, names));
    return rows_.take();
  }

  Result<std::vector<BenchRow>> run_batch_norm() {
    if (options_.quick) {
      rows_.left_out("equality-batchnorm", "it takes minutes");
      return rows_.take();
    }
    MOTLEY_ASSIGN(const double worst, same_micro_batches());
    rows_.add("equality-batchnorm", "worst_relative_difference", worst, "", false, 1e-9, {}, {},
              "resnet18, against one worker that runs the same micro-batches");
    return rows_.take();
  }

 private:
  Result<std::vector<std::string>> layers_of(const Network& network) {
    MOTLEY_ASSIGN(model::Profile profile,
                  measure_profile(options_, job(network), flags_of(network, "float32"), "1,2", kProfileSeconds));
    std::vector<std::string> names;
    for (const model::Layer& layer : model::without_step_layer(std::move(profile)).graph.layers) {
      names.push_back(layer.name);
    }
    return names;
  }

  std::filesystem::path job(const Network& network) const {
    return options_.source_folder / "examples" / network.job / "job.yaml";
  }

  static std::vector<std::string> flags_of(const Network& network, const std::string& type) {
    std::vector<std::string> flags = {"--batch", std::to_string(network.batch), "--model.dtype", type};
    flags.insert(flags.end(), network.flags.begin(), network.flags.end());
    return flags;
  }

  Result<JobRun> train(const Network& network, const std::string& type, const planning::Plan* plan,
                       const std::vector<std::string>& more) {
    std::vector<std::string> flags = flags_of(network, type);
    flags.insert(flags.end(), {"--steps", std::to_string(kSteps), "--quiet", "--evaluate.every_epochs=-1"});
    flags.insert(flags.end(), more.begin(), more.end());
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("motley-bench-equality-{}.json", ::getpid());
    if (plan != nullptr) {
      MOTLEY_TRY(write_file(file, planning::to_json(*plan)));
      flags.insert(flags.end(), {"--plan", file.string()});
    }
    Result<JobRun> run = run_job(options_, job(network), "", flags);
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
    return run;
  }

  // Stages of one to three replicas with shares by lot. With a server every stage has two at least, so that it is used.
  planning::Plan draw(const Network& network, const std::vector<std::string>& layers, std::size_t stages,
                      planning::Schedule schedule, planning::Exchange exchange, bool single = false) {
    planning::Plan plan;
    plan.model = network.name;
    plan.layers = layers;
    plan.batch = network.batch;
    plan.micro_batches = single ? 4 : 1 + static_cast<std::int64_t>(random_.below(6));
    plan.schedule = schedule;
    plan.cost_model = "pipeline";
    plan.method = "by lot";
    plan.objective = "none";
    std::vector<int> ends = {static_cast<int>(layers.size()) - 1};
    while (ends.size() < stages) {
      const int end = static_cast<int>(random_.below(layers.size() - 1));
      if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    }
    std::ranges::sort(ends);
    int first = 0;
    for (const int last : ends) {
      planning::Stage stage{.first_layer = first, .last_layer = last, .replicas = {}};
      const bool is_served = exchange == planning::Exchange::kParameterServer;
      const std::uint64_t replicas = single ? 1 : is_served ? 2 : 1 + random_.below(3);
      std::vector<double> weights;
      double sum = 0;
      for (std::uint64_t i = 0; i < replicas; ++i) {
        weights.push_back(static_cast<double>(1 + random_.below(4)));
        sum += weights.back();
      }
      for (std::size_t i = 0; i < weights.size(); ++i) {
        stage.replicas.push_back({fmt::format("type{}", i), 1, weights[i] / sum});
      }
      stage.exchange = replicas == 1 ? planning::Exchange::kNone : exchange;
      stage.recompute = random_.below(4) == 0;
      plan.stages.push_back(stage);
      first = last + 1;
    }
    return plan;
  }

  Result<double> same_micro_batches() {
    MOTLEY_ASSIGN(const std::vector<std::string> layers, layers_of(kBatchNorm));
    MOTLEY_ASSIGN(const JobRun single, train(kBatchNorm, "float64", nullptr, {"--accumulation", "4"}));
    double worst = 0;
    for (const std::size_t stages : {2, 3}) {
      const planning::Plan plan =
          draw(kBatchNorm, layers, stages, planning::Schedule::kOneForwardOneBackward, planning::Exchange::kNone, true);
      MOTLEY_ASSIGN(const JobRun run, train(kBatchNorm, "float64", &plan, {}));
      MOTLEY_ASSIGN(const double difference, relative_difference(single.weights, run.weights));
      say(plan, difference);
      worst = std::max(worst, difference);
    }
    return worst;
  }

  void say(const planning::Plan& plan, double difference) const {
    std::vector<std::string> stages;
    for (const planning::Stage& stage : plan.stages) {
      stages.push_back(fmt::format("{}x[{}-{}] {}", stage.replicas.size(), stage.first_layer, stage.last_layer,
                                   planning::to_string(stage.exchange)));
    }
    rows_.say(fmt::format("{}: {}, {} micro-batches, {}: {:.2g}", plan.model, fmt::join(stages, ", "),
                          plan.micro_batches, planning::to_string(plan.schedule), difference));
  }

  const BenchOptions& options_;
  RowList rows_;
  Random random_{23};
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_equality(const BenchOptions& options) {
  return Equality(options).run();
}

Result<std::vector<BenchRow>> pipeline_batch_norm(const BenchOptions& options) {
  return Equality(options).run_batch_norm();
}

}  // namespace motley::bench
