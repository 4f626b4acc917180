#include "motley/cli/run.h"

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "motley/base/log.h"
#include "motley/base/os/terminal.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

int exit_code(const Error& error) {
  if (error.code == ErrorCode::kInvalidInput) return 2;
  return error.code == ErrorCode::kInterrupted ? 130 : 1;
}

// A command that is not there, or none, is answered with those that are.
std::string explain(const CLI::App& app, const CLI::ParseError& problem) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  if (command->get_require_subcommand_min() == 0) return problem.what();
  std::vector<std::string> accepted;
  for (const CLI::App* known :
       command->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    accepted.push_back(known->get_name());
  }
  const std::string of = command == &app ? "motley" : "motley " + command->get_name();
  const std::vector<std::string> given = command->remaining();
  return fmt::format("{}: {}; accepted: {}", of,
                     given.empty() ? "needs a command" : fmt::format("'{}' is no command", given[0]),
                     fmt::join(accepted, ", "));
}

}  // namespace

int run(int argc, const char* const* argv) {
  start_logging("info");
  CLI::App app("Trains deep networks on mixed hardware, so that heterogeneous workers finish together.", "motley");
  app.set_version_flag("--version", "motley " MOTLEY_VERSION);
  app.require_subcommand(1);
  Action action;
  for (const auto add : {add_check, add_profile, add_plan, add_simulate, add_train, add_launch, add_export,
                         add_schedule, add_server, add_data_server, add_report}) {
    add(app, action);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) {  // --help, --version
      return app.exit(problem);
    }
    std::fprintf(stderr, "motley: %s %s (--help lists all flags)\n",
                 colored("error:", TextColor::kBad, STDERR_FILENO).c_str(), explain(app, problem).c_str());
    return 2;
  }
  try {
    const Status status = action();
    if (status) return 0;
    std::fflush(stdout);
    const std::string& message = status.error().message;  // none where it has been told to somebody else
    const bool is_interrupted = status.error().code == ErrorCode::kInterrupted;
    const std::string error = is_interrupted ? "" : colored("error:", TextColor::kBad, STDERR_FILENO) + " ";
    if (!message.empty()) std::fprintf(stderr, "motley: %s%s\n", error.c_str(), message.c_str());
    return exit_code(status.error());
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "motley: error: %s\n", problem.what());
    return 1;
  }
}

}  // namespace motley::cli
