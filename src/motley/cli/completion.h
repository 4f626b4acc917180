// Scripts that complete command lines in shells: commands, flags, choices, and files where a flag or an argument names
// one.
#pragma once

#include <string>

#include "motley/cli/command_text.h"

namespace motley::cli {

std::string bash_completion(const CommandText& program);
std::string zsh_completion(const CommandText& program);
std::string fish_completion(const CommandText& program);

}  // namespace motley::cli
