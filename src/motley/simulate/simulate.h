// A plan replayed event by event: the timeline that it should have, with contended links, unlike replicas and
// stragglers, where the cost model has only a formula.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/cost/problem.h"
#include "motley/plan/plan.h"

namespace motley::simulate {

enum class Work { kForward, kBackward, kTransfer, kExchange };
const char* to_string(Work work);

// One thing that one resource does without a break.
struct Event {
  Work work = Work::kForward;
  int stage = 0;
  int replica = 0;       // of the stage; for kTransfer, -1: the link from this stage to the next (or back)
  int micro_batch = -1;  // -1 for kExchange
  double start = 0;      // seconds from the step's begin
  double end = 0;
};

struct Device {
  int stage = 0;
  int replica = 0;
  std::string type;
  double busy_seconds = 0;
  double idle_share = 0;  // of the step
};

// A device that is slower than its profile, by a factor, from and to a time.
struct Straggler {
  int stage = 0;
  int replica = 0;
  double slowdown = 1;  // >= 1
};

struct Options {
  std::vector<Straggler> stragglers;
  bool links_contended = true;  // transfers of one pair of types share its bandwidth; else each has all of it
  double jitter = 0;            // relative standard deviation of computation times
  std::uint64_t seed = 0;
  bool keep_events = true;  // false: only the sums
};

struct Timeline {
  double step_seconds = 0;
  double communication_seconds = 0;  // of the step, during which no device computes, plus exchange
  double communication_share = 0;    // that part of the step
  std::vector<Event> events;
  std::vector<Device> devices;
  std::int64_t event_count = 0;
};

// Errors (kInvalidInput): a plan that does not fit the problem (layers, types), more replicas than a micro-batch has
// samples where shares cannot be whole.
Result<Timeline> simulate(const cost::Problem& problem, const plan::Plan& plan, const Options& options = {});

// Chrome trace format ("traceEvents"), a process a stage, a thread a replica. Opens in chrome://tracing and Perfetto.
std::string to_chrome_trace(const Timeline& timeline, const plan::Plan& plan);

}  // namespace motley::simulate
