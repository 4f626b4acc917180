// All commands, as typed: what the program and `python -m motley` do.
#pragma once

namespace motley::cli {

// Parses the command line, runs its command, and turns an error into the last line and the exit code: 0 done, 1 failed,
// 2 wrong usage or input, 130 interrupted. Signals are the command's: each ends the process where the command does not
// take it.
int run(int argc, const char* const* argv);

}  // namespace motley::cli
