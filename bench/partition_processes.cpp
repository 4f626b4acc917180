#include "bench/partition_processes.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "bench/job_run.h"
#include "motley/data/local/worker_cost.h"

namespace motley::bench {
namespace {

// Seconds a sample of each worker.
struct Shape {
  const char* name;
  std::vector<double> seconds_per_sample;
};

std::string cluster_text(const std::vector<std::string>& workers) {
  std::string text = "version: 2\ndevice_types: [{name: core, kind: cpu, count: 8}]\nworkers:\n";
  for (std::size_t i = 0; i < workers.size(); ++i) {
    text += fmt::format("  - {{name: worker-{}, device: core, {}}}\n", i, workers[i]);
  }
  return text;
}

// Whole steps against the time of the best integer split of the emulated paces, which nothing can beat.
Result<BenchRow> emulated(const BenchOptions& options) {
  const std::vector<Shape> shapes = {{"1-1-half-quarter", {0.0015, 0.0015, 0.003, 0.006}},
                                     {"1-fifth", {0.001, 0.005}},
                                     {"1-half-third", {0.0015, 0.003, 0.0045}},
                                     {"equal", {0.0015, 0.0015}}};
  double worst = 0;
  std::string note;
  for (const Shape& shape : shapes) {
    std::vector<std::string> workers;
    std::vector<data::WorkerCost> costs;
    for (const double seconds : shape.seconds_per_sample) {
      workers.push_back(fmt::format("seconds_per_sample: {} s", seconds));
      costs.push_back({0, seconds});
    }
    const std::vector<data::WorkerLimits> limits(costs.size());
    MOTLEY_ASSIGN(const data::MinMaxSplit best, data::solve_min_max(costs, limits, 256));
    MOTLEY_ASSIGN(const JobRun run,
                  run_job(options, options.source_folder / "examples/fashion-mnist/job.yaml", cluster_text(workers),
                          {"--model.name", "mlp", "--steps", "70", "--evaluate.every-epochs", "0"}));
    const double gap = median(run.balanced_seconds) / best.seconds - 1;
    worst = std::max(worst, gap);
    note += fmt::format("{}{} {:.3f}", note.empty() ? "" : ", ", shape.name, gap);
    if (options.progress) {
      options.progress(fmt::format("processes-emulated {}: step {:.1f} ms, optimum {:.1f} ms", shape.name,
                                   1e3 * median(run.balanced_seconds), 1e3 * best.seconds));
    }
  }
  return BenchRow{"processes-emulated",
                  "gap_to_optimum",
                  worst,
                  "share",
                  false,
                  0.05,
                  0.0,
                  std::nullopt,
                  "worst of four emulated shapes, whole steps: " + note};
}

// Keeps one core busy for as long as it lives.
class BusyThread {
 public:
  explicit BusyThread(int core)
      : thread_([this, core] {
          cpu_set_t set;
          CPU_ZERO(&set);
          CPU_SET(static_cast<std::size_t>(core), &set);
          ::sched_setaffinity(0, sizeof(set), &set);
          while (!stop_.load(std::memory_order_relaxed)) {
          }
        }) {}
  ~BusyThread() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Not emulated: two workers pinned to a core each, one core shared with a busy loop, which takes half of it. Control
// steps of the same run give the equal split.
Result<std::optional<BenchRow>> pinned(const BenchOptions& options) {
  if (std::thread::hardware_concurrency() < 2) {
    if (options.progress) {
      options.progress("processes-pinned is left out: it needs two cores");
    }
    return std::optional<BenchRow>();
  }
  const BusyThread busy(1);
  MOTLEY_ASSIGN(const JobRun run, run_job(options, options.source_folder / "examples/fashion-mnist/job.yaml",
                                          cluster_text({"cores: [0]", "cores: [1]"}),
                                          {"--global-batch-size", "512", "--steps", "200", "--baseline.every", "20",
                                           "--baseline.steps", "5", "--evaluate.every-epochs", "0"}));
  const double ratio = median(run.balanced_seconds) / median(run.baseline_seconds);
  return std::optional<BenchRow>(BenchRow{"processes-pinned", "slowdown_against_equal", ratio, "ratio", false, 0.95,
                                          2.0 / 3, std::nullopt,
                                          "not emulated; limit: the busy loop takes exactly half of its core"});
}

}  // namespace

Result<std::vector<BenchRow>> partition_processes(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  MOTLEY_ASSIGN(rows.emplace_back(), emulated(options));
  MOTLEY_ASSIGN(std::optional<BenchRow> row, pinned(options));
  if (row) {
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace motley::bench
