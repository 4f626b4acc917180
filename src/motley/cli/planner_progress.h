// How commands show what a planner is doing.
#pragma once

#include "motley/planning/search/planner.h"

namespace motley::cli {

// The planner's answer, with a line that replaces itself meanwhile, on a terminal only.
Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request);

}  // namespace motley::cli
