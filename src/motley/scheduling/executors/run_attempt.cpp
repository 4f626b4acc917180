#include "motley/scheduling/executors/run_attempt.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/net/session.h"

namespace motley::scheduling {
namespace {

constexpr double kLockSeconds = 1;  // in which whoever looks at a lock has let go of it
constexpr long kLookNanoseconds = 200'000'000;
constexpr double kAnswerSeconds = 20;  // in which Slurm's programs, and nodes, have to answer
constexpr int kNoSuchProgram = 127;
constexpr int kCannotBeStarted = 126;

// Makes the file `begun`, with its text at once; false where it is there.
Result<bool> make_begun(const std::filesystem::path& folder, int process) {
  const std::filesystem::path aside = folder / fmt::format("begun.{}", ::getpid());
  MOTLEY_TRY(write_file(aside, fmt::format("{}\n", process)));
  const bool is_first = ::link(aside.c_str(), (folder / "begun").c_str()) == 0;
  const int problem = errno;
  ::unlink(aside.c_str());
  if (is_first || problem == EEXIST) return is_first;
  return fail(ErrorCode::kIo, "{}: {}", (folder / "begun").string(), std::strerror(problem));
}

// The lock, held; nothing where another wrapper has begun or is about to. The lock comes before `begun`, so that an
// attempt that has begun and whose lock is free is over.
Result<std::optional<Descriptor>> begin(const std::filesystem::path& folder) {
  const std::string file = (folder / "lock").string();
  Descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return fail(ErrorCode::kIo, "{}: {}", file, errno_text());
  const Deadline deadline = Deadline::after(kLockSeconds);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (deadline.passed()) return std::nullopt;
    SteadyClock::instance().sleep_until(monotonic_seconds() + 5e-3);
  }
  MOTLEY_ASSIGN(const bool is_first, make_begun(folder, ::getpid()));
  return is_first ? std::optional(std::move(lock)) : std::nullopt;
}

// --- Inside a batch job of Slurm

std::string variable(const std::string& name, const char* otherwise = "") {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? otherwise : value;
}

int count_parts() {
  return std::max(1, std::atoi(variable("SLURM_HET_SIZE", "1").c_str()));
}

std::string ask(std::vector<std::string> words) {
  const auto answer = run_program({.words = std::move(words)}, Deadline::after(kAnswerSeconds));
  return answer && answer->is_good() ? answer->text : "";
}

std::vector<std::string> batch_variables(const std::filesystem::path& folder) {
  std::string srun = "MOTLEY_SRUN=srun";
  if (count_parts() > 1) srun += fmt::format(" --het-group=0-{}", count_parts() - 1);
  return {srun, fmt::format("{}={}", net::kSecretFileVariable, (folder / "secret").string())};
}

bool command_has_srun() {
  return !ask({"pgrep", "--pgroup", fmt::format("{}", ::getpgrp()), "--exact", "srun"}).empty();
}

// Sends SIGTERM to the job's tasks; false where there are none yet.
bool signal_tasks() {
  const std::string job = variable("SLURM_JOB_ID");
  std::istringstream steps(ask({"squeue", "--noheader", "--steps", "--job=" + job, "--format=%i"}));
  for (std::string step; steps >> step;) {  // such as 7.0, beside 7.batch
    if (step.find_last_not_of("0123456789") != step.rfind('.')) continue;
    ask({"scancel", "--signal=TERM", job});
    return true;
  }
  return false;
}

void note_suspects(const std::filesystem::path& folder) {
  const int parts = count_parts();
  std::vector<std::jthread> probes;
  for (int part = 0; part < parts; ++part) {
    const std::string list = parts > 1 ? fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", part) : "SLURM_JOB_NODELIST";
    std::istringstream nodes(ask({"scontrol", "show", "hostnames", variable(list)}));
    for (std::string node; nodes >> node;) {
      std::vector<std::string> probe = {"srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"};
      if (parts > 1) probe.push_back(fmt::format("--het-group={}", part));
      probe.insert(probe.end(), {"--nodelist=" + node, "true"});
      probes.emplace_back([probe = std::move(probe), node, &folder] {
        const auto answer = run_program({.words = probe}, Deadline::after(kAnswerSeconds));
        if (!answer || !answer->is_good()) (void)append_line(folder / "suspects", node);
      });
    }
  }
}

// --- The command

struct Ending {
  int code = 0;
  bool was_asked = false;
};

// `taken` are the signals that wake this up; all are blocked.
Ending wait_for(pid_t command, const sigset_t& taken, bool is_batch_job) {
  Ending ending;
  bool has_notice_for_tasks = false;
  for (;;) {
    siginfo_t info{};
    const timespec a_while{0, kLookNanoseconds};
    const int signal = ::sigtimedwait(&taken, &info, &a_while);
    int status = 0;
    if (::waitpid(command, &status, WNOHANG) == command) {
      ending.code = exit_code(status);
      return ending;
    }
    // What goes to the group comes back here.
    if (signal > 0 && signal != SIGCHLD && info.si_pid != ::getpid()) {
      ending.was_asked = true;
      if (is_batch_job && command_has_srun()) {
        has_notice_for_tasks = true;
      } else {
        ::kill(0, signal);
      }
    }
    if (has_notice_for_tasks && signal_tasks()) has_notice_for_tasks = false;
  }
}

Ending run_command(const AttemptRun& run, const sigset_t& taken) {
  const auto refuse = [](int code, const std::string& why) {
    std::fprintf(stderr, "motley: %s\n", why.c_str());
    return Ending{code};
  };
  if (::chdir(run.directory.c_str()) != 0) return refuse(1, fmt::format("{}: {}", run.directory, errno_text()));
  Program program{.words = run.command};
  if (run.is_batch_job) program.environment = environment_with(batch_variables(run.folder));
  program.input = STDIN_FILENO;
  const Result<pid_t> command = spawn(program);
  if (command) return wait_for(*command, taken, run.is_batch_job);
  return refuse(command.error().code == ErrorCode::kInvalidInput ? kNoSuchProgram : kCannotBeStarted,
                command.error().message);
}

}  // namespace

Status run_attempt(AttemptRun run) {
  run.folder = std::filesystem::absolute(run.folder);
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&taken, signal);
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  MOTLEY_ASSIGN(const std::optional<Descriptor> lock, begin(run.folder));
  if (!lock) return {};
  const Ending ending = run_command(run, taken);
  if (run.is_batch_job && ending.code != 0 && !ending.was_asked) note_suspects(run.folder);
  return write_file(run.folder / "ended", fmt::format("{}\n", ending.code));
}

std::vector<std::string> own_attempt_wrapper() {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "run-attempt"};
}

std::vector<std::string> attempt_words(const std::vector<std::string>& wrapper, const Attempt& attempt) {
  std::vector<std::string> words = wrapper;
  words.insert(words.end(), {attempt.folder.string(), attempt.directory, "--"});
  words.insert(words.end(), attempt.command.begin(), attempt.command.end());
  return words;
}

bool forbid(const Attempt& attempt) {
  return make_folders(attempt.folder) && make_begun(attempt.folder, 0).value_or(false);
}

bool has_begun(const Attempt& attempt) {
  std::error_code ignored;
  return std::filesystem::exists(attempt.folder / "begun", ignored);
}

std::optional<int> read_exit_code(const Attempt& attempt) {
  const auto text = read_file(attempt.folder / "ended", 64);
  if (!text) return {};
  int code = 1;
  std::from_chars(text->data(), text->data() + text->size(), code);
  return code;
}

}  // namespace motley::scheduling
