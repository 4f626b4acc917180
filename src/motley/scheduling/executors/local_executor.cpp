#include "motley/scheduling/executors/local_executor.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"

extern char** environ;

namespace motley::scheduling {
namespace {

// Arguments: the attempt's folder, the directory to run in, then the command. The lock comes first, so that of two such
// shells one does nothing; the trap lets the shell outlive the signal that asks the command to end.
constexpr const char* kShell = R"(
folder=$1 directory=$2
shift 2
exec 9>>"$folder/lock"
flock -n 9 || exit 0
[ ! -e "$folder/begun" ] || exit 0
echo $$ >"$folder/begun"
trap : TERM INT HUP
cd -- "$directory" && "$@" 9>&-
echo $? >"$folder/ended.new"
mv "$folder/ended.new" "$folder/ended"
)";

Result<int> number_in(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, 64));
  int number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
    return fail(ErrorCode::kCorrupt, "{}: is '{}'; accepted: a number", file.string(), text);
  }
  return number;
}

class LocalExecutor final : public Executor {
 public:
  Status start(const Attempt& attempt) override {
    MOTLEY_TRY(make_folders(attempt.folder));
    std::vector<std::string> words = {"bash",           "-c", kShell, "motley-attempt", attempt.folder.string(),
                                      attempt.directory};
    words.insert(words.end(), attempt.command.begin(), attempt.command.end());
    std::vector<std::string> variables = make_environment(attempt);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> all;
      for (std::string& text : texts) all.push_back(text.data());
      all.push_back(nullptr);
      return all;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string output = (attempt.folder / "output").string();
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    pid_t process = 0;
    const int error =
        posix_spawnp(&process, "bash", &actions, &attributes, pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      return fail(ErrorCode::kUnavailable, "job '{}': bash cannot be started: {}", attempt.name, std::strerror(error));
    }
    children_.push_back(process);
    return {};
  }

  Result<AttemptStatus> look(const Attempt& attempt) override {
    std::erase_if(children_, [](pid_t child) { return ::waitpid(child, nullptr, WNOHANG) != 0; });
    std::error_code ignored;
    const std::filesystem::path ended = attempt.folder / "ended";
    if (std::filesystem::exists(ended, ignored)) {
      MOTLEY_ASSIGN(const int code, number_in(ended));
      return AttemptStatus{AttemptStatus::State::kEnded, code};
    }
    const Descriptor lock(::open((attempt.folder / "lock").c_str(), O_RDWR | O_CLOEXEC));
    if (!lock.valid()) return AttemptStatus{};
    if (::flock(lock.get(), LOCK_SH | LOCK_NB) != 0) return AttemptStatus{AttemptStatus::State::kRunning};
    // The shell is gone. What it noted last it noted before it let go of the lock.
    if (std::filesystem::exists(ended, ignored)) {
      MOTLEY_ASSIGN(const int code, number_in(ended));
      return AttemptStatus{AttemptStatus::State::kEnded, code};
    }
    const bool has_begun = std::filesystem::exists(attempt.folder / "begun", ignored);
    return AttemptStatus{has_begun ? AttemptStatus::State::kLost : AttemptStatus::State::kUnknown};
  }

  Status ask_to_end(const Attempt& attempt) override { return signal(attempt, SIGTERM); }
  Status kill(const Attempt& attempt) override { return signal(attempt, SIGKILL); }
  Result<std::vector<std::string>> down_nodes() override { return std::vector<std::string>(); }

 private:
  static std::vector<std::string> make_environment(const Attempt& attempt) {
    std::vector<std::string> variables;
    for (char** one = environ; *one != nullptr; ++one) {
      if (!std::string_view(*one).starts_with("MOTLEY_LAUNCHER")) variables.emplace_back(*one);
    }
    for (const auto& [name, value] : list_variables(attempt)) variables.push_back(fmt::format("{}={}", name, value));
    return variables;
  }

  // To the whole session, if it is still the one that holds the lock: process numbers are used again.
  Status signal(const Attempt& attempt, int number) {
    MOTLEY_ASSIGN(const AttemptStatus status, look(attempt));
    if (status.state == AttemptStatus::State::kUnknown) return forbid(attempt);
    if (status.state != AttemptStatus::State::kRunning) return {};
    const auto shell = number_in(attempt.folder / "begun");
    if (!shell || *shell <= 1) return {};  // it holds the lock and is about to begin; asked again it will have
    if (::kill(-*shell, number) != 0 && errno != ESRCH) {
      return fail(ErrorCode::kIo, "job '{}': process group {} takes no signal: {}", attempt.name, *shell, errno_text());
    }
    return {};
  }

  // A shell that comes late finds that the attempt has begun. Where one has the lock just now, it has begun indeed.
  static Status forbid(const Attempt& attempt) {
    MOTLEY_TRY(make_folders(attempt.folder));
    const std::string file = (attempt.folder / "lock").string();
    const Descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!lock.valid()) return fail(ErrorCode::kIo, "{}: {}", file, errno_text());
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
    if (std::filesystem::exists(attempt.folder / "begun")) return {};
    return write_file(attempt.folder / "begun", "0\n");
  }

  std::vector<pid_t> children_;  // that have not been waited for
};

}  // namespace

std::unique_ptr<Executor> make_local_executor() {
  return std::make_unique<LocalExecutor>();
}

}  // namespace motley::scheduling
