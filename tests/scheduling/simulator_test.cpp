// The simulator and the policies that rank jobs, against plain second-by-second replays of their rules, against an
// optimum found by trying everything, and against published figures.
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/policies/policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "motley/base/random.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::scheduling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Policy> policy(const std::string& name, PlacementStrategy strategy = PlacementStrategy::kAny) {
  auto created = make_policy(name, {strategy});
  EXPECT_TRUE(created) << created.error().message;
  return std::move(*created);
}

Outcome replay(const std::vector<Job>& jobs, const ClusterTopology& topology, Policy& policy,
               const SimulationOptions& options = {}) {
  const auto outcome = simulate(jobs, topology, policy, options);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *outcome : Outcome();
}

std::vector<double> finishes(const Outcome& outcome) {
  std::vector<double> times;
  for (const JobOutcome& job : outcome.jobs) times.push_back(job.finished);
  return times;
}

// Whole seconds; some arrive together, some are longer than the limits of LAS's queues.
std::vector<Job> random_jobs(Random& random, int count, int max_workers) {
  std::vector<Job> jobs;
  double arrival = 0;
  for (int i = 0; i < count; ++i) {
    if (i > 0 && random.below(3) > 0) arrival += static_cast<double>(random.below(4000));
    const double duration = static_cast<double>(1 + random.below(random.below(2) == 0 ? 500 : 20000));
    jobs.push_back({fmt::format("job{}", i), arrival, duration,
                    1 + static_cast<int>(random.below(static_cast<std::uint64_t>(max_workers)))});
  }
  return jobs;
}

TEST(Simulator, AStopEndsIt) {
  std::stop_source stop;
  stop.request_stop();
  const auto outcome = simulate({{"one", 0, 10, 1}}, uniform(1, 1), *policy("fifo"), {.stop = stop.get_token()});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInterrupted);
}

TEST(Simulator, FifoStartsJobsInTheirOrder) {
  const std::vector<Job> jobs = {{"a", 0, 100, 3}, {"b", 10, 50, 2}, {"c", 20, 5, 1}, {"d", 160, 1, 4}};
  const auto fifo = policy("fifo");
  const Outcome outcome = replay(jobs, pool(4), *fifo);
  EXPECT_EQ(finishes(outcome), (std::vector<double>{100, 150, 105, 161})) << "c fits, but may not overtake b";
  EXPECT_EQ(outcome.jobs[1].started, 100);
  EXPECT_EQ(outcome.begin, 0);
  EXPECT_EQ(outcome.end, 161);
  EXPECT_DOUBLE_EQ(outcome.device_seconds, 300 + 100 + 5 + 4);
  EXPECT_DOUBLE_EQ(outcome.utilisation, 409.0 / (4 * 161));
  const Completion completion = compute_completion(jobs, outcome);
  EXPECT_DOUBLE_EQ(completion.mean, (100 + 140 + 85 + 1) / 4.0);
  EXPECT_DOUBLE_EQ(completion.median, 85);
  EXPECT_DOUBLE_EQ(completion.p99, 140);
}

TEST(Simulator, JobsThatOvertakeDoSoByTheirRule) {
  const std::vector<Job> jobs = {{"a", 0, 100, 3}, {"b", 10, 50, 2}, {"c", 20, 500, 1}, {"d", 30, 10, 1}};
  const auto backfill = policy("fifo-backfill");
  EXPECT_EQ(finishes(replay(jobs, pool(4), *backfill)), (std::vector<double>{100, 150, 520, 110}))
      << "c passes b by, d finds no room before a is done";
  const auto smallest = policy("smallest-first");
  EXPECT_EQ(
      finishes(replay({{"a", 0, 100, 4}, {"b", 10, 50, 3}, {"c", 20, 500, 1}, {"d", 30, 10, 2}}, pool(4), *smallest)),
      (std::vector<double>{100, 160, 600, 110}))
      << "c and d when a is done, then b once d has made room";
  const auto srsf = policy("srsf");
  EXPECT_EQ(finishes(replay({{"wide", 0, 10, 4}, {"long", 0, 30, 1}}, pool(4), *srsf)), (std::vector<double>{40, 30}))
      << "30 device-seconds before 40";
}

// Notes which durations it is told, and is otherwise first in, first out.
class Listener final : public Policy {
 public:
  explicit Listener(std::vector<double>& first) : first_(first) {}
  std::string name() const override { return "listener"; }
  Result<Decision> decide(const State& state) override {
    for (const int job : state.arrived) first_.push_back(state.job(job).duration);
    for (const int job : state.active) EXPECT_GT(state.left_seconds(job), 0);
    MOTLEY_ASSIGN(Decision decision, fifo_->decide(state));
    if (!state.active.empty()) decision.wake = state.now + 1;
    return decision;
  }

