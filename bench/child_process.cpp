// posix_spawn with two pipes.
#include "bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "motley/base/os/file.h"

extern char** environ;

namespace motley::bench {

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& arguments,
                                                          const std::vector<std::string>& environment) {
  std::vector<char*> argument_list;
  for (const auto& argument : arguments) argument_list.push_back(const_cast<char*>(argument.c_str()));
  argument_list.push_back(nullptr);
  std::vector<char*> environment_list;
  for (char** entry = environ; *entry != nullptr; ++entry) environment_list.push_back(*entry);
  for (const auto& entry : environment) environment_list.push_back(const_cast<char*>(entry.c_str()));
  environment_list.push_back(nullptr);

  int to_child[2];
  int from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe: {}", errno_text());
  if (::pipe2(from_child, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe: {}", errno_text());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  pid_t process = -1;
  const int problem =
      ::posix_spawnp(&process, argument_list[0], &actions, nullptr, argument_list.data(), environment_list.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  if (problem != 0) {
    ::close(to_child[1]);
    ::close(from_child[0]);
    return fail(ErrorCode::kIo, "cannot start '{}': {}", arguments[0], std::strerror(problem));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(arguments[0], process, to_child[1], from_child[0]));
}

ChildProcess::~ChildProcess() {
  ::close(input_);
  const Deadline deadline = Deadline::after(2);
  while (::waitpid(process_, nullptr, WNOHANG) == 0) {
    if (deadline.passed()) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::close(output_);
}

void ChildProcess::kill() {
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

Status ChildProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(input_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return fail(ErrorCode::kIo, "cannot write to '{}': {}", name_, errno_text());
  }
  return {};
}

Result<std::string> ChildProcess::read_line(const Deadline& deadline) {
  for (;;) {
    if (const auto end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd descriptor = {output_, POLLIN, 0};
    if (::poll(&descriptor, 1, deadline.remaining_milliseconds()) <= 0) {
      return fail(ErrorCode::kTimeout, "'{}' did not answer within {:.3g} s", name_, deadline.allowed());
    }
    char bytes[256];
    const ssize_t got = ::read(output_, bytes, sizeof(bytes));
    if (got <= 0) return fail(ErrorCode::kIo, "'{}' ended before it answered", name_);
    buffered_.append(bytes, static_cast<std::size_t>(got));
  }
}

Status ChildProcess::finish(const Deadline& deadline) {
  for (;;) {
    if (const auto line = read_line(deadline); !line) {
      return line.error().code == ErrorCode::kTimeout ? Status(fail(line.error())) : Status();
    }
  }
}

}  // namespace motley::bench
