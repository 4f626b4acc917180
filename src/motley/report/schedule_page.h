// The page of a replayed trace, which opens offline: which policy is best at what, their figures side by side, the
// queue and the devices over time, and who ran where.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "motley/scheduling/simulator/simulator.h"

namespace motley::report {

struct ScheduleView {
  std::string trace;
  const std::vector<scheduling::Job>& jobs;
  const scheduling::ClusterTopology& topology;
  const std::vector<scheduling::PolicyOutcome>& outcomes;    // with their runs, for a page
  double horizon = std::numeric_limits<double>::infinity();  // when all ended, whatever was left to do
  bool has_failures = false;                                 // of nodes
};

// The same columns for the terminal and the page, a header and a line a policy.
std::vector<std::vector<std::string>> schedule_rows(const ScheduleView& view);

std::string schedule_page(const ScheduleView& view);

}  // namespace motley::report
