#include "tests/simulation/batch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/simulation/mutants.h"
#include "tests/simulation/run_schedule.h"

namespace motley::simulation {
namespace {

constexpr std::uint64_t kSeedsPerProcess = 200;
constexpr unsigned kSecondsPerSchedule = 20;  // of this machine; then it counts as one that hangs

// What a process has done so far, in memory that it shares with the one that waits for it.
struct Progress {
  std::uint64_t seed;  // that it is at
  bool has_failed;
  char violation[1024];
};

// Of processors, by the processes that have ended.
double children_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Runs seeds up to the first that fails.
[[noreturn]] void run_seeds(Progress& progress, std::uint64_t end, const std::string& mutant) {
  if (!mutant.empty()) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDERR_FILENO);
  }
  drop_guard(mutant);
  for (; progress.seed < end; ++progress.seed) {
    ::alarm(kSecondsPerSchedule);
    const Outcome outcome = run_schedule(make_schedule(progress.seed));
    if (outcome.violations.empty()) continue;
    progress.has_failed = true;
    std::strncpy(progress.violation, outcome.violations.front().c_str(), sizeof progress.violation - 1);
    ::_exit(0);
  }
  ::_exit(0);
}

}  // namespace

BatchResult run_batch(const BatchOptions& options) {
  auto* progress = static_cast<Progress*>(
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  BatchResult result;
  const double begin = children_seconds();
  const std::uint64_t end = options.first_seed + options.schedules;
  std::uint64_t next = options.first_seed;
  while (next < end && result.failures.size() < options.most_failures) {
    *progress = {};
    progress->seed = next;
    const pid_t child = ::fork();
    if (child == 0) run_seeds(*progress, std::min(end, next + kSeedsPerProcess), options.mutant);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      result.failures.push_back(
          {progress->seed, WTERMSIG(status) == SIGALRM ? std::string("the simulation does not end")
                                                       : fmt::format("the simulation ends by signal {}", WTERMSIG(status))});
    } else if (progress->has_failed) {
      result.failures.push_back({progress->seed, progress->violation});
    }
    const bool is_whole = !WIFSIGNALED(status) && !progress->has_failed;
    result.schedules += progress->seed - next + (is_whole ? 0 : 1);
    next = progress->seed + (is_whole ? 0 : 1);
  }
  result.seconds = children_seconds() - begin;
  ::munmap(progress, sizeof(Progress));
  return result;
}

}  // namespace motley::simulation
