// What policies made of a trace of jobs, as a page that opens offline: figures side by side, the queue and the devices
// over time, and who ran where.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "motley/scheduling/simulator/simulator.h"

namespace motley::report {

struct PolicyOutcome {
  std::string policy;
  scheduling::Outcome outcome;  // with its runs
};

struct ScheduleView {
  std::string trace;
  const std::vector<scheduling::Job>& jobs;
  const scheduling::Machines& machines;
  const std::vector<PolicyOutcome>& outcomes;
  double horizon = std::numeric_limits<double>::infinity();  // when all ended, whatever was left to do
  bool has_failures = false;                                 // of servers
};

// The same columns for the terminal and the page, a header and a line a policy.
std::vector<std::vector<std::string>> schedule_rows(const ScheduleView& view);

std::string schedule_page(const ScheduleView& view);

}  // namespace motley::report
