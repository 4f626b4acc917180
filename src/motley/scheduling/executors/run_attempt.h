// The wrapper under which the command of every attempt runs, whoever starts it, and what it notes in the attempt's
// folder for executors to find, whichever process they are:
//
//   lock    held for as long as the wrapper lives, where its host tells locks
//   begun   the wrapper's process; made by whoever comes first, so that the command begins once at most
//   ended   the command's exit code, or 128 + the signal that ended it; written whole, and durable
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

struct AttemptRun {
  std::filesystem::path folder;      // the attempt's; it is there
  std::string directory;             // where the command runs
  std::vector<std::string> command;  // a program, looked up in PATH, and its arguments
  bool is_batch_job = false;         // of Slurm
};

// Runs the command unless it has begun already, and notes how it ended: as in a shell with 127 where there is no such
// program and 126 where it cannot be started. SIGTERM, SIGINT and SIGHUP to this process go on to the command and its
// group. To be called before threads are started. Errors: the folder cannot be written.
//
// In a batch job srun would end its tasks at once if it got SIGTERM itself. So the command is left alone where it has
// srun run something, and Slurm brings the signal to the tasks, as soon as there are any. Where the command has failed
// unasked, `suspects` names the nodes of the job that do not answer: Slurm itself takes minutes to find them gone.
Status run_attempt(AttemptRun run);

// What runs an attempt so: `motley run-attempt` of this very program. Tests have another program for it.
std::vector<std::string> attempt_words(const std::vector<std::string>& wrapper, const Attempt& attempt);
std::vector<std::string> own_attempt_wrapper();

// Makes sure that an attempt never begins; false where it has.
bool forbid(const Attempt& attempt);
bool has_begun(const Attempt& attempt);
std::optional<int> read_exit_code(const Attempt& attempt);

}  // namespace motley::scheduling
