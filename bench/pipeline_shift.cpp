// A planned run one of whose three workers becomes three times as slow: how many steps it takes until a step is within
// a tenth of what the best plan for the workers as they are now reaches.
//
// All workers are emulated: a device type each, all of one speed in the profile that the plan is made from. The shift
// is a resume with another profile to imitate, where one type takes three times as long; the run goes on believing the
// first. The optimum is the plan that planner/repartition finds when it is told the truth, run by itself. No worker's
// memory holds the whole network, so that plans are pipelines and the shares of one stage are not all that can move.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/replan/repartition.h"

namespace motley::bench {
namespace {

constexpr double kSlowness = 8;  // times as long as this machine takes, so that it can play three workers
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

struct Step {
  std::int64_t number;
  double seconds;
};

class Shift {
 public:
  Shift(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    std::vector<std::string> flags = network_flags();
    flags.insert(flags.end(), {"--batch", std::to_string(kBatch)});
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
    MOTLEY_TRY(train("optimum", "optimum.json", "real.json", kBefore, {"--shares.mode", "fixed"}));
    MOTLEY_ASSIGN(const std::vector<Step> steps, steps_of("run"));
    MOTLEY_ASSIGN(const std::vector<Step> best_steps, steps_of("optimum"));
    const double best = median_from(best_steps, kBefore / 2, best_steps.size());
    MOTLEY_ASSIGN(const std::string moves, moves_of("run"));
    report(steps, best, moves);
    return rows_.take();
  }

 private:
  std::filesystem::path job() const { return options_.source_folder / "examples/fashion-mnist/job.yaml"; }

  static std::vector<std::string> network_flags() {
    return {"--model.name", "mlp", "--model.hidden", "[1024, 1024, 1024]"};
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
    MOTLEY_ASSIGN(planning::PlacedPlan best, planning::placement_of(workers, even, {0, 1, 2}));
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
                                        "--batch",
                                        std::to_string(kBatch),
                                        "--steps",
                                        std::to_string(steps),
                                        "--quiet",
                                        "--evaluate.every_epochs=-1"};
    const std::vector<std::string> network = network_flags();
    command.insert(command.end(), network.begin(), network.end());
    command.insert(command.end(), flags.begin(), flags.end());
    MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
    return process->finish(Deadline::after(kRunSeconds));
  }

  // The lines of a run's metrics, as JSON.
  Result<std::vector<nlohmann::json>> lines_of(const std::string& run) const {
    MOTLEY_ASSIGN(const std::string text, read_file(folder_ / run / "metrics.jsonl"));
    std::istringstream lines(text);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  Result<std::vector<Step>> steps_of(const std::string& run) const {
    MOTLEY_ASSIGN(const std::vector<nlohmann::json> lines, lines_of(run));
    std::vector<Step> steps;
    for (const nlohmann::json& line : lines) {
      if (line.contains("step_seconds")) steps.push_back({line["step"], line["step_seconds"]});
    }
    return steps;
  }

  Result<std::string> moves_of(const std::string& run) const {
    MOTLEY_ASSIGN(const std::vector<nlohmann::json> lines, lines_of(run));
    std::string text;
    for (const nlohmann::json& line : lines) {
      if (line.value("event", "") != "moved") continue;
      text += fmt::format("; moved after step {}: {}", line["step"].get<std::int64_t>() - kBefore,
                          line["text"].get<std::string>());
    }
    return text.empty() ? "; never moved" : text;
  }

  static double median_from(const std::vector<Step>& steps, std::size_t first, std::size_t end) {
    std::vector<double> seconds;
    for (std::size_t at = first; at < std::min(end, steps.size()); ++at) seconds.push_back(steps[at].seconds);
    return median(seconds);
  }

  void report(const std::vector<Step>& steps, double best, const std::string& moves) {
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
