// The flags that say which model is planned on which machines, for every command that plans.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "motley/app/planning_input.h"

namespace motley::cli {

// Accepts finite numbers above 0.
CLI::Validator above_zero();

void add_planning_input(CLI::App& command, app::PlanningInput& input);

// "motley: warning: ..." on stderr.
void print_warning(const std::string& text);

}  // namespace motley::cli
