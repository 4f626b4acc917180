// The text of --help: short, of one topic, or all of it.
#pragma once

#include <string>

#include "motley/base/result.h"
#include "motley/cli/command_text.h"

namespace motley::cli {

// What the command does, its arguments, its own flags, the commonest keys of the job and the topics of the others, and
// an example.
std::string short_help(const CommandText& command);

// All keys of the job of a topic, such as "optimizer"; with "all" the whole help. Errors (kInvalidInput): no such
// topic.
Result<std::string> help_of_topic(const CommandText& command, const std::string& topic);

}  // namespace motley::cli
