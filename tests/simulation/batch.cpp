#include "tests/simulation/batch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/simulation/mutants.h"
#include "tests/simulation/observer.h"
#include "tests/simulation/run_schedule.h"

namespace motley::simulation {
namespace {

constexpr std::uint64_t kSeedsPerProcess = 200;
constexpr int kSecondsPerSchedule = 20;  // of a processor; then it counts as one that hangs
constexpr int kKeptBytes = 1 << 30;      // of memory that one schedule has used, for the next one

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
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Runs seeds up to the first that fails.
[[noreturn]] void run_seeds(Progress& progress, std::uint64_t end, const std::string& mutant) {
  if (!mutant.empty()) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDERR_FILENO);
  }
  drop_guard(mutant);
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  ::mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  for (; progress.seed < end; ++progress.seed) {
    const itimerval limit = {.it_interval = {}, .it_value = {.tv_sec = kSecondsPerSchedule, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &limit, nullptr);
    const Outcome outcome = run_schedule(make_schedule(progress.seed));
    if (outcome.violations.empty()) continue;
    progress.has_failed = true;
    std::strncpy(progress.violation, outcome.violations.front().c_str(), sizeof progress.violation - 1);
    ::_exit(0);
  }
  ::_exit(0);
}

// A process that runs some seeds.
struct Worker {
  pid_t process = 0;  // 0: none
  std::uint64_t first = 0, end = 0;
  Progress* progress = nullptr;
};

void start(Worker& worker, std::uint64_t first, std::uint64_t end, const std::string& mutant) {
  *worker.progress = {};
  worker.progress->seed = worker.first = first;
  worker.end = end;
  worker.process = ::fork();
  if (worker.process == 0) run_seeds(*worker.progress, end, mutant);
}

void take_result(Worker& worker, int status, BatchResult& result) {
  const Progress& progress = *worker.progress;
  const bool has_failed = WIFSIGNALED(status) || progress.has_failed;
  result.schedules += progress.seed - worker.first + (has_failed ? 1 : 0);
  worker.process = 0;
  worker.first = progress.seed + (has_failed ? 1 : 0);
  if (!has_failed) return;
  if (!WIFSIGNALED(status)) {
    result.failures.push_back({progress.seed, FailureKind::kInvariant, progress.violation});
  } else if (WTERMSIG(status) == SIGPROF) {
    result.failures.push_back({progress.seed, FailureKind::kDoesNotEnd, "the simulation does not end"});
  } else {
    result.failures.push_back({progress.seed, FailureKind::kCrash,
                               fmt::format("{}: a process crashes, by signal {}", kWaitsEnd, WTERMSIG(status))});
  }
}

}  // namespace

BatchResult run_batch(const BatchOptions& options) {
  const std::size_t bytes = options.processes * sizeof(Progress);
  auto* shared =
      static_cast<Progress*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<Worker> workers(options.processes);
  for (std::size_t i = 0; i < workers.size(); ++i) workers[i].progress = shared + i;
  BatchResult result;
  const double begin = children_seconds();
  const std::uint64_t end = options.first_seed + options.schedules;
  std::uint64_t next = options.first_seed;
  const auto is_over = [&] {
    return std::ranges::any_of(result.failures, [&](const Failure& failure) {
      return options.mutant.empty() || failure.kind != FailureKind::kDoesNotEnd;
    });
  };
  for (;;) {
    for (Worker& worker : workers) {
      if (worker.process != 0 || is_over()) continue;
      if (const std::uint64_t left = worker.first; left < worker.end) {  // by one that has crashed
        start(worker, left, worker.end, options.mutant);
      } else if (next < end) {
        const std::uint64_t first = std::exchange(next, std::min(end, next + kSeedsPerProcess));
        start(worker, first, next, options.mutant);
      }
    }
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended < 0) break;  // there is none left
    const auto worker = std::ranges::find(workers, ended, &Worker::process);
    if (worker != workers.end()) take_result(*worker, status, result);
  }
  result.seconds = children_seconds() - begin;
  ::munmap(shared, bytes);
  std::ranges::sort(result.failures, {}, &Failure::seed);
  return result;
}

}  // namespace motley::simulation
