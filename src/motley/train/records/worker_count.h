// How many workers a job has, and is to have, as two files in a folder say it: that of the attempt where a scheduler
// runs the job, else that of the run.
//
//   workers       what somebody asks for: a number, and behind it whatever tells this request from others; written
//                 whole and renamed to this name, so that nobody reads half of it
//   workers.json  what the job's launcher says of it; it is there from the start to the end of the workers
#pragma once

#include <filesystem>
#include <string>

#include "motley/base/result.h"
#include "motley/serial/json_fields.h"

namespace motley::train {

struct WorkerCount {
  int workers = 0;      // with which the last step was done; 0: none was yet
  double since = 0;     // when the first step with them was done, in seconds since 1970
  int min_workers = 0;  // that may be asked for, and
  int max_workers = 0;  // how many at most; 0: their number cannot be changed
  std::string asked;    // the last request that was followed to its end, or refused
  std::string refused;  // why; empty: it was followed

  bool operator==(const WorkerCount&) const = default;
};

template <class Archive>
void fields(Archive& archive, WorkerCount& count) {
  archive.required("workers", count.workers);
  archive.required("since", count.since);
  archive.required("min_workers", count.min_workers);
  archive.required("max_workers", count.max_workers);
  archive.required("asked", count.asked);
  archive.required("refused", count.refused);
}

inline std::filesystem::path worker_request_file(const std::filesystem::path& folder) {
  return folder / "workers";
}
inline std::filesystem::path worker_count_file(const std::filesystem::path& folder) {
  return folder / "workers.json";
}

// The number that a request asks for. Errors (kInvalidInput): it asks for none between these.
Result<int> parse_worker_request(const std::string& text, int min_workers, int max_workers);

}  // namespace motley::train
