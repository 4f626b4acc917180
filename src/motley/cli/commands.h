// The commands of the binary. Each adds itself to the command line and, when it is the one that was typed, runs.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "motley/base/os/file.h"
#include "motley/base/result.h"
#include "motley/cli/json_output.h"
#include "motley/cli/options.h"
#include "motley/cli/output_files.h"

namespace motley::cli {

// The flags of every command.
struct GeneralFlags {
  bool quiet = false;
  bool verbose = false;
  bool no_color = false;

  static const OptionTable<GeneralFlags>& options();
};

// What was typed, once it is parsed.
struct CommandLine {
  std::function<Status()> action;  // set by the command; success is exit code 0
  GeneralFlags general;
};

// With --help and --version; on commands of commands, too.
void add_general_flags(CLI::App& command, CommandLine& line);

void add_check(CLI::App& app, CommandLine& line);
void add_profile(CLI::App& app, CommandLine& line);
void add_plan(CLI::App& app, CommandLine& line);
void add_simulate(CLI::App& app, CommandLine& line);
void add_train(CLI::App& app, CommandLine& line);
void add_python_commands(CLI::App& app, CommandLine& line);  // launch, run and export
void add_schedule(CLI::App& app, CommandLine& line);
void add_server(CLI::App& app, CommandLine& line);
void add_data_server(CLI::App& app, CommandLine& line);
void add_report(CLI::App& app, CommandLine& line);
void add_completion(CLI::App& app, CommandLine& line);
void add_documents(CLI::App& app, CommandLine& line);
void add_help(CLI::App& app, CommandLine& line);

// One of the commands of the Python package, in a Python that has it, which takes this process's place. Its words are
// those behind its name.
Status run_python_command(const CLI::App& command, std::vector<std::string> words);

// A command of this name with a flag for each option of its arguments, and --overwrite where one names a file that is
// written. Flags that are no options are added first by the arguments' add_flags(command), where they have it. Typed,
// it runs with them, and with the general flags where `run` takes them; where the arguments have check(), which says
// what is missing of the input, that is asked before files that would be written are.
template <class Arguments, class Run>
std::pair<CLI::App&, Arguments&> add_command(CLI::App& parent, CommandLine& line, const std::string& name,
                                             const std::string& description, const std::string& footer, Run run) {
  CLI::App* command = parent.add_subcommand(name, description)->footer(footer);
  const auto arguments = std::make_shared<Arguments>();
  const auto overwrite = std::make_shared<bool>(false);
  if constexpr (requires { arguments->add_flags(*command); }) arguments->add_flags(*command);
  if constexpr (requires { Arguments::options(); }) add_options(*command, *arguments);
  if (writes_files(*command)) {
    add_option(*command, {"overwrite", OptionKind::kBoolean, "replace files that exist"}, false,
               [overwrite](const OptionValue&) { *overwrite = true; });
  }
  add_general_flags(*command, line);
  command->callback([&line, command, arguments, overwrite, run] {
    line.action = [&line, command, arguments, overwrite, run]() -> Status {
      if constexpr (requires { arguments->check(); }) MOTLEY_TRY(arguments->check());
      MOTLEY_TRY(check_output_files(*command, *overwrite));
      if constexpr (std::is_invocable_v<Run, const Arguments&, const GeneralFlags&>) {
        return run(*arguments, line.general);
      } else {
        return run(*arguments);
      }
    };
  });
  return {*command, *arguments};
}

// Writes a file that a flag names and says so.
inline Status write_named(const char* what, const std::string& file, const std::string& content) {
  MOTLEY_TRY(write_file(file, content));
  std::printf("%s: %s\n", what, file.c_str());
  return {};
}

}  // namespace motley::cli
