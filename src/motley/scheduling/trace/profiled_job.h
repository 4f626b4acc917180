// What a profile that Motley measured (motley/model/profile.h) says of a job that trains the model in it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "motley/model/profile.h"

namespace motley::scheduling {

struct ProfiledJob {
  double compute_seconds = 0;  // of an iteration of the profile's batch, on the first of its devices
  double gradient_bytes = 0;   // of the dense parameters, and of the rows of sparse tables that a batch reads
  std::vector<std::pair<std::string, double>> speeds;  // of each of its devices, by name, beside the first's
};

ProfiledJob profiled_job(const model::Profile& profile);

}  // namespace motley::scheduling
