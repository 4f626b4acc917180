// The page of a run: one HTML file that opens anywhere, offline, and shows how the run learned, who did what in a step,
// and what balancing the workers was worth.
#pragma once

#include <filesystem>
#include <string>

#include "motley/base/result.h"

namespace motley::report {

// Reads the run directory (docs/reference/run-directory.md) and draws its page. Also for runs that were cut short.
Result<std::string> render_run(const std::filesystem::path& folder);

// Writes it as report.html into the run directory.
Status write_report(const std::filesystem::path& folder);

}  // namespace motley::report
