// run.json as a value: who takes part in a run, on what, and how it ended (docs/reference/run-directory.md). The
// description of the fields is in run_file.cpp; docs/schema/run.schema.json follows from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::train {

struct RunWorker {
  int rank = 0;
  std::string name, device;
  std::string kind;                     // of the device: cpu, cuda, xpu, mps or emulated; empty: not known
  std::optional<std::string> emulated;  // what is emulated, such as "3 ms a sample"
};

// Files of the run's folder: the plan that it began with, and what that was predicted from, where that is known.
struct PlannedFiles {
  std::string plan;
  std::optional<std::string> profile, cluster;
};

// From a start, or a resumption, to the end of the processes.
struct RunAttempt {
  double started = 0;                    // seconds since 1970
  std::int64_t first_step = 0;           // that it was to do
  double after_seconds = 0;              // that the attempts before it took, as the times of metrics.jsonl count them
  int workers = 0;                       // with which it began
  std::optional<std::string> exit = {};  // as RunFile's; none while it goes on, and after it was killed
};

struct RunFile {
  std::string motley_version;
  double started = 0;  // seconds since 1970
  std::string name;
  std::vector<RunWorker> workers;
  std::string gradient_sync;
  std::int64_t global_batch_size = 0;    // 0: not known
  std::uint64_t training_samples = 0;    // likewise
  std::vector<std::string> class_names;  // in the order of classes; empty: they have none
  std::optional<double> price_per_hour;  // of all workers' devices; none where not every one has a price
  std::optional<PlannedFiles> planned;
  std::vector<RunAttempt> attempts;  // one, and another one for each time that it was resumed
  bool finished = false;
  std::optional<std::string> exit;   // done, failed or interrupted
  std::optional<std::string> error;  // the message, where it failed
  std::string machine;               // such as "2 cores, 23 GB"
};

// Errors: kInvalidInput with file, field, value and what would be accepted; kIo.
Result<RunFile> read_run_file(const std::filesystem::path& file);
Status write_run_file(const std::filesystem::path& file, const RunFile& run);

// Makes `run` the one that `before` says goes on: it keeps the time of its start, and gets another attempt.
void continue_run(RunFile& run, const RunFile& before, RunAttempt attempt);

// docs/schema/run.schema.json.
std::string run_schema();

}  // namespace motley::train
