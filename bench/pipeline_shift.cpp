// A planned run one of whose three workers becomes three times as slow: how many steps it takes until a step is within
// a tenth of what the best plan for the workers as they are now reaches.
//
// All workers are emulated: a device type each, all of one speed in the profile that the plan is made from. The shift
// is a resume with another profile to emulate, where one type takes three times as long; the run goes on believing the
// first. The optimum is the plan that planner/repartition finds when it is told the truth, run by itself. No worker's
// memory holds the whole network, so that plans are pipelines and the shares of one stage are not all that can move.
#include <algorithm>
#include <filesystem>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/replan/repartition.h"
#include "motley/train/records/metrics.h"

namespace motley::bench {
namespace {

constexpr double kSlowness = 16;  // times as long as this machine takes, so that it can play three workers
constexpr double kShift = 3;
constexpr double kMemory = 0.7;  // of a worker, over what the whole network's weights, gradients and momentum take
constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kMicroBatches = 8;
constexpr std::int64_t kBefore = 40;  // steps
constexpr std::int64_t kAfter = 100;
constexpr std::size_t kWindow = 5;  // steps, whose median has to be close
constexpr double kClose = 1.1;
constexpr double kProfileSeconds = 15;
constexpr double kRunSeconds = 300;
constexpr const char* kTypes[] = {"first", "second", "third"};

class Shift {
 public:
  Shift(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    std::vector<std::string> flags = network_flags();
    flags.insert(flags.end(), {"--global-batch-size", std::to_string(kBatch)});
    MOTLEY_ASSIGN(const model::Profile measured, measure_profile(options_, job(), flags, "1,4,16,64", kProfileSeconds));
    model::Profile believed = measured;
    believed.devices.clear();
    believed.links.clear();
    for (const char* type : kTypes) {
      believed.devices.push_back(measured.devices.front());
      believed.devices.back().type = type;
      slow_down(believed.devices.back().layers, kSlowness);
    }
    model::Profile real = believed;
    slow_down(real.devices[1].layers, kShift);
    double parameters = 0;
    for (const model::Layer& layer : believed.graph.layers) parameters += layer.parameters;
    for (const char* type : kTypes) {
      cluster_.device_types.push_back({.name = type, .memory_bytes = kMemory * 3 * sizeof(float) * parameters});
    }
    MOTLEY_TRY(write_file(folder_ / "cluster.yaml", cluster::to_yaml(cluster_)));
    MOTLEY_TRY(write_file(folder_ / "believed.json", model::to_json(believed)));
    MOTLEY_TRY(write_file(folder_ / "real.json", model::to_json(real)));

    MOTLEY_ASSIGN(const planning::Plan plan, best_plan(believed));
    MOTLEY_ASSIGN(const planning::Plan optimum, best_plan(real));
    MOTLEY_TRY(write_file(folder_ / "plan.json", planning::to_json(plan)));
    MOTLEY_TRY(write_file(folder_ / "optimum.json", planning::to_json(optimum)));

    const std::string profile = (folder_ / "believed.json").string();
    MOTLEY_TRY(train("run", "plan.json", "believed.json", kBefore, {"--profile", profile}));
    MOTLEY_TRY(train("run", "plan.json", "real.json", kBefore + kAfter, {"--profile", profile, "--resume"}));
    MOTLEY_TRY(train("optimum", "optimum.json", "real.json", kBefore, {"--batch-split.mode", "fixed"}));
    MOTLEY_ASSIGN(const train::Metrics metrics, train::read_metrics(folder_ / "run/metrics.jsonl"));
    MOTLEY_ASSIGN(const train::Metrics best, train::read_metrics(folder_ / "optimum/metrics.jsonl"));
    report(metrics.steps, median_from(best.steps, kBefore / 2, best.steps.size()), describe_moves(metrics));
    return rows_.take();
  }

 private:
  std::filesystem::path job() const { return options_.source_folder / "examples/fashion-mnist/job.yaml"; }

  static std::vector<std::string> network_flags() {
    return {"--model.name", "mlp", "--model.hidden-sizes", "[1024, 1024, 1024]"};
  }

