// A job that may have other numbers of workers than it asks for.
#pragma once

#include <string>

#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

inline Job elastic_job(const std::string& name, double arrival, double duration, int workers, int most) {
  Job job{name, arrival, duration, workers};
  job.elastic.emplace();
  job.elastic->max_workers = most;
  return job;
}

}  // namespace motley::scheduling
