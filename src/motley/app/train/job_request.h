// A job as commands name it, and what is done with one besides training: its network is profiled, its data served.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "motley/app/planning_input.h"
#include "motley/train/job/job_data.h"

namespace motley::app {

struct JobRequest {
  std::string file;
  std::vector<std::pair<std::string, std::string>> flags;  // keys and values over the file's
};
// The job, checked.
Result<train::Job> read_job(const JobRequest& request);

// The keys of jobs that are flags, each with its default: all but the version, which is that of a file.
std::vector<std::pair<OptionText, OptionValue>> job_options();

struct ProfileRequest {
  JobRequest job;
  std::string model;  // "": the job's
  std::vector<std::int64_t> batches = {1, 4, 16, 64};
  double seconds = 40;
  bool estimate = false;
  std::vector<std::string> scales;

  static const OptionTable<ProfileRequest>& options();
};
// The network's profile on the devices of this machine, or what its model is estimated to take on those of a cluster
// file. Errors (kInvalidInput) name the flag.
Result<model::Profile> make_profile(const ProfileRequest& request);

struct DataRequest {
  JobRequest job;
  std::string listen = "127.0.0.1:29700";
  std::string token_file;  // "": that of MOTLEY_TOKEN_FILE

  static const OptionTable<DataRequest>& options();
};
// Errors name the flag, or the key of the job.
Result<train::RunningDataServer> serve_data(const DataRequest& request);

}  // namespace motley::app
