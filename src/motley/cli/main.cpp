// The binary's entry: parses the command line, runs the command, and turns its error into the last line and the exit
// code (0 done, 1 failed, 2 wrong usage or input, 130 interrupted).
#include <cstdio>
#include <exception>

#include "motley/base/log.h"
#include "motley/cli/commands.h"

namespace {

int exit_code(const motley::Error& error) {
  switch (error.code) {
    case motley::ErrorCode::kInvalidInput:
      return 2;
    case motley::ErrorCode::kInterrupted:
      return 130;
    default:
      return 1;
  }
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

int main(int argc, char** argv) {
  motley::start_logging("info");
  CLI::App app("Trains deep networks on mixed hardware, so that heterogeneous workers finish together.", "motley");
  app.set_version_flag("--version", "motley " MOTLEY_VERSION);
  app.require_subcommand(1);
  motley::cli::Action action;
  motley::cli::add_check(app, action);
  motley::cli::add_profile(app, action);
  motley::cli::add_plan(app, action);
  motley::cli::add_simulate(app, action);
  motley::cli::add_train(app, action);
  motley::cli::add_schedule(app, action);
  motley::cli::add_run_attempt(app, action);
  motley::cli::add_server(app, action);
  motley::cli::add_data_server(app, action);
  motley::cli::add_report(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) {  // --help, --version
      return app.exit(problem);
    }
    std::fprintf(stderr, "motley: error: %s (--help lists all flags)\n", explain(app, problem).c_str());
    return 2;
  }
  try {
    const motley::Status status = action();
    if (status) {
      return 0;
    }
    std::fflush(stdout);
    std::fprintf(stderr, "motley: %s%s\n",
                 exit_code(status.error()) == 130 ? "" : "error: ", status.error().message.c_str());
    return exit_code(status.error());
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "motley: error: %s\n", problem.what());
    return 1;
  }
}
