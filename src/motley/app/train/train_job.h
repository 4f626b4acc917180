// What `motley train` does: starts the workers of a job on this machine, or joins as the rank that torchrun, mpirun,
// srun or a file of addresses gives this process.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "motley/app/train/job_request.h"

namespace motley::app {

struct TrainRequest {
  JobRequest job;  // without a file: that of the run that is resumed
  std::string run_directory;
  std::string resume = "false";  // or "true" or "auto"
  bool overwrite = false;
  bool quiet = false;  // logs go to the run folder only
  bool rows = false;
  std::string hosts;
  int rank = -1;
  std::string join;  // "host:port"
  std::string secret_file;

  static const OptionTable<TrainRequest>& options();  // but for resume and quiet
};

struct TrainView {
  Tell print;  // a line about where things are
  Tell warn;
  Ask ask;
  std::function<Status(const std::filesystem::path&)> write_page;          // of the run in a folder
  std::function<Result<std::string>(const std::filesystem::path&)> close;  // what is said of it at its end
};

// Until the job is done. Errors (kInvalidInput) name the flag or the key.
Status train_job(const TrainRequest& request, const TrainView& view);

// Where a launcher started this process beside the workers of its job: the process ends with it.
Status follow_launcher();

}  // namespace motley::app
