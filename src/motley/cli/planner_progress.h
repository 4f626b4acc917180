// How commands show what a planner is doing.
#pragma once

#include <string>

#include "motley/app/solving.h"

namespace motley::cli {

// An app::Ask: the planner's answer, with a line that replaces itself meanwhile, on a terminal only.
Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request);

// "motley: warning: ..." on stderr.
void print_warning(const std::string& text);

}  // namespace motley::cli
