// Logging: spdlog with one format for all processes. Lines go to standard error; a rank's lines start with its number.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace motley {

// Sets the process's logger: level is one of trace, debug, info, warn, error, off; rank -1 is a process without a rank.
// Call once at start, before other threads log.
void start_logging(const std::string& level, int rank = -1);

}  // namespace motley
