// 1F1B against gpipe: what a stage is idle, and what more of activations it keeps, beside what the formulas say.
// Stages are emulated, all of one speed, so that both schedules take (m + S - 1) / m of the work of a step with S
// stages and m micro-batches; a stage s keeps min(m, S - s) micro-batches' activations under 1F1B and m under
// gpipe (18). A transformer is trained, whose activations are real.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "bench/child_process.h"
#include "bench/measured_profile.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/records/metrics.h"

namespace motley::bench {
namespace {

constexpr std::int64_t kBatch = 64;
constexpr double kSlowness = 8;  // times as long as this machine takes in all, so that it can play four stages
constexpr int kSteps = 5;
constexpr int kSettledSteps = 2;
constexpr double kProfileSeconds = 10;
constexpr double kRunSeconds = 300;
constexpr const char* kType = "device";
const std::vector<std::string>& network_flags() {
  static const std::vector<std::string> flags = {
      "--model.num-layers", "8", "--model.hidden-size", "128",
      "--threads",          "1", "--global-batch-size", std::to_string(kBatch)};
  return flags;
}

struct Measured {
  double idle = 0;    // of all stages, over the step
  double memory = 0;  // bytes, most that the first stage ever had
};

class Schedules {
 public:
  Schedules(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_ASSIGN(const model::Profile measured,
                  measure_profile(options_, job(), network_flags(), "1,4", kProfileSeconds));
    profile_ = model::without_step_layer(measured);
    for (const int stages : {2, 4}) {
      for (const std::int64_t micro_batches : {std::int64_t{4}, std::int64_t{16}}) {
        planning::Plan plan = even_plan(stages, micro_batches);
        MOTLEY_TRY(write_even_profile(plan));
        plan.schedule = planning::PipelineSchedule::kOneForwardOneBackward;
        MOTLEY_ASSIGN(const Measured one, train(plan));
        plan.schedule = planning::PipelineSchedule::kGPipe;
        MOTLEY_ASSIGN(const Measured fill, train(plan));
        report(plan, one, fill);
      }
    }
    return rows_.take();
  }

 private:
  std::filesystem::path job() const { return options_.source_folder / "examples/text/job.yaml"; }

  planning::Plan even_plan(int stages, std::int64_t micro_batches) const {
    planning::Plan plan;
    plan.model = profile_.graph.name;
    for (const model::Layer& layer : profile_.graph.layers) plan.layers.push_back(layer.name);
    plan.batch = kBatch;
    plan.micro_batches = micro_batches;
    plan.cost_model = "pipeline";
    plan.method = "even";
    plan.objective = "none";
    const int layers = static_cast<int>(plan.layers.size());
    for (int stage = 0; stage < stages; ++stage) {
      plan.stages.push_back({layers * stage / stages, layers * (stage + 1) / stages - 1, {{kType, 1, 1}}});
    }
    return plan;
  }

  // All stages of the plan take the same, backward twice as long as forward; the first layer of each stands for it.
  Status write_even_profile(const planning::Plan& plan) const {
    double seconds = 0;  // of a sample, here
    for (const model::LayerTime& time : profile_.devices.front().layers) {
      seconds += time.forward.per_sample + time.backward.per_sample;
    }
    model::Profile even = profile_;
    model::DeviceProfile& device = even.devices.front();
    device.type = kType;
    even.links.clear();
    for (model::LayerTime& time : device.layers) time = {};
    for (const planning::Stage& stage : plan.stages) {
      const double share = kSlowness * seconds / static_cast<double>(plan.stages.size());
      device.layers[static_cast<std::size_t>(stage.first_layer)] = {.forward = {0, share / 3},
                                                                    .backward = {0, 2 * share / 3}};
    }
    return write_file(folder_ / "profile.json", model::to_json(even));
  }

  Result<Measured> train(const planning::Plan& plan) const {
    MOTLEY_TRY(write_file(folder_ / "plan.json", planning::to_json(plan)));
    std::vector<std::string> command = {options_.motley.string(),
                                        "train",
                                        job().string(),
                                        "--run-directory",
                                        (folder_ / "run").string(),
                                        "--overwrite",
                                        "--plan",
                                        (folder_ / "plan.json").string(),
                                        "--emulation",
                                        (folder_ / "profile.json").string(),
                                        "--steps",
                                        std::to_string(kSteps),
                                        "--quiet",
                                        "--checkpoint.keep",
                                        "0",
                                        "--evaluate.every-epochs=-1"};
    command.insert(command.end(), network_flags().begin(), network_flags().end());
    MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
    MOTLEY_TRY(process->finish(Deadline::after(kRunSeconds)));
    MOTLEY_ASSIGN(const train::Metrics metrics, train::read_metrics(folder_ / "run/metrics.jsonl"));
    std::vector<double> idle;
    Measured measured;
    for (const train::StepMetrics& line : metrics.steps) {
      measured.memory = line.memory_bytes.at(0);
      if (line.step <= kSettledSteps) continue;
      const double computed = std::accumulate(line.compute_seconds.begin(), line.compute_seconds.end(), 0.0);
      idle.push_back(1 - computed / static_cast<double>(plan.stages.size()) / line.step_seconds);
    }
    if (idle.size() != kSteps - kSettledSteps) return fail(ErrorCode::kInternal, "the job did not finish");
    measured.idle = median(idle);
    return measured;
  }

  void report(const planning::Plan& plan, const Measured& one, const Measured& fill) {
    const auto stages = static_cast<std::int64_t>(plan.stages.size());
    const double bubble = static_cast<double>(stages - 1) / static_cast<double>(plan.micro_batches + stages - 1);
    double bytes = 0;  // that the first stage keeps of a sample
    for (int layer = 0; layer <= plan.stages.front().last_layer; ++layer) {
      const model::Layer& size = profile_.graph.layers[static_cast<std::size_t>(layer)];
      bytes += size.activation_bytes + size.inner_bytes;
    }
    const double more = static_cast<double>(plan.micro_batches - std::min(plan.micro_batches, stages)) * bytes *
                        static_cast<double>(kBatch / plan.micro_batches);
    const std::string name = fmt::format("schedule-{}-stages-{}-micro-batches", stages, plan.micro_batches);
    const std::string note = "limit: the formula";
    rows_.add(name, "idle_share_1f1b", one.idle, "share", false, {}, bubble, {}, note);
    rows_.add(name, "idle_share_fill_drain", fill.idle, "share", false, {}, bubble, {}, note);
    rows_.add(name, "memory_saved_by_1f1b", fill.memory - one.memory, "B", true, {}, more, {},
              fmt::format("of the first stage, at most {} under 1F1B, {} under gpipe; limit: the formula",
                          format_bytes(one.memory), format_bytes(fill.memory)));
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
  model::Profile profile_;
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_schedules(const BenchOptions& options) {
  if (options.quick) {
    RowList(options).left_out("schedule-*", "they take minutes");
    return std::vector<BenchRow>();
  }
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  return Schedules(options, folder.path()).run();
}

}  // namespace motley::bench
