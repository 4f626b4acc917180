// Runs of whole jobs for benchmarks: real processes of this binary, whose metrics are read back.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace motley::bench {

struct JobRun {
  std::vector<double> balanced_seconds;  // of each step after the settling ones, with the shares that the job chose
  std::vector<double> baseline_seconds;  // of the baseline steps with the equal split
  std::vector<BenchRow> summary;         // the rows of summary.json
  std::vector<double> losses;            // of each step
  std::string weights;                   // the last checkpoint's weights.safetensors
};

// `motley train` with this job file and these flags, in a temporary folder; `cluster`, where not empty, is the text of
// the cluster file. Output of the job goes to its logs. Fails with the job's last line.
Result<JobRun> run_job(const BenchOptions& options, const std::filesystem::path& job, const std::string& cluster,
                       const std::vector<std::string>& flags);

}  // namespace motley::bench
