#include "bench/demo_bench.h"

#include "bench/job_run.h"

namespace motley::bench {

Result<std::vector<BenchRow>> demo_bench(const BenchOptions& options) {
  const std::vector<std::string> flags =
      options.quick ? std::vector<std::string>{"--steps", "150"} : std::vector<std::string>{};
  MOTLEY_ASSIGN(JobRun run, run_job(options, options.source_folder / "examples/demo/job.yaml", "", flags));
  if (options.quick) {
    std::erase_if(run.summary, [](const BenchRow& row) { return row.metric == "test_accuracy"; });
  }
  for (BenchRow& row : run.summary) {
    row.note += row.note.empty() ? "speeds emulated" : "; speeds emulated";
  }
  return run.summary;
}

}  // namespace motley::bench