  // Of the workers as this profile has them, each with a type of its own.
  Result<planning::Plan> best_plan(const model::Profile& profile) const {
    planning::Plan even;
    even.model = profile.graph.name;
    for (const model::Layer& layer : model::without_step_layer(profile).graph.layers) even.layers.push_back(layer.name);
    even.batch = kBatch;
    even.micro_batches = kMicroBatches;
    even.cost_model = "pipeline";
    even.objective = "least step time";
    const int layers = static_cast<int>(even.layers.size());
    for (int stage = 0; stage < 3; ++stage) {
      even.stages.push_back({layers * stage / 3, layers * (stage + 1) / 3 - 1, {{kTypes[stage], 1, 1}}});
    }
    MOTLEY_ASSIGN(const planning::Problem workers, planning::problem_of_plan(profile, cluster_, even));
    MOTLEY_ASSIGN(planning::PlacedPlan best, planning::make_placement(workers, even, {0, 1, 2}));
    for (double before = 0; best.step_seconds != before;) {  // each looks at other numbers of micro-batches
      before = best.step_seconds;
      MOTLEY_ASSIGN(best, planning::repartition(workers, best, {}));
    }
    return best.plan;
  }

  Status train(const std::string& run, const std::string& plan, const std::string& emulation, std::int64_t steps,
               const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {options_.motley.string(),
                                        "train",
                                        job().string(),
                                        "--run-directory",
                                        (folder_ / run).string(),
                                        "--plan",
                                        (folder_ / plan).string(),
                                        "--emulation",
                                        (folder_ / emulation).string(),
                                        "--cluster",
                                        (folder_ / "cluster.yaml").string(),
                                        "--global-batch-size",
                                        std::to_string(kBatch),
                                        "--steps",
                                        std::to_string(steps),
                                        "--quiet",
                                        "--evaluate.every-epochs=-1"};
    const std::vector<std::string> network = network_flags();
    command.insert(command.end(), network.begin(), network.end());
    command.insert(command.end(), flags.begin(), flags.end());
    MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
    return process->finish(Deadline::after(kRunSeconds));
  }

  static std::string describe_moves(const train::Metrics& metrics) {
    std::string text;
    for (const train::EventMetrics& line : metrics.events) {
      if (line.event != "moved") continue;
      text += fmt::format("; moved after step {}: {}", line.step - kBefore, line.text);
    }
    return text.empty() ? "; never moved" : text;
  }

  static double median_from(const std::vector<train::StepMetrics>& steps, std::size_t first, std::size_t end) {
    std::vector<double> seconds;
    for (std::size_t at = first; at < std::min(end, steps.size()); ++at) seconds.push_back(steps[at].step_seconds);
    return median(seconds);
  }

  void report(const std::vector<train::StepMetrics>& steps, double best, const std::string& moves) {
    const auto shift = static_cast<std::size_t>(kBefore);
    std::size_t reached = 0;  // steps after the shift
    while (shift + reached + kWindow <= steps.size() &&
           median_from(steps, shift + reached, shift + reached + kWindow) > kClose * best) {
      ++reached;
    }
    const bool is_reached = shift + reached + kWindow <= steps.size();
    rows_.add(
        "shift-3x-slower", "steps_to_10pct_of_new_optimum", static_cast<double>(is_reached ? reached : kAfter), "steps",
        false, 30, {}, {},
        fmt::format("{}a step {} before the shift, {} after it, {} at the end; the best plan for the slower worker "
                    "{}; three emulated workers{}",
                    is_reached ? "" : "not reached: ", format_seconds(median_from(steps, shift / 2, shift)),
                    format_seconds(median_from(steps, shift, shift + kWindow)),
                    format_seconds(median_from(steps, steps.size() - shift / 2, steps.size())), format_seconds(best),
                    moves));
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  cluster::Cluster cluster_;
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_shift(const BenchOptions& options) {
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return Shift(options, folder.path()).run();
}

}  // namespace motley::bench
