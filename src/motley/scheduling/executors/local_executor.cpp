#include "motley/scheduling/executors/executors.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/scheduling/executors/attempt_folder.h"

namespace motley::scheduling {
namespace {

constexpr int kCannotBeStarted = 126;  // as in a shell
constexpr std::size_t kMaxCountBytes = 1 << 16;

class LocalExecutor final : public Executor {
 public:
  explicit LocalExecutor(std::string wrapper) : wrapper_(std::move(wrapper)) {}

  Status start(const Attempt& attempt) override {
    MOTLEY_TRY(make_folders(attempt.folder));
    const std::string file = (attempt.folder / "output").string();
    const Descriptor output(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!output.valid()) return fail(ErrorCode::kIo, "{}: {}", file, errno_text());
    const auto process = spawn({.words = wrapped_command(wrapper_, attempt, false),
                                .environment = make_environment(attempt),
                                .output = output.get(),
                                .errors = output.get(),
                                .group = Program::Group::kOwnSession});
    if (process) {
      children_.push_back(*process);
      return {};
    }
    // A command that is too long is no better the next time.
    const bool is_hopeless = process.error().code == ErrorCode::kInvalidInput && ::access(wrapper_.c_str(), X_OK) == 0;
    if (!is_hopeless) return fail(process.error());
    if (!forbid(attempt)) return {};
    return note_ended(attempt.folder, kCannotBeStarted, process.error().message);
  }

  Result<AttemptStatus> look(const Attempt& attempt) override {
    using State = AttemptStatus::State;
    std::erase_if(children_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
    MOTLEY_ASSIGN(std::optional<AttemptStatus> ended, read_ended(attempt));
    if (ended) return *std::move(ended);
    const bool had_begun = has_begun(attempt);
    const Descriptor lock(::open((attempt.folder / "lock").c_str(), O_RDONLY | O_CLOEXEC));
    const bool is_free =
        lock.valid() ? ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0 : errno == ENOENT || errno == ENOTDIR;
    if (!is_free && !(lock.valid() && errno == EWOULDBLOCK)) {  // which says nothing of who holds it
      return fail(ErrorCode::kIo, "{}: {}", (attempt.folder / "lock").string(), errno_text());
    }
    if (!is_free) {
      AttemptStatus running{State::kRunning};
      if (const auto text = read_file(train::worker_count_file(attempt.folder), kMaxCountBytes)) {
        if (auto count = parse_json<train::WorkerCount>(*text, "workers.json")) running.count = std::move(*count);
      }
      return running;
    }
    // The wrapper is gone. What it noted last it noted before it let go of the lock.
    MOTLEY_ASSIGN(ended, read_ended(attempt));
    if (ended) return *std::move(ended);
    if (!had_begun) return AttemptStatus{State::kUnknown};
    MOTLEY_ASSIGN(const bool has_some, kill_processes(attempt.folder));
    if (has_some) return AttemptStatus{State::kRunning};
    return AttemptStatus{.state = State::kLost, .node_failed = !was_begun_since_boot(attempt.folder)};
  }

  Status resize(const Attempt& attempt) override {
    return write_file(train::worker_request_file(attempt.folder), attempt.request + "\n");
  }

  // By the wrapper, which passes it on; if it is still the one that holds the lock: process numbers are used again.
  Status ask_to_end(const Attempt& attempt) override {
    if (forbid(attempt)) return {};
    MOTLEY_ASSIGN(const AttemptStatus status, look(attempt));
    if (status.state != AttemptStatus::State::kRunning) return {};
    const auto text = read_file(attempt.folder / "begun", 64);
    const int wrapper = text ? std::atoi(text->c_str()) : 0;
    if (wrapper <= 1) return {};  // it was forbidden, and is about to see so
    if (::kill(wrapper, SIGTERM) != 0 && errno != ESRCH) {
      return fail(ErrorCode::kIo, "process {} takes no signal: {}", wrapper, errno_text());
    }
    return {};
  }
  Status kill(const Attempt& attempt) override {
    if (!forbid(attempt)) MOTLEY_TRY(kill_processes(attempt.folder));
    return {};
  }
  Result<std::vector<std::string>> down_nodes() override { return std::vector<std::string>(); }

 private:
  static std::vector<std::string> make_environment(const Attempt& attempt) {
    std::vector<std::string> variables;
    for (const auto& [name, value] : list_variables(attempt)) variables.push_back(fmt::format("{}={}", name, value));
    std::vector<std::string> all = environment_with(variables);
    std::erase_if(all, [](const std::string& one) { return one.starts_with("MOTLEY_LAUNCHER"); });
    return all;
  }

  const std::string wrapper_;
  std::vector<pid_t> children_;  // that have not been waited for
};

}  // namespace

Result<std::unique_ptr<Executor>> make_local_executor() {
  MOTLEY_ASSIGN(std::string wrapper, find_wrapper());
  return std::make_unique<LocalExecutor>(std::move(wrapper));
}

}  // namespace motley::scheduling
