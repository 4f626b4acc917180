#include "bench/job_run.h"

#include <algorithm>
#include <cstdlib>

#include "bench/child_process.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/train/records/metrics.h"

namespace motley::bench {
namespace {

constexpr std::int64_t kSettledStep = 20;
constexpr double kJobDeadline = 600;  // seconds

}  // namespace

Result<JobRun> run_job(const BenchOptions& options, const std::filesystem::path& job, const std::string& cluster,
                       const std::vector<std::string>& flags) {
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  const std::filesystem::path run = folder.path() / "run";
  std::vector<std::string> command = {options.motley.string(), "train", job.string(), "--run-directory", run.string()};
  if (!cluster.empty()) {
    MOTLEY_TRY(write_file(folder.path() / "cluster.yaml", cluster));
    command.insert(command.end(), {"--cluster", (folder.path() / "cluster.yaml").string()});
  }
  command.insert(command.end(), flags.begin(), flags.end());
  MOTLEY_ASSIGN(const auto process, ChildProcess::start(command));
  MOTLEY_TRY(process->finish(Deadline::after(kJobDeadline)));
  Result<std::string> summary = read_file(run / "summary.json");
  if (!summary) {
    return fail(ErrorCode::kInternal, "the job did not finish; what it said is above");
  }
  JobRun figures;
  MOTLEY_ASSIGN(figures.summary, read_rows(*summary));
  MOTLEY_ASSIGN(const train::Metrics metrics, train::read_metrics(run / "metrics.jsonl"));
  for (const train::StepMetrics& line : metrics.steps) {
    figures.losses.push_back(line.loss);
    if (line.step > kSettledStep) {
      (line.baseline ? figures.baseline_seconds : figures.balanced_seconds).push_back(line.step_seconds);
    }
  }
  std::vector<std::filesystem::path> checkpoints;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoint")) {
    checkpoints.push_back(entry.path());
  }
  MOTLEY_ASSIGN(figures.weights, read_file(std::ranges::max(checkpoints) / "weights.safetensors"));
  return figures;
}

}  // namespace motley::bench
