// The commands of the binary. Each adds itself to the command line and, when it is the one that was typed, runs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "motley/base/result.h"

namespace motley::cli {

// What main runs after parsing: set by the command that was typed. Success is exit code 0.
using Action = std::function<Status()>;

void add_check(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_schedule(CLI::App& app, Action& action);
void add_schedule_service(CLI::App& schedule, Action& action);  // below add_schedule's command
void add_server(CLI::App& app, Action& action);
void add_data_server(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);

}  // namespace motley::cli
