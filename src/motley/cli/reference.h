// The reference of all commands: docs/reference/commands.md.
#pragma once

#include <string>

#include "motley/cli/command_text.h"

namespace motley::cli {

// A Markdown page with every command's usage, arguments and flags. The keys of a job have a page of their own.
std::string command_reference(const CommandText& program);

}  // namespace motley::cli
