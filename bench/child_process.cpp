// A program between two pipes.
#include "bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/base/os/process.h"

namespace motley::bench {

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& arguments,
                                                          const std::vector<std::string>& environment) {
  int to_child[2];
  int from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe: {}", errno_text());
  if (::pipe2(from_child, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, "cannot make a pipe: {}", errno_text());
  const Result<pid_t> process = spawn({.words = arguments,
                                       .environment = environment_with(environment),
                                       .input = to_child[0],
                                       .output = from_child[1]});
  ::close(to_child[0]);
  ::close(from_child[1]);
  if (!process) {
    ::close(to_child[1]);
    ::close(from_child[0]);
    return fail(process.error());
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(arguments[0], *process, to_child[1], from_child[0]));
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
  while (true) {
    const auto line = read_line(deadline);
    if (!line && line.error().code == ErrorCode::kTimeout) return fail(line.error());
    if (!line) break;
  }
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "'{}' did not end within {:.3g} s", name_, deadline.allowed());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (const int code = exit_code(status); code != 0)
    return fail(ErrorCode::kInternal, "'{}' ended with {}", name_, code);
  return {};
}

bool has_module(const std::filesystem::path& python, const std::string& module) {
  const auto peer = ChildProcess::start({python.string(), "-c", "import " + module + "; print('there')"});
  return peer && (*peer)->read_line(Deadline::after(60)).value_or("") == "there";
}

}  // namespace motley::bench