 private:
  std::vector<double>& first_;
  std::unique_ptr<Policy> fifo_ = policy("fifo");
};

TEST(Simulator, TellsWrongDurationsAndRunsTheTrueOnes) {
  std::vector<Job> jobs;
  for (int i = 0; i < 200; ++i) jobs.push_back({fmt::format("job{}", i), 10.0 * i, 20, 1});
  std::vector<double> told;
  Listener listener(told);
  const Outcome outcome = replay(jobs, pool(8), listener, {.duration_error = 3});
  ASSERT_EQ(told.size(), jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(outcome.jobs[i].finished, jobs[i].arrival + 20);
  EXPECT_GE(*std::ranges::min_element(told), 20 / 3.0);
  EXPECT_LE(*std::ranges::max_element(told), 20 * 3.0);
  EXPECT_NEAR(static_cast<double>(std::ranges::count_if(told, [](double one) { return one < 20; })), 100, 30);
}

TEST(Simulator, FairnessComparesWithAnEqualPart) {
  // On two devices, a has both from 0 to 10 s, then b from 10 to 20 s: there were two jobs for half of the 20 s that b
  // took, and it asks for both devices, so that its own part would have taken 15 s.
  const std::vector<Job> jobs = {{"a", 0, 10, 2}, {"b", 0, 10, 2}};
  const auto fifo = policy("fifo");
  const ClusterTopology topology = pool(2);
  const Fairness fairness = compute_fairness(jobs, topology, replay(jobs, topology, *fifo));
  EXPECT_DOUBLE_EQ(fairness.worst, 20.0 / 15);
  EXPECT_DOUBLE_EQ(fairness.mean, (20.0 / 15 + 10.0 / 20) / 2);
  EXPECT_DOUBLE_EQ(fairness.unfair, 0.5);
}

TEST(Simulator, FairnessDoesNotCountRounding) {
  const std::vector<Job> jobs = {{"a", 0.1, 0.1, 1}, {"b", 0.4, 0.3, 1}, {"c", 1000.7, 0.1, 1}};
  const auto fifo = policy("fifo");
  const ClusterTopology topology = pool(8);
  EXPECT_EQ(compute_fairness(jobs, topology, replay(jobs, topology, *fifo)).unfair, 0);
}

// The rules of Tiresias's simulator for discretised LAS, in plain lists, every second on its own.
std::vector<double> las_by_the_second(const std::vector<Job>& jobs, int devices, bool is_by_seconds) {
  const auto rate = [&](std::size_t i) { return is_by_seconds ? 1 : jobs[i].workers; };
  const double limits[] = {3250, 7200};
  struct One {
    double run = 0;
    bool runs = false;
    int queue = 0;
    double finished = -1;
  };
  std::vector<One> all(jobs.size());
  std::vector<std::vector<int>> queues(3);
  double wake = -1;
  std::size_t done = 0;
  for (double now = 0; done < jobs.size(); ++now) {
    bool is_event = now == wake;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (now > 0 && all[i].runs) ++all[i].run;
      if (all[i].runs && all[i].run == jobs[i].duration) {
        all[i] = {all[i].run, false, -1, now};
        for (auto& queue : queues) std::erase(queue, static_cast<int>(i));
        ++done;
        is_event = true;
      }
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].arrival != now) continue;
      queues[0].push_back(static_cast<int>(i));
      is_event = true;
    }
    if (!is_event) continue;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (!all[i].runs || all[i].queue > 1 || all[i].run * rate(i) < limits[all[i].queue]) continue;
      std::erase(queues[static_cast<std::size_t>(all[i].queue)], static_cast<int>(i));
      queues[static_cast<std::size_t>(++all[i].queue)].push_back(static_cast<int>(i));
    }
    int free = devices;
    wake = -1;
    for (std::size_t q = 0; q < 3; ++q) {
      std::vector<int> running, waiting;
      for (const int job : queues[q]) {
        const auto i = static_cast<std::size_t>(job);
        all[i].runs = jobs[i].workers <= free;
        if (!all[i].runs) {
          waiting.push_back(job);
          continue;
        }
        running.push_back(job);
        free -= jobs[i].workers;
        if (q < 2) {
          const double jump = now + std::ceil((limits[q] - all[i].run) / rate(i));
          wake = wake < 0 ? jump : std::min(wake, jump);
        }
      }
      running.insert(running.end(), waiting.begin(), waiting.end());
      queues[q] = running;
    }
  }
  std::vector<double> finished;
  for (const One& one : all) finished.push_back(one.finished);
  return finished;
}

