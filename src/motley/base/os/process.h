// Other programs, and copies of this process: started so that they inherit nothing by accident, or run to their end for
// what they print.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"

namespace motley {

// This process's variables, with these ("NAME=value") in place of those of the same names or beside them.
std::vector<std::string> environment_with(const std::vector<std::string>& variables);

struct Program {
  enum class Group { kOurs, kOwn, kOwnSession };

  std::vector<std::string> words;                               // a program, looked up in PATH, and its arguments
  std::vector<std::string> environment = environment_with({});  // all of it
  // Descriptors that it gets as its own; -1: /dev/null for the input, ours for the other two.
  int input = -1, output = -1, errors = -1;
  Group group = Group::kOurs;  // of processes, which a signal of the terminal reaches together
};

// Starts the program with no signal blocked; in a session of its own, with none ignored either. Returns its process,
// which is the caller's to wait for. Errors: kInvalidInput where there is no such program or its arguments are
// too long, else kUnavailable.
Result<pid_t> spawn(const Program& program);

// Starts a copy of this process (fork) that has the program's environment, descriptors and group as spawn would give
// them, no handlers of signals and none blocked, calls `run` with the program's words, and exits with what that
// returns; `name` (cut after 15 characters) is what `ps -o comm` shows. What this process has loaded and initialised
// need not be so again; what it has written and not flushed is flushed here. Only where can_fork(). Errors:
// kUnavailable.
Result<pid_t> fork_into(const Program& program, const std::function<int(int, const char* const*)>& run,
                        const std::string& name);

// Whether a copy of this process would work: it has one thread, as locks that others hold are never released in it.
bool can_fork();

// As /proc has it: 'R' runs, 'T' is stopped, 'Z' has ended and was not waited for, ...; none where there is no such
// process.
std::optional<char> process_state(pid_t process);

// Of a status that waitpid gave: the exit code, or 128 + the signal that ended the process.
int exit_code(int status);

struct Output {
  int exit_code = 0;
  std::string text;  // of its standard output

  bool is_good() const { return exit_code == 0; }
};
// Runs the program, in a group of its own, until it has ended and closed its output; `output` of `program` is not used.
// Errors: those of spawn; kTimeout at the deadline, when the group has been killed.
Result<Output> run_program(Program program, const Deadline& deadline);

}  // namespace motley
