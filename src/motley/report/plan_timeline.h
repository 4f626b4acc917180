// The simulated step of a plan as a picture: a bar a device, so that it is seen who waits for what.
#pragma once

#include <string>

#include "motley/planning/plan/plan.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::report {

// A card for a page: stages below each other, with what each of their devices does and what they send; and where the
// step's time goes. Needs the timeline's events.
std::string plan_timeline(const planning::Timeline& timeline, const planning::Plan& plan);

// A whole page with that card (motley simulate --page).
std::string simulation_page(const planning::Timeline& timeline, const planning::Plan& plan);

}  // namespace motley::report
