// Starts one worker process a rank on this machine, and a parameter server where they need one, forwards and keeps
// their output, passes a stop on, changes how many workers there are, and reports the first failure: the failing rank's
// own error is the last line.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/os/own_program.h"
#include "motley/base/result.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/launch_state.h"

namespace motley::train {

struct LaunchOptions : LaunchRules {
  OwnProgram program;  // what starts each worker
  // Whether forks of this process may do so, where it has one thread: it has used nothing of PyTorch that a fork cannot
  // use again, such as autograd or an accelerator.
  bool may_fork = false;
  std::vector<std::string> worker_arguments;  // after the words of the program
  std::vector<std::string> server_arguments;  // of a parameter server to start first; none: no server
  // Where their number is asked for and told (motley/train/records/worker_count.h); empty: nowhere.
  std::filesystem::path count_folder = {};
  bool quiet = false;                               // logs go to the files only
  std::optional<Deadline> deadline = std::nullopt;  // by which all must have ended; none: they take their time
  // Where the caller takes the user's signals itself: a stop by it ends all workers at once.
  std::optional<std::stop_token> stop = std::nullopt;
};

// Runs until all workers have ended. Success when all ended with 0; kTimeout when the deadline has passed before, and
// those that still ran were killed; kInterrupted after a stop by SIGINT or SIGTERM that
// the workers followed, or by the token; else the error of the rank that failed first, with that rank in it. One that
// has left (kLeft) has not failed. A rank
// killed by a signal is named with the signal. With min_workers, those that were killed count for nothing where so many
// others have ended with 0 or as asked. No worker outlives the call. When a parameter server is lost, all start
// again from the last checkpoint, a few times at most; with min_workers another server takes its place.
Status launch_workers(LaunchOptions options, const RunDirectory& run);

// Called by a process that a launcher has started, as it begins: this signal comes where the launcher is killed.
Status follow_launcher(int signal);

// Called by a worker that ends with an error: tells the launcher, over the pipe of its output, which needs no room on a
// disk. `error.rank` says whom it is about.
void leave_error(const Error& error);

}  // namespace motley::train
