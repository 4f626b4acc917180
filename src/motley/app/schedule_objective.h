// What a scheduling policy optimises, as an option of the requests that name one.
#pragma once

#include "motley/scheduling/simulator/policy.h"
#include "motley/serial/options.h"

namespace motley::app {

OptionText objective_option();
// Of one of the option's words.
scheduling::Objective parse_objective(const std::string& word);

}  // namespace motley::app
