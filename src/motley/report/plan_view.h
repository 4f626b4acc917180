// A plan as a person would draw it: for the terminal, and as pages that open offline.
#pragma once

#include <string>

#include "motley/planning/search/found_plan.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::report {

std::string plan_text(const planning::FoundPlan& found);
std::string plan_page(const planning::FoundPlan& found);

// The simulated step of a plan as a card for a page, so that it is seen who waits for what: stages below each other,
// with what each of their devices does and what they send; and where the step's time goes. Needs the timeline's events.
std::string plan_timeline(const planning::Timeline& timeline, const planning::Plan& plan);

// The same step in lines: its time, where that goes, and each device's bubble fraction.
std::string simulation_text(const planning::Timeline& timeline, const planning::Plan& plan);

// A whole page with that card (motley simulate --html).
std::string simulation_page(const planning::Timeline& timeline, const planning::Plan& plan);

}  // namespace motley::report