TEST(Las, IsWhatItsRulesSayEverySecond) {
  Random random(3);
  for (int trial = 0; trial < 30; ++trial) {
    const std::vector<Job> jobs = random_jobs(random, 25, 4);
    const auto las = policy("las");
    EXPECT_EQ(finishes(replay(jobs, pool(4), *las)), las_by_the_second(jobs, 4, false)) << "trial " << trial;
    const auto by_seconds = policy("las-seconds");
    EXPECT_EQ(finishes(replay(jobs, pool(4), *by_seconds)), las_by_the_second(jobs, 4, true)) << "trial " << trial;
  }
}

// The least sum of completion times on one device, by trying every order of whole seconds.
double min_sum(const std::vector<Job>& jobs) {
  std::map<std::vector<double>, double> known;  // by the time, and what is left of each job
  std::function<double(double, std::vector<double>)> from = [&](double now, std::vector<double> left) -> double {
    std::vector<double> key = left;
    key.push_back(now);
    if (const auto found = known.find(key); found != known.end()) return found->second;
    double best = std::numeric_limits<double>::infinity();
    bool is_done = true;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (left[i] == 0) continue;
      is_done = false;
      if (jobs[i].arrival > now) continue;
      std::vector<double> next = left;
      const double finished = --next[i] == 0 ? now + 1 - jobs[i].arrival : 0;
      best = std::min(best, finished + from(now + 1, next));
    }
    if (is_done) best = 0;
    if (std::isinf(best)) best = from(now + 1, left);  // nobody is there
    return known[key] = best;
  };
  std::vector<double> left;
  for (const Job& job : jobs) left.push_back(job.duration);
  return from(0, left);
}

TEST(Srtf, HasTheLeastMeanCompletionOnOneDevice) {
  Random random(4);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Job> jobs;
    double arrival = 0;
    for (int i = 0; i < 4; ++i) {
      jobs.push_back({fmt::format("job{}", i), arrival, static_cast<double>(1 + random.below(5)), 1});
      arrival += static_cast<double>(random.below(4));
    }
    const auto srtf = policy("srtf");
    const Outcome outcome = replay(jobs, pool(1), *srtf);
    EXPECT_DOUBLE_EQ(compute_completion(jobs, outcome).mean * 4, min_sum(jobs)) << "trial " << trial;
  }
}

// Policies that solve something at every step.
bool is_slow(const std::string& name) {
  return name == "gadget-exact" || name == "gadget" || name == "gavel" || name == "sia" || name == "elasticflow";
}

// Whatever the policy and the machines: no device twice (simulate checks), nothing lost, nobody faster than alone.
TEST(Simulator, KeepsItsLaws) {
  Random random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const std::vector<Job> jobs = random_jobs(random, 40, 12);
    const ClusterTopology topology = trial % 2 == 0 ? uniform(3, 8) : pool(16);
    for (const std::string& name : policy_names()) {
      if (!make_policy(name)) continue;  // needs HiGHS, and this build has none
      if (trial % 10 > 1 && is_slow(name)) continue;
      SCOPED_TRACE(fmt::format("trial {} of {}", trial, name));
      const auto one = policy(name, trial % 4 == 0 ? PlacementStrategy::kConsolidated : PlacementStrategy::kAny);
      const Outcome outcome = replay(jobs, topology, *one);
      double device_seconds = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        device_seconds += jobs[i].device_seconds();
        EXPECT_GE(outcome.jobs[i].started, jobs[i].arrival);
        EXPECT_GE(outcome.jobs[i].finished, outcome.jobs[i].started + jobs[i].duration);
        if (name == "fifo") {
          EXPECT_EQ(outcome.jobs[i].restarts, 0);
          if (i > 0) {
            EXPECT_GE(outcome.jobs[i].started, outcome.jobs[i - 1].started);
          }
        }
      }
      EXPECT_NEAR(outcome.device_seconds, device_seconds, 1e-6);
      EXPECT_LE(outcome.utilisation, 1 + 1e-12);
    }
  }
}

TEST(Simulator, RefusesAJobThatCanNeverRun) {
  const auto fifo = policy("fifo");
  const auto outcome = simulate({{"big", 0, 1, 5}}, pool(4), *fifo);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(outcome.error().message, HasSubstr("job 'big' asks for 5 devices and can never run; there are 4"));
  EXPECT_TRUE(simulate({}, pool(4), *fifo));
  const auto unknown = make_policy("best");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(
      unknown.error().message,
      HasSubstr(
          "there is no 'best'; accepted: fifo, fifo-backfill, smallest-first, las, las-seconds, srtf, srsf, drf"));
}

