// Logging: spdlog with one format for all processes. Lines go to standard error, on a terminal with the level in its
// colour (not where the variable NO_COLOR is set); a rank's lines start with its number.
#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>

#include "motley/base/result.h"

namespace motley {

// Sets the process's logger: level is one of trace, debug, info, warn, error, off; rank -1 is a process without a rank.
// Call once at start, before other threads log.
void start_logging(const std::string& level, int rank = -1);

// From now on lines go to the end of this file, too. Any thread. Errors: kIo.
Status log_to_file(const std::filesystem::path& file);

}  // namespace motley
