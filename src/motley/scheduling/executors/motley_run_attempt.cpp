// motley-run-attempt [--batch-job] FOLDER DIRECTORY -- COMMAND...: runs an attempt's command in DIRECTORY unless it has
// begun already, and notes in the attempt's FOLDER, which is there, how it ended (attempt_folder.h): as in a shell with
// 127 where there is no such program and 126 where it cannot be started. SIGTERM, SIGINT and SIGHUP go on to the
// command and its group, SIGTERM once only: a service that was killed asks again what it is not sure of, and many a
// command takes a second SIGTERM as the order to end at once. A program of its own, because one that loads libtorch
// takes longer to start than many a job to run.
//
// In a batch job of Slurm srun would end its tasks at once if it got SIGTERM itself. So the command is left alone where
// it has srun run something, and Slurm brings the signal to the tasks, as soon as there are any. Where the command has
// failed unasked, `suspects` names the nodes of the job that do not answer: Slurm itself takes minutes to find them
// gone.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/scheduling/executors/attempt_folder.h"

namespace motley::scheduling {
namespace {

constexpr double kLockSeconds = 1;  // in which whoever looks at a lock has let go of it
constexpr long kLookNanoseconds = 200'000'000;
constexpr double kAnswerSeconds = 20;  // in which Slurm's programs, and nodes, have to answer
constexpr double kEndSeconds = 10;     // in which processes end that were killed, but for those that the system holds
constexpr double kPatience = 86400;    // seconds for which these are waited for, and it is tried to note the end
constexpr double kRetrySeconds = 0.2;
constexpr int kNoSuchProgram = 127;
constexpr int kCannotBeStarted = 126;

struct AttemptRun {
  std::filesystem::path folder;
  std::string directory;
  std::vector<std::string> command;
  bool is_batch_job = false;
};

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
  MOTLEY_ASSIGN(const bool is_first, note_begun(folder, ::getpid()));
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

std::string srun_variable() {
  const int parts = count_parts();
  return "MOTLEY_SRUN=srun" + (parts > 1 ? fmt::format(" --het-group=0-{}", parts - 1) : "");
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
  std::string why = {};  // where the command could not be started
  bool was_asked = false;
};

// `taken` are the signals that wake this up; all are blocked.
Ending wait_for(pid_t command, const sigset_t& taken, bool is_batch_job) {
  Ending ending;
  bool was_terminated = false, has_notice_for_tasks = false;
  for (;;) {
    siginfo_t info{};
    const timespec a_while{0, kLookNanoseconds};
    const int signal = ::sigtimedwait(&taken, &info, &a_while);
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended != command) continue;  // one whose parent had ended before
      ending.code = exit_code(status);
      return ending;
    }
    // What goes to the group comes back here.
    const bool is_from_outside = signal > 0 && signal != SIGCHLD && info.si_pid != ::getpid();
    if (is_from_outside && !(signal == SIGTERM && std::exchange(was_terminated, true))) {
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
    return Ending{code, why};
  };
  if (::chdir(run.directory.c_str()) != 0) return refuse(1, fmt::format("{}: {}", run.directory, errno_text()));
  Program program{.words = run.command};
  if (run.is_batch_job) program.environment = environment_with({srun_variable()});
  program.input = STDIN_FILENO;
  const Result<pid_t> command = spawn(program);
  if (command) return wait_for(*command, taken, run.is_batch_job);
  return refuse(command.error().code == ErrorCode::kInvalidInput ? kNoSuchProgram : kCannotBeStarted,
                command.error().message);
}

// What a command leaves running would run beside the next attempt, so the attempt goes on until it is gone: a disk that
// does not answer may hold a process for long. Slurm sees to that itself.
void end_rest(const std::filesystem::path& folder) {
  const Deadline soon = Deadline::after(kEndSeconds), deadline = Deadline::after(kPatience);
  for (bool is_said = false; kill_processes(folder).value_or(true) && !deadline.passed();) {
    if (soon.passed() && !std::exchange(is_said, true)) {
      std::fprintf(stderr, "motley: processes of the attempt have not ended %.3g s after SIGKILL; waiting for them\n",
                   kEndSeconds);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + (is_said ? kRetrySeconds : 5e-3));
  }
}

// A disk that is full or away for a while may be well again; a folder that was removed is not written any more.
Status note_surely(const std::filesystem::path& folder, const Ending& ending) {
  const Deadline deadline = Deadline::after(kPatience);
  for (bool has_failed = false;; has_failed = true) {
    Status noted = note_ended(folder, ending.code, ending.why);
    std::error_code unknown;
    const bool is_gone = !std::filesystem::exists(folder, unknown) && !unknown;
    if (noted || is_gone || deadline.passed()) return noted;
    if (!has_failed) std::fprintf(stderr, "motley: %s; trying again\n", noted.error().message.c_str());
    SteadyClock::instance().sleep_until(monotonic_seconds() + kRetrySeconds);
  }
}

Status run_attempt(const AttemptRun& run) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&taken, signal);
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  MOTLEY_ASSIGN(const std::optional<Descriptor> lock, begin(run.folder));
  if (!lock) return {};
  if (!run.is_batch_job) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Ending ending = run_command(run, taken);
  if (!run.is_batch_job) end_rest(run.folder);
  if (run.is_batch_job && ending.code != 0 && !ending.was_asked) note_suspects(run.folder);
  return note_surely(run.folder, ending);
}

}  // namespace
}  // namespace motley::scheduling

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_batch_job = !words.empty() && words.front() == "--batch-job";
  if (is_batch_job) words.erase(words.begin());
  if (words.size() < 4 || words[2] != "--") {
    std::fprintf(stderr, "usage: motley-run-attempt [--batch-job] FOLDER DIRECTORY -- COMMAND...\n");
    return 2;
  }
  const motley::Status done = motley::scheduling::run_attempt({.folder = std::filesystem::absolute(words[0]),
                                                               .directory = words[1],
                                                               .command = {words.begin() + 3, words.end()},
                                                               .is_batch_job = is_batch_job});
  if (done) return 0;
  std::fprintf(stderr, "motley: error: %s\n", done.error().message.c_str());
  return 1;
}
