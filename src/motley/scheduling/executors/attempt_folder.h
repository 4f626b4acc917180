// What is noted in an attempt's folder, for executors to find, whichever process they are. The command of every attempt
// runs under a wrapper, the small program motley-run-attempt, whoever starts it:
//
//   lock    held for as long as the wrapper lives, where its host tells locks
//   begun   the wrapper's process, and in which boot of its host and namespace of processes; made by whoever comes
//           first, so that the command begins once at most
//   workers, workers.json  how many workers are asked for, and there are (motley/train/records/worker_count.h)
//   ended   the command's exit code, or 128 + the signal that ended it, and in a second line why it could not be
//           started, where it could not; written whole, and durable
//
// What the command starts has the name of the folder in its environment, writes into the file `output` there, is in the
// wrapper's session, or descends from one of these. The wrapper takes the place of a parent that has ended, so that as
// long as it lives nothing that the command started is missed, whatever session it made and variables it dropped.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/os/own_program.h"
#include "motley/base/result.h"
#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

// motley-run-attempt, which is built and installed beside the programs that need it, such as this one. Errors:
// kUnavailable where it is not there.
Result<std::string> find_wrapper(const std::filesystem::path& folder = own_program().folder);
// The attempt's command under the wrapper. In a batch job of Slurm it does more (motley_run_attempt.cpp).
std::vector<std::string> wrapped_command(const std::string& wrapper, const Attempt& attempt, bool is_batch_job);

// Makes `begun`, with its text at once; false where it is there.
Result<bool> note_begun(const std::filesystem::path& folder, int process);
Status note_ended(const std::filesystem::path& folder, int exit_code, const std::string& why = "");

// Makes sure that an attempt never begins; false where it has.
bool forbid(const Attempt& attempt);
bool has_begun(const Attempt& attempt);
// False where this machine has been started anew since an attempt on it began.
bool was_begun_since_boot(const std::filesystem::path& folder);
// Nothing where no end has been noted, all of it. Errors: kIo where that cannot be told now.
Result<std::optional<AttemptStatus>> read_ended(const Attempt& attempt);

// Sends SIGKILL to all processes of the attempt on this machine but this one; false where there is none. They are gone
// once it returns false. Errors: kIo where they cannot be told now, as where this process may open no more files.
Result<bool> kill_processes(const std::filesystem::path& folder);

}  // namespace motley::scheduling
