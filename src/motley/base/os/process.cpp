// posix_spawn, fork, and a pipe for what is printed.
#include "motley/base/os/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"

extern char** environ;

namespace motley {
namespace {

std::vector<char*> to_pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The descriptors that exec would have closed.
void close_private_descriptors() {
  std::vector<int> open;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    open.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (const int descriptor : open) {
    const int flags = ::fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0 && descriptor > STDERR_FILENO) ::close(descriptor);
  }
}

// As exec leaves them: ignored ones stay so. The handlers of a process's own faults are the sanitizers'.
void reset_signals() {
  for (int number = 1; number < NSIG; ++number) {
    if (number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGABRT) continue;
    struct sigaction action{};
    const bool is_known = ::sigaction(number, nullptr, &action) == 0;
    if (is_known && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// In the copy: what spawn asks posix_spawn for.
bool become(const Program& program) {
  if (program.group == Program::Group::kOwn) ::setpgid(0, 0);
  if (program.group == Program::Group::kOwnSession) ::setsid();
  reset_signals();
  const int input = program.input >= 0 ? program.input : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const auto& [from, to] : {std::pair(input, STDIN_FILENO), std::pair(program.output, STDOUT_FILENO),
                                 std::pair(program.errors, STDERR_FILENO)}) {
    if (from >= 0 && ::dup2(from, to) < 0) return false;
  }
  close_private_descriptors();
  return input >= 0;
}

}  // namespace

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    if (std::ranges::none_of(variables, [&](const std::string& own) { return own.starts_with(name); })) {
      all.push_back(text);
    }
  }
  return all;
}

Result<pid_t> spawn(const Program& program) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (program.input < 0) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  } else {
    posix_spawn_file_actions_adddup2(&actions, program.input, STDIN_FILENO);
  }
  if (program.output >= 0) posix_spawn_file_actions_adddup2(&actions, program.output, STDOUT_FILENO);
  if (program.errors >= 0) posix_spawn_file_actions_adddup2(&actions, program.errors, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int group = program.group == Program::Group::kOwn          ? POSIX_SPAWN_SETPGROUP
                    : program.group == Program::Group::kOwnSession ? POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF
                                                                   : 0;
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | group));
  pid_t process = -1;
  const int problem = ::posix_spawnp(&process, program.words.front().c_str(), &actions, &attributes,
                                     to_pointers(program.words).data(), to_pointers(program.environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (problem == 0) return process;
  return fail(problem == ENOENT || problem == E2BIG ? ErrorCode::kInvalidInput : ErrorCode::kUnavailable,
              "cannot start '{}': {}", program.words.front(), std::strerror(problem));
}

bool can_fork() {
  std::error_code problem;
  const std::filesystem::directory_iterator threads("/proc/self/task", problem);
  return !problem && std::distance(begin(threads), end(threads)) == 1;
}

Result<pid_t> fork_into(const Program& program, const std::function<int(int, const char* const*)>& run,
                        const std::string& name) {
  std::fflush(nullptr);
  const pid_t process = ::fork();
  if (process < 0) {
    return fail(ErrorCode::kUnavailable, "cannot start '{}': {}", program.words.front(), errno_text());
  }
  if (process > 0) {
    if (program.group == Program::Group::kOwn) ::setpgid(process, process);  // before anyone signals the group
    return process;
  }
  if (!become(program)) ::_exit(127);
  ::prctl(PR_SET_NAME, name.c_str());
  static std::vector<std::string> environment;  // which environ points into from here on
  static std::vector<char*> variables;
  environment = program.environment;
  variables = to_pointers(environment);
  environ = variables.data();
  const std::vector<std::string> words = program.words;
  std::exit(run(static_cast<int>(words.size()), to_pointers(words).data()));
}

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::optional<char> process_state(pid_t process) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", process), 4096).value_or("");
  const std::size_t name_end = stat.rfind(") ");  // names may have brackets
  return name_end == std::string::npos ? std::nullopt : std::optional(stat[name_end + 2]);
}

Result<Output> run_program(Program program, const Deadline& deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe: {}", errno_text());
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  program.output = writing.get();
  program.group = Program::Group::kOwn;
  MOTLEY_ASSIGN(const pid_t process, spawn(program));
  writing.close();
  Output output;
  std::array<char, 4096> block{};
  for (bool is_open = true;;) {
    if (is_open) {
      pollfd polled{reading.get(), POLLIN, 0};
      if (::poll(&polled, 1, deadline.remaining_milliseconds()) > 0) {
        const ssize_t bytes = ::read(reading.get(), block.data(), block.size());
        is_open = bytes > 0;
        output.text.append(block.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
      }
    } else {
      int status = 0;
      if (::waitpid(process, &status, WNOHANG) == process) {
        output.exit_code = exit_code(status);
        return output;
      }
      SteadyClock::instance().sleep_until(monotonic_seconds() + 1e-3);
    }
    if (deadline.passed()) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, nullptr, 0);
      return fail(ErrorCode::kTimeout, "'{}' did not end within {:.3g} s", program.words.front(), deadline.allowed());
    }
  }
}

}  // namespace motley
