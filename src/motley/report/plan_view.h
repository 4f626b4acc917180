// A plan as a person would draw it: for the terminal, and as a page that opens offline.
#pragma once

#include <string>

#include "motley/planning/search/found_plan.h"

namespace motley::report {

std::string plan_text(const planning::FoundPlan& found);
std::string plan_page(const planning::FoundPlan& found);

}  // namespace motley::report
