// The rule for every file that a command writes because a flag names it, or by default: it can be written, none takes
// the place of another, and one that is there is kept unless --overwrite is given. Told before anything is measured.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/base/result.h"

namespace motley::cli {

// Whether the command has a flag that names such a file (OptionKind::kOutput).
bool writes_files(const CLI::App& command);

// After parsing. Errors (kInvalidInput) name the flag.
Status check_output_files(const CLI::App& command, bool overwrite);

}  // namespace motley::cli