// What a policy is told at each job's arrival: how many workers it may have.
class Onlooker final : public Policy {
 public:
  std::string name() const override { return "onlooker"; }
  Result<Decision> decide(const State& state) override {
    for (const int job : state.arrived) told.push_back(state.job(job).max_workers());
    return fifo_->decide(state);
  }

  std::vector<int> told;

 private:
  std::unique_ptr<Policy> fifo_ = policy("fifo");
};

TEST(Simulator, ShowsHiddenSpeedsAsJobsTrainAndOfAnApplicationToAllOfItsJobs) {
  const auto speeds = std::make_shared<MeasuredSpeeds>();
  for (const int workers : {1, 2, 4}) speeds->add(0, 1, workers, workers, workers);
  Elastic elastic;
  elastic.max_workers = 4;
  elastic.measured = speeds;
  std::vector<Job> jobs;
  for (const char* application : {"one", "one", "two", "one", "two", ""}) {
    jobs.push_back({fmt::format("job{}", jobs.size()), 20.0 * static_cast<double>(jobs.size()), 10, 1});
    jobs.back().elastic = elastic;
    jobs.back().type_speeds = {1};
    jobs.back().application = application;
  }
  const auto told = [&](const SimulationOptions& options) {
    Onlooker onlooker;
    const Outcome outcome = replay(jobs, *parse_topology("1x4:a"), onlooker, options);
    for (std::size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(outcome.jobs[i].finished, jobs[i].arrival + 10);
    return onlooker.told;
  };
  EXPECT_THAT(told({}), ElementsAre(4, 4, 4, 4, 4, 4));
  EXPECT_THAT(told({.hide_speeds = true}), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(told({.hide_speeds = true, .applications_share_speeds = true}), ElementsAre(1, 2, 1, 2, 2, 1))
      << "twice the most with which a job of the application has trained";
}

class Broken final : public Policy {
 public:
  explicit Broken(Decision decision) : decision_(std::move(decision)) {}
  std::string name() const override { return "broken"; }
  Result<Decision> decide(const State&) override { return decision_; }

 private:
  Decision decision_;
};

TEST(Simulator, ChecksWhatPoliciesReturn) {
  const auto message = [](Decision decision) {
    Broken broken(std::move(decision));
    const auto outcome = simulate({{"a", 0, 1, 1}, {"b", 0, 1, 1}}, pool(1), broken);
    return outcome ? "accepted" : outcome.error().message;
  };
  EXPECT_THAT(message({}), HasSubstr("leaves 2 jobs waiting for ever, such as 'a'"));
  EXPECT_THAT(message({{{0, {{0, 1}}}, {1, {{0, 1}}}}}), HasSubstr("gives 'b' 1 workers that it may not have"));
  EXPECT_THAT(message({{{0, {{0, 2}}}}}), HasSubstr("gives 'a' 2 workers that it may not have"));
  EXPECT_THAT(message({{{7, {{0, 1}}}}}), HasSubstr("places job 7, which is not there"));
  EXPECT_THAT(message({{{0, {{0, 1}}}}, 0}), HasSubstr("wants to be woken at 0"));
}

// What Tiresias's simulator prints for this trace, on 128 devices in one place, and with 16 nodes of 8.
TEST(Simulator, GivesThePublishedMeansOfARealTrace) {
  const std::filesystem::path file = std::filesystem::path(MOTLEY_SHARED_DATA) / "traces/itp/cluster06.csv";
  if (!std::filesystem::exists(file)) {
    GTEST_SKIP() << "needs " << file.string();
  }
  const auto jobs = read_trace(file);
  ASSERT_TRUE(jobs) << jobs.error().message;
  const auto hours = [&](const std::string& name, const ClusterTopology& topology, PlacementStrategy strategy) {
    const auto one = policy(name, strategy);
    return compute_completion(*jobs, replay(*jobs, topology, *one)).mean / 3600;
  };
  EXPECT_NEAR(hours("fifo", pool(128), PlacementStrategy::kAny), 22.56, 0.005);
  EXPECT_NEAR(hours("las", pool(128), PlacementStrategy::kAny), 10.09, 0.005);
  EXPECT_NEAR(hours("fifo", uniform(16, 8), PlacementStrategy::kConsolidated), 23.32, 0.005);
}

}  // namespace
}  // namespace motley::scheduling
