// A training job as a scheduler sees it.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "motley/scheduling/trace/utility.h"

namespace motley::scheduling {

// What a job that may have more or fewer workers says of itself. Each worker trains mini-batches of one size, so that
// twice the workers do twice the work in an iteration.
struct Elastic {
  int least = 1;               // workers with which it can run
  int most = 1;                // workers that it can use
  double compute_seconds = 1;  // of an iteration: forward, backward, and what else does not depend on its workers
  double gradient_bytes = 0;
  double reduce_rate = std::numeric_limits<double>::infinity();  // bytes a second that a worker can add up
  double reserve = 0;          // bytes a second of each uplink that its ring reserves and then has; 0: takes its part
  double restart_seconds = 0;  // in which it trains nothing, whenever its workers change
};

struct Job {
  std::string name;
  double arrival = 0;   // seconds from the trace's begin
  double duration = 0;  // seconds that it trains with the workers it asks for, all of them on one server
  int workers = 1;      // that it asks for, one device each
  double deadline = std::numeric_limits<double>::infinity();  // seconds after its arrival by which it should be done
  std::optional<Elastic> elastic = {};  // none: it has what it asks for or nothing, and is as fast anywhere
  double iterations = 0;                // that it does in all, of one worker each; 0: one a second of its duration
  Utility utility = {};                 // what iterations are worth
  double device_hour_cost = 0;          // what an hour of one of its devices costs, in the same unit: energy, rent
  // By type of device, in the order of Machines::types: how fast it computes there, beside the devices for which its
  // times hold; 0: it cannot run there. Then all its workers have devices of one type at a time. Empty: it is as fast
  // on all, and may be on several.
  std::vector<double> type_speeds = {};

  // On the fastest, where no type is given.
  double speed_on(int type) const {
    if (type_speeds.empty()) return 1;
    return type < 0 ? *std::max_element(type_speeds.begin(), type_speeds.end())
                    : type_speeds[static_cast<std::size_t>(type)];
  }
  int least() const { return elastic ? elastic->least : workers; }
  int most() const { return elastic ? elastic->most : workers; }
  double reserve() const { return elastic ? elastic->reserve : 0; }
  double device_seconds() const { return duration * workers; }
  // What it has done after so many seconds of its duration.
  double iterations_after(double seconds) const {
    return iterations > 0 && duration > 0 ? iterations * (seconds / duration) : seconds;
  }
  double worth_after(double seconds) const { return utility.at(iterations_after(seconds)); }
  double cost_of(double device_seconds) const { return device_hour_cost * device_seconds / 3600; }
};

}  // namespace motley::scheduling
