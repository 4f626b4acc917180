// What the exit code of the program says, for everyone who documents it.
#pragma once

namespace motley::cli {

struct ExitCode {
  int code;
  const char* meaning;
};

inline constexpr ExitCode kExitCodes[] = {
    {0, "done; a service ended in order, as it was asked to"},
    {1, "failed while it ran"},
    {2, "wrong usage or input: a flag, a file or a value; nothing was written"},
    {130, "interrupted: stopped in order by Ctrl-C or SIGTERM, a training run with a checkpoint"},
    {143, "a worker left an elastic job, as it was asked to (SIGTERM); the job goes on"},
};

}  // namespace motley::cli
