#include "motley/train/profile/choose_devices.h"

#include <cmath>
#include <utility>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cluster/machine.h"
#include "motley/nn/runtime.h"
#include "motley/train/job/job_data.h"
#include "motley/train/launch/launch_job.h"
#include "motley/train/loop/progress.h"
#include "motley/train/profile/brief_run.h"

namespace motley::train {
namespace {

using cluster::DeviceKind;

constexpr std::int64_t kUncountedSteps = 12;  // in which the split follows the workers' speeds
constexpr std::int64_t kCountedSteps = 9;     // that count
constexpr std::int64_t kEnoughSteps =
    10 * (kUncountedSteps + kCountedSteps);  // of a job, for which these are worth their time
constexpr double kLargestRatio = 0.9;  // of steps with the CPUs to those without: what is nearer to 1 may be chance

// A worker for each accelerator, and one with so many threads on the CPUs; 0: none.
cluster::Cluster make_cluster(const Job& job, const Accelerators& accelerators, std::int64_t threads) {
  cluster::Cluster cluster;
  const std::string type = to_string(accelerators.kind);
  cluster.device_types.push_back({.name = type, .kind = accelerators.kind, .count = accelerators.count});
  for (int i = 0; i < accelerators.count; ++i) {
    cluster.workers.push_back(
        {.name = fmt::format("{}-{}", type, i), .device = type, .node = "", .threads = job.execution.threads});
  }
  if (threads > 0) {
    cluster.device_types.push_back({.name = "cpu", .kind = DeviceKind::kCpu});
    cluster.workers.push_back({.name = "cpu", .device = "cpu", .node = "", .threads = threads});
  }
  return cluster;
}

// Seconds of a step of the job with these workers.
Result<double> measure_step(Job job, const cluster::Cluster& cluster, const std::filesystem::path& cluster_file,
                            const std::stop_token& stop) {
  MOTLEY_TRY(write_file(cluster_file, cluster::to_yaml(cluster)));
  job.execution.cluster = cluster_file.string();
  job.baseline.every = 0;
  MOTLEY_ASSIGN(job, prepare_job(std::move(job)));
  MOTLEY_ASSIGN(
      const StepTimes times,
      run_briefly(std::move(job),
                  {.settling_steps = kUncountedSteps, .steps = kCountedSteps, .deadline = std::nullopt, .stop = stop}));
  return times.step;
}

Result<double> count_steps(const Job& job) {
  if (job.training.steps > 0) return static_cast<double>(job.training.steps);
  MOTLEY_ASSIGN(const auto data, open_training_data(job));
  return std::ceil(job.training.epochs * static_cast<double>(data->size()) /
                   static_cast<double>(job.training.global_batch_size));
}

// Why nothing is measured and the CPUs stay out; empty: they may join.
Result<std::string> find_obstacle(const Job& job, const Accelerators& accelerators, std::int64_t threads) {
  if (threads < 1) return "the accelerators' workers take all cores";
  if (job.training.global_batch_size <= accelerators.count) return "a step has no samples for another worker";
  if (!job.gradient_sync.servers.empty()) return "whether they help is not measured with parameter servers of others";
  MOTLEY_ASSIGN(const double steps, count_steps(job));
  if (steps >= kEnoughSteps) return "";
  return fmt::format("whether they help is not measured for a job of {}",
                     format_count(static_cast<std::int64_t>(steps), "step"));
}

}  // namespace

Result<std::optional<Accelerators>> find_accelerators() {
  MOTLEY_ASSIGN(const torch::Device device, nn::parse_device("auto"));
  const std::string name = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kXpu, DeviceKind::kMps, DeviceKind::kEmulated}) {
    if (name == to_string(kind)) return Accelerators{kind, nn::count_devices(device.type())};
  }
  return std::nullopt;
}

Result<ChosenDevices> choose_devices(const Job& job, const Accelerators& accelerators,
                                     const std::filesystem::path& cluster_file, const std::stop_token& stop) {
  const std::int64_t threads = cluster::detect_machine().cores - accelerators.count;
  cluster::Cluster alone = make_cluster(job, accelerators, 0);
  MOTLEY_ASSIGN(const std::string obstacle, find_obstacle(job, accelerators, threads));
  if (!obstacle.empty()) return ChosenDevices{std::move(alone), "without the CPUs: " + obstacle};
  ProgressLine progress;
  progress.show({.text = "measuring steps on the accelerators"});
  MOTLEY_ASSIGN(const double alone_seconds, measure_step(job, alone, cluster_file, stop));
  progress.show({.text = "measuring steps on accelerators and CPUs"});
  cluster::Cluster all = make_cluster(job, accelerators, threads);
  const Result<double> all_seconds = measure_step(job, all, cluster_file, stop);
  progress.clear();
  if (!all_seconds && all_seconds.error().code == ErrorCode::kInterrupted) return fail(all_seconds.error());
  if (!all_seconds) return ChosenDevices{std::move(alone), "without the CPUs: " + all_seconds.error().message};
  const bool pays = *all_seconds < kLargestRatio * alone_seconds;
  return ChosenDevices{
      std::move(pays ? all : alone),
      fmt::format("{} the CPUs ({}): steps took {} with them and {} without", pays ? "with" : "without",
                  format_count(threads, "thread"), format_seconds(*all_seconds), format_seconds(alone_seconds))};
}

}  // namespace motley::train
