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

// For a terminal: a line a policy, in the columns of the page, what is the same under every policy said below them, and
// what the columns' names mean.
std::string schedule_text(const ScheduleView& view);
// The meaning of those of these columns whose names do not say it, a line each.
std::string schedule_legend(const std::vector<std::string>& columns);

std::string schedule_page(const ScheduleView& view);

}  // namespace motley::report
