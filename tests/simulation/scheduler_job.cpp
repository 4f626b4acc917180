#include "tests/simulation/scheduler_job.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "motley/base/clock.h"
#include "tests/simulation/cluster.h"

namespace motley::simulation {

using namespace scheduling;  // NOLINT: this file plays a part of it

namespace {

constexpr int kJobs = 5;
constexpr double kFirstSecond = 1e6;        // of the service's clock
constexpr double kAttemptSeconds = 0.3;     // at most
constexpr double kStopSeconds = 0.02;       // from SIGTERM to the end
constexpr double kLookSeconds = 0.05;       // between two steps, at most
constexpr double kSlotSeconds = 0.1;        // between decisions
constexpr double kSubmitChance = 0.3;       // in a step
constexpr double kCancelChance = 0.02;      // likewise
constexpr double kLostAnswerChance = 0.1;   // to a client
constexpr double kFailureChance = 0.25;     // of an attempt
constexpr double kRefusalChance = 0.2;      // of a request for other workers
constexpr int kMaxWorkers = 3;              // of a job
constexpr double kExecutorFailures = 0.02;  // of calls
constexpr const char* kNodes[] = {"n0", "n1"};
constexpr double kNodeFailureChance = 0.02;  // in a step
constexpr double kNodeSeconds = 0.3;         // that it is down, on average
constexpr int kNodeFailures = 5;             // at most

double now() {
  return Simulator::instance().now();
}

SubmittedJob make_job(int number) {
  SubmittedJob job;
  job.name = fmt::format("job{}", number);
  job.command = {"train", "{workers}"};
  job.directory = "/work";
  job.workers = 1 + number % kMaxWorkers;
  job.min_workers = 1;
  job.max_workers = kMaxWorkers;
  job.resize = number % 2 == 0 ? "in-place" : "restart";
  job.estimated_seconds = kAttemptSeconds;
  job.restart_cost_seconds = 0;
  job.grace_seconds = 10 * kStopSeconds;
  job.max_retries = 1000;
  return job;
}

}  // namespace

// Any call may fail, before or after it has done something; and before any the service may be killed.
class SchedulerJob::FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(SchedulerJob& job) : job_(job) {}

  Status start(const Attempt& attempt) override {
    MOTLEY_TRY(call());
    const auto [run, is_new] = job_.runs_.emplace(std::pair(attempt.job, attempt.number), Run());
    if (!is_new) return call();
    for (const auto& [key, other] : job_.runs_) {
      if (key.first == attempt.job && job_.runs_now(other)) {
        job_.observer_.violate(
            kJobsKept, fmt::format("attempts {} and {} of {} run at a time", key.second, attempt.number, attempt.name));
      }
    }
    Simulator& simulator = Simulator::instance();
    run->second.ends = now() + kAttemptSeconds * simulator.random().uniform();
    run->second.code = simulator.chance(kFailureChance) ? 1 : 0;
    run->second.count = {.workers = 1, .since = kFirstSecond + now(), .min_workers = 1, .max_workers = kMaxWorkers};
    run->second.nodes = attempt.nodes;
    simulator.note(fmt::format("attempt {} of {} begins", attempt.number, attempt.name));
    return call();
  }
  Result<AttemptStatus> look(const Attempt& attempt) override {
    MOTLEY_TRY(call());
    const auto found = job_.runs_.find({attempt.job, attempt.number});
    if (found == job_.runs_.end()) return AttemptStatus{};
    const Run& run = found->second;
    if (job_.runs_now(run)) {
      AttemptStatus running{AttemptStatus::State::kRunning};
      running.count = run.count;
      return running;
    }
    if (run.is_lost) return AttemptStatus{AttemptStatus::State::kLost};
    const bool was_stopped = run.stops >= 0 && run.stops < run.ends;
    return AttemptStatus{AttemptStatus::State::kEnded, was_stopped ? 130 : run.code};
  }
  Status resize(const Attempt& attempt) override {
    MOTLEY_TRY(call());
    Run& run = job_.runs_.at({attempt.job, attempt.number});
    if (!job_.runs_now(run)) return call();
    run.count->asked = attempt.request;
    run.count->refused = Simulator::instance().chance(kRefusalChance) ? "the others have ended" : "";
    Simulator::instance().note(
        fmt::format("attempt {} of {} is asked for {}", attempt.number, attempt.name, attempt.request));
    return call();
  }
  Status ask_to_end(const Attempt& attempt) override {
    MOTLEY_TRY(call());
    const auto [found, has_not_begun] = job_.runs_.emplace(std::pair(attempt.job, attempt.number), Run());
    if (has_not_begun) {
      found->second.is_lost = true;
    } else if (found->second.stops < 0) {
      found->second.stops = now() + kStopSeconds;
    }
    return call();
  }
  Status kill(const Attempt& attempt) override {
    MOTLEY_TRY(call());
    Run& run = job_.runs_[{attempt.job, attempt.number}];
    if (job_.runs_now(run)) run.is_lost = true;
    return call();
  }
  Result<std::vector<std::string>> down_nodes() override { return job_.fail_nodes(); }

 private:
  static Status call() {
    Simulator::instance().operation();
    if (!Simulator::instance().chance(kExecutorFailures)) return {};
    return fail(ErrorCode::kIo, "the executor fails");
  }
  SchedulerJob& job_;
};

