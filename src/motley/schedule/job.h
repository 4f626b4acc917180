// A training job as a scheduler sees it.
#pragma once

#include <string>

namespace motley::schedule {

struct Job {
  std::string name;
  double arrival = 0;   // seconds from the trace's begin
  double duration = 0;  // seconds that it trains with the workers it asks for
  int workers = 1;      // that it asks for: one device each, all at once or none

  double device_seconds() const { return duration * workers; }
};

}  // namespace motley::schedule
