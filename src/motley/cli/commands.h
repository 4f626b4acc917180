// The commands of the binary. Each adds itself to the command line and, when it is the one that was typed, runs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "motley/base/os/file.h"
#include "motley/base/result.h"
#include "motley/cli/options.h"

namespace motley::cli {

// What main runs after parsing: set by the command that was typed. Success is exit code 0.
using Action = std::function<Status()>;

void add_check(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_schedule(CLI::App& app, Action& action);
void add_server(CLI::App& app, Action& action);
void add_data_server(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);

// A command of this name with a flag for each option of its arguments, where they have any. Typed, it runs with them.
template <class Arguments, class Run>
std::pair<CLI::App&, Arguments&> add_command(CLI::App& parent, Action& action, const std::string& name,
                                             const std::string& description, const std::string& footer, Run run) {
  CLI::App* command = parent.add_subcommand(name, description)->footer(footer);
  const auto arguments = std::make_shared<Arguments>();
  if constexpr (requires { Arguments::options(); }) add_options(*command, *arguments);
  command->callback([&action, arguments, run] { action = [arguments, run] { return run(*arguments); }; });
  return {*command, *arguments};
}

// Writes a file that a flag names and says so.
inline Status write_named(const char* what, const std::string& file, const std::string& content) {
  MOTLEY_TRY(write_file(file, content));
  std::printf("%s: %s\n", what, file.c_str());
  return {};
}

}  // namespace motley::cli
