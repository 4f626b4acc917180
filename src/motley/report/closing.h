// What a person wants to know once a run has ended, as lines for the terminal: what was learned, how fast, where the
// time went, and where the page is.
#pragma once

#include <filesystem>
#include <string>

#include "motley/base/result.h"

namespace motley::report {

// Of the run directory of a run that is done. Targets that were met or missed are coloured where standard output shows
// colours.
Result<std::string> closing_text(const std::filesystem::path& folder);

}  // namespace motley::report
