// Manual pages, one a command, in the man macros of roff.
#pragma once

#include <string>

#include "motley/cli/command_text.h"

namespace motley::cli {

// `program` is the command of all commands, `version` its version. The page of "motley plan" is motley-plan.1.
std::string man_page(const CommandText& command, const CommandText& program, const std::string& version);

}  // namespace motley::cli
