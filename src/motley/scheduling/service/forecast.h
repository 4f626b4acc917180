// What will become of live jobs, if estimates hold and nothing else happens: the controller's rules, its cooldowns and
// the times of its decisions, on a trace of what is left of the jobs.
#pragma once

#include <vector>

#include "motley/base/clock.h"
#include "motley/scheduling/service/controller.h"

namespace motley::scheduling {

struct Forecast {
  double starts = 0;    // seconds from now; infinite: never
  double finishes = 0;  // likewise
};

// The jobs that are not over, and what each of them begins with.
struct ForecastJobs {
  std::vector<Job> jobs;
  std::vector<Controller::Standing> standings;
};

// By job. Where `has_changed`, as nodes or jobs are others than at present, the policy decides at once, as it does when
// they come to be. Attempts that are to end do so at once. Errors: those of the policy; kTimeout.
Result<std::vector<Forecast>> forecast(const Controller::Snapshot& present, const ForecastJobs& jobs,
                                       const ClusterTopology& topology, bool has_changed, const Deadline& deadline);

}  // namespace motley::scheduling
