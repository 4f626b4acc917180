// A training job as a scheduler sees it.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "motley/schedule/utility.h"

namespace motley::schedule {

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

  int least() const { return elastic ? elastic->least : workers; }
  int most() const { return elastic ? elastic->most : workers; }
  double reserve() const { return elastic ? elastic->reserve : 0; }
  double device_seconds() const { return duration * workers; }
  // What it has done after so many seconds of its duration.
  double iterations_after(double seconds) const {
    return iterations > 0 && duration > 0 ? iterations * (seconds / duration) : seconds;
  }
  double worth_after(double seconds) const { return utility.at(iterations_after(seconds)); }
};

}  // namespace motley::schedule
