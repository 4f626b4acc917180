#include "motley/train/profile/brief_run.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/nn/profiler.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/launch_job.h"
#include "motley/train/records/metrics.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

Result<StepTimes> read_steps(const fs::path& file, std::int64_t settling_steps) {
  MOTLEY_ASSIGN(const Metrics metrics, read_metrics(file));
  std::vector<double> step, compute, load, rows, rest;
  std::vector<std::vector<double>> gradient_sync;  // by rank
  for (const StepMetrics& line : metrics.steps) {
    if (line.step <= settling_steps) continue;
    double last = 0, loading = 0;
    gradient_sync.resize(line.compute_seconds.size());
    for (std::size_t rank = 0; rank < gradient_sync.size(); ++rank) {
      if (line.compute_seconds[rank] + line.load_seconds[rank] >= last) {
        last = line.compute_seconds[rank] + line.load_seconds[rank];
        loading = line.load_seconds[rank];
      }
      gradient_sync[rank].push_back(line.gradient_sync_seconds[rank]);
    }
    step.push_back(line.step_seconds);
    compute.push_back(last);
    load.push_back(loading);
    rows.push_back(line.embedding ? std::ranges::max(line.embedding->wait_seconds) : 0);
    rest.push_back(step.back() - compute.back() - rows.back());
  }
  if (step.empty()) return fail(ErrorCode::kInternal, "{}: no step was recorded", file.string());
  // Ranks start their steps at slightly different times; what the first to start waits for that is no exchange.
  double min_gradient_sync = std::numeric_limits<double>::infinity();
  for (std::vector<double>& seconds : gradient_sync) {
    min_gradient_sync = std::min(min_gradient_sync, median(std::move(seconds)));
  }
  return StepTimes{.step = median(std::move(step)),
                   .compute = median(compute),
                   .load = median(std::move(load)),
                   .quiet_compute = percentile(compute, nn::kQuietPasses),
                   .rest = median(std::move(rest)),
                   .gradient_sync = min_gradient_sync,
                   .rows = median(std::move(rows))};
}

// In a folder that is there already, for the run and what else it needs.
Result<StepTimes> run_in(const fs::path& folder, Job job, const BriefRun& options) {
  job.training.steps = options.settling_steps + options.steps;
  job.evaluate.every_epochs = -1;
  job.checkpoint.every = 0;
  job.checkpoint.every_steps = 0;
  job.checkpoint.keep = 0;
  job.timeline.steps = 0;
  const RunDirectory run(folder / "run");
  MOTLEY_ASSIGN(const RunLock lock, run.prepare(false, false));
  MOTLEY_TRY(launch_job(job, run, false, {.quiet = true, .deadline = options.deadline, .stop = options.stop}));
  return read_steps(run.metrics_file(), options.settling_steps);
}

}  // namespace

Result<StepTimes> run_briefly(Job job, const BriefRun& options, const planning::Plan* plan) {
  // The number of workers is given, and nobody is lost in so few steps.
  if (!job.execution.elastic.empty() && job.execution.device == "auto") job.execution.device = "cpu";
  job.execution.elastic.clear();
  name_token_files(job);
  std::string folder = (fs::temp_directory_path() / "motley-brief-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    return fail(ErrorCode::kIo, "cannot make a temporary folder: {}", errno_text());
  }
  const auto run = [&]() -> Result<StepTimes> {
    if (plan != nullptr) {
      job.execution.plan = folder + "/plan.json";
      job.execution.replan = false;
      job.execution.profile.clear();
      MOTLEY_TRY(write_file(job.execution.plan, planning::to_json(*plan)));
      MOTLEY_ASSIGN(job, prepare_job(std::move(job)));
    }
    return run_in(folder, std::move(job), options);
  };
  Result<StepTimes> times = run();
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (!times && times.error().code == ErrorCode::kInterrupted) {
    return fail(ErrorCode::kInterrupted, "stopped as asked; nothing was written");
  }
  return times;
}

}  // namespace motley::train
