// Four heterogeneous machines on links of 1 Gb/s (examples/heterogeneous): the plan that `motley plan
// --heterogeneous-stages` makes, data parallelism with shares by speed, and data parallelism with equal shares on Gloo:
// bulk-synchronous, with which TAPP compares (Mao et al. 2021), and overlapped, as DDP. Networks are synthetic and
// devices emulated: all sides sleep for what the same estimate says that a layer takes, and send real bytes. A step's
// communication share is what of it would go with links that take no time.
#include <algorithm>
#include <filesystem>

#include "bench/child_process.h"
#include "bench/heterogeneous_machines.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/units.h"

namespace motley::bench {
namespace {

constexpr int kMachines = HeterogeneousMachines::kMachines;
constexpr int kSteps = 4;
constexpr int kSettledStep = 1;  // before the first that counts
constexpr double kRunSeconds = 560;
constexpr double kPlanSeconds = 120;
constexpr std::int64_t kTappBatch = 32;  // a machine, of the rows against TAPP's figures
constexpr const char* kModels[] = {"alexnet", "vgg11", "resnet18", HeterogeneousMachines::kTransformer};
constexpr std::int64_t kBatches[] = {8, 32, 128};

class Tapp {
 public:
  Tapp(const BenchOptions& options, std::filesystem::path folder)
      : options_(options), rows_(options), folder_(std::move(folder)) {}

  Result<std::vector<BenchRow>> run() {
    auto machines = HeterogeneousMachines::create(options_, folder_);
    if (!machines) {
      rows_.left_out("tapp-third-best-of-four and auto-choice", machines.error().message);
      return rows_.take();
    }
    std::vector<double> ratios, reductions;
    double worst = -1;
    std::string worst_case;
    for (const char* model : kModels) {
      for (const std::int64_t batch : kBatches) {
        MOTLEY_TRY(machines->use(model, kMachines * batch));
        MOTLEY_ASSIGN(const planning::Plan plan, make_plan(*machines, kMachines * batch));
        MOTLEY_ASSIGN(const planning::Plan balanced, machines->balanced_data_parallelism(plan));
        const bool is_parallel = balanced.stages == plan.stages && balanced.micro_batches == plan.micro_batches;
        MOTLEY_ASSIGN(const double planned, machines->run(plan, kSteps, kSettledStep, kRunSeconds));
        MOTLEY_ASSIGN(const double parallel, is_parallel ? Result<double>(planned)
                                                         : machines->run(balanced, kSteps, kSettledStep, kRunSeconds));
        MOTLEY_ASSIGN(const double bsp, machines->run_on_gloo("bsp", kSteps));
        MOTLEY_ASSIGN(const double ddp, machines->run_on_gloo("ddp", kSteps));
        MOTLEY_ASSIGN(const double planned_computing, machines->seconds_without_links(plan));
        const std::string name = fmt::format("tapp-{}-batch-{}", model, batch);
        const std::string note = fmt::format(
            "{} a step ({} predicted) by {}; balanced data parallelism {}, equal shares on Gloo {}, overlapped {}; "
            "emulated devices, "
            "1 Gb/s",
            format_seconds(planned), format_seconds(plan.predicted.step_seconds), describe_stages(plan),
            format_seconds(parallel), format_seconds(bsp), format_seconds(ddp));
        const double share = std::max(0.0, 1 - planned_computing / planned),
                     bsp_share = 1 - machines->slowest_seconds() / bsp;
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
  // By `motley plan --heterogeneous-stages`.
  Result<planning::Plan> make_plan(const HeterogeneousMachines& machines, std::int64_t batch) const {
    const std::filesystem::path file = folder_ / "plan.json";
    std::filesystem::remove(file);
    MOTLEY_ASSIGN(const auto process,
                  ChildProcess::start({options_.motley.string(), "plan", "--profile", machines.profile_file().string(),
                                       "--cluster", machines.cluster_file().string(), "--global-batch-size",
                                       std::to_string(batch), "--objective", "step-time", "--heterogeneous-stages",
                                       "--output", file.string()}));
    MOTLEY_TRY(process->finish(Deadline::after(kPlanSeconds)));
    return planning::read_plan(file);
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path folder_;
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
