// A process that a benchmark starts and talks to in lines: commands on its standard input, answers on its output.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"

namespace motley::bench {

class ChildProcess {
 public:
  // Starts `arguments` (the program first, looked up in PATH) with this process's environment and `environment`
  // ("NAME=value") added. Its standard error is ours.
  static Result<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& arguments,
                                                     const std::vector<std::string>& environment = {});
  // Closes the child's input, gives it two seconds to end, and kills it if it does not.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  Status write_line(const std::string& line);
  Result<std::string> read_line(const Deadline& deadline);
  // Reads and forgets until the child ends; an error where its exit code is not 0.
  Status finish(const Deadline& deadline);
  void kill();  // SIGKILL; returns when it is gone

 private:
  ChildProcess(std::string name, pid_t process, int input, int output)
      : name_(std::move(name)), process_(process), input_(input), output_(output) {}
  std::string name_;
  pid_t process_;
  int input_;
  int output_;
  std::string buffered_;
};

// Whether this Python has the module.
bool has_module(const std::filesystem::path& python, const std::string& module);

}  // namespace motley::bench