// All processes share this one's memory, and so what SQLite keeps there: it is to lock nothing, as that would stay so
// where a process is killed, and is to have some file open, as it makes other calls for the first one.
SchedulerJob::SchedulerJob(Observer& observer, std::uint64_t seed, bool has_node_failures)
    : observer_(observer), has_node_failures_(has_node_failures) {
  [[maybe_unused]] static sqlite3* const open_always = [] {
    sqlite3_config(SQLITE_CONFIG_SINGLETHREAD);
    std::string name = (std::filesystem::temp_directory_path() / "motley-simulation-XXXXXX").string();
    ::close(::mkstemp(name.data()));
    sqlite3* database = nullptr;
    sqlite3_open(name.c_str(), &database);
    ::unlink(name.c_str());
    return database;
  }();
  sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, static_cast<int>(seed % INT_MAX) + 1, nullptr);
}

bool SchedulerJob::runs_now(const Run& run) const {
  return !run.is_lost && now() < run.ends && (run.stops < 0 || now() < run.stops);
}

void SchedulerJob::lose_power() {
  for (auto& [key, run] : runs_) {
    if (runs_now(run)) run.is_lost = true;
  }
}

// Those that are down; what runs on one that fails is lost.
std::vector<std::string> SchedulerJob::fail_nodes() {
  std::vector<std::string> down;
  Simulator& simulator = Simulator::instance();
  for (const char* node : kNodes) {
    if (!has_node_failures_) break;
    double& until = down_until_[node];
    if (now() >= until && node_failures_ < kNodeFailures && simulator.chance(kNodeFailureChance)) {
      ++node_failures_;
      until = now() + simulator.random().exponential(kNodeSeconds);
      simulator.note(fmt::format("node {} fails", node));
      for (auto& [key, run] : runs_) {
        if (runs_now(run) && std::ranges::count(run.nodes, node, &NodeAllocation::node) > 0) run.is_lost = true;
      }
    }
    if (now() < until) down.emplace_back(node);
  }
  return down;
}

int SchedulerJob::run(const std::filesystem::path& folder) {
  if (is_done_) return 0;
  auto store = Store::open(folder);
  if (!store) return give_up(store.error());
  ClusterTopology topology;
  for (const char* node : kNodes) topology.nodes.push_back({node, 3});
  ControllerOptions options;
  options.policy = "drf";
  options.policy_options.slot_seconds = kSlotSeconds;
  auto controller = Controller::make(std::move(*store), topology, folder, options);
  if (!controller) return give_up(controller.error());
  check_known(*controller);
  FakeExecutor executor(*this);
  std::vector<Problem> failed;
  while (!is_over(*controller)) {
    submit_next(*controller);
    Observation seen = observe(executor, controller->watched());
    seen.problems.insert(seen.problems.end(), failed.begin(), failed.end());
    const Controller::Step step = controller->step(kFirstSecond + now(), seen);
    failed = carry_out(executor, step.commands);
    const double wait = std::clamp(step.wake - kFirstSecond - now(), 1e-3, kLookSeconds);
    SteadyClock::instance().sleep_until(monotonic_seconds() + wait);
  }
  check_end(*controller);
  Simulator::instance().note("all jobs of the scheduler are over");
  is_done_ = true;
  return 0;
}

int SchedulerJob::give_up(const Error& error) const {
  Simulator::instance().note("the scheduler's service does not start: " + error.message);
  if (!Cluster::instance().disk.is_full())
    observer_.violate(kJobsKept, "the scheduler's state cannot be read: " + error.message);
  return 1;
}

void SchedulerJob::check_known(const Controller& controller) {
  for (const std::string& name : acknowledged_) {
    if (controller.find(name) == nullptr)
      observer_.violate(kJobsKept, fmt::format("{} was acknowledged, and is lost", name));
  }
}

// A client that has got no answer asks again; some jobs are cancelled.
void SchedulerJob::submit_next(Controller& controller) {
  Simulator& simulator = Simulator::instance();
  const double time = kFirstSecond + now();
  const auto next = static_cast<int>(acknowledged_.size());
  if (next < kJobs && simulator.chance(kSubmitChance)) {
    const SubmittedJob job = make_job(next);
    if (controller.submit({job}, time) && !simulator.chance(kLostAnswerChance)) acknowledged_.insert(job.name);
    simulator.operation();
  }
  if (next > 0 && simulator.chance(kCancelChance)) {
    (void)controller.cancel(make_job(static_cast<int>(simulator.random().below(static_cast<std::uint64_t>(next)))).name,
                            time);
  }
}

bool SchedulerJob::is_over(const Controller& controller) const {
  return std::ssize(acknowledged_) == kJobs && std::ranges::all_of(controller.records(), [](const JobRecord& record) {
           return scheduling::is_over(record.state);
         });
}

void SchedulerJob::check_end(const Controller& controller) {
  check_known(controller);
  if (controller.records().size() != kJobs) {
    observer_.violate(
        kJobsKept, fmt::format("{} jobs were acknowledged, the scheduler has {}", kJobs, controller.records().size()));
  }
  for (const JobRecord& record : controller.records()) {
    const auto completions = std::ranges::count_if(runs_, [&](const auto& one) {
      const auto& [key, run] = one;
      const bool was_stopped = run.stops >= 0 && run.stops < run.ends;
      return key.first == record.id && !run.is_lost && !was_stopped && run.code == 0;
    });
    if (completions != (record.state == JobState::kCompleted ? 1 : 0)) {
      observer_.violate(kJobsKept, fmt::format("{} is {}, and was completed {} times", record.job.name,
                                               to_string(record.state), completions));
    }
  }
}

}  // namespace motley::simulation
