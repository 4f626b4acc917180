// motley run-attempt: the wrapper under which the scheduler's executors run an attempt of a job; not for users.
#include "motley/cli/commands.h"
#include "motley/scheduling/executors/run_attempt.h"

namespace motley::cli {

void add_run_attempt(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run-attempt", "Run an attempt of a scheduler's job once")->group("");
  auto run = std::make_shared<scheduling::AttemptRun>();
  command->add_option("FOLDER", run->folder, "The attempt's")->required();
  command->add_option("DIRECTORY", run->directory, "Where the command runs")->required();
  command->add_option("COMMAND", run->command, "Behind --: a program and its arguments")->required();
  command->add_flag("--batch-job", run->is_batch_job, "In a batch job of Slurm");
  command->callback([&action, run] { action = [run] { return scheduling::run_attempt(*run); }; });
}

}  // namespace motley::cli
