// What is said of a command line that is not accepted: the word that is wrong, what was probably meant, and what is
// accepted in its place.
#pragma once

#include <span>
#include <string>

#include "motley/cli/command_text.h"
#include "motley/serial/renamed_keys.h"

namespace motley::cli {

// A flag, or a command of one, that had another name before.
struct RenamedFlag {
  std::string_view command;  // "motley plan"
  std::string_view before;   // "--page"
  std::string_view now;      // "--html"
};

struct OldNames {
  std::span<const RenamedFlag> flags;
  std::span<const RenamedKey> keys;  // of the job, whose flags had them, too
};

// Of a word in place of the name of one of the command's commands.
std::string explain_unknown_command(const CommandText& command, const std::string& word, const OldNames& old = {});
// Of the command line that `app` has tried to parse.
std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& problem, const OldNames& old);

}  // namespace motley::cli
