// Policies of others, by what their papers say that they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/job.h"
#include "tests/scheduling/elastic_job.h"

namespace motley::scheduling {
namespace {

Outcome replay(const std::string& name, const std::vector<Job>& jobs, const ClusterTopology& topology,
               const PolicyOptions& options, const SimulationOptions& simulation = {}) {
  const auto policy = make_policy(name, options);
  EXPECT_TRUE(policy) << policy.error().message;
  const auto outcome = simulate(jobs, topology, **policy, simulation);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *outcome : Outcome();
}

TEST(Optimus, ShortensWhatIsLongest) {
  // Workers beside the first: from the longer job's side each saves more until it has as many times more.
  const std::vector<Job> jobs = {elastic_job("long", 0, 900, 1, 8), elastic_job("short", 0, 100, 1, 8)};
  const Outcome outcome =
      replay("optimus", jobs, pool(4), {.slot_seconds = 10000}, {.keep_runs = true, .horizon = 100});
  std::vector<int> workers(2);
  for (const scheduling::Run& run : outcome.runs)
    workers[static_cast<std::size_t>(run.job)] = count_workers(run.placement);
  EXPECT_THAT(workers, ::testing::ElementsAre(3, 1));
}

// The third border of slots of 100.1 s, divided by 100.1 s, is a little less than 3, and the seventh one of 1.3 s a
// little less than 7. Who comes behind them starts at the next one.
TEST(Drf, GoesOnFromABorderThatIsRounded) {
  for (const auto& [slot, border] : {std::pair(100.1, 3), std::pair(1.3, 7)}) {
    SCOPED_TRACE(slot);
    const Job there = elastic_job("there", 0, 20 * slot, 1, 1);
    const Job comes = elastic_job("comes", (border + 0.5) * slot, slot, 1, 1);
    const Outcome outcome = replay("drf", {there, comes}, pool(2), {.slot_seconds = slot});
    ASSERT_EQ(outcome.jobs.size(), 2u);
    EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 20 * slot);
    EXPECT_NEAR(outcome.jobs[1].started, (border + 1) * slot, 1e-6);
  }
}

TEST(ElasticFlow, MeetsDeadlinesThatCanBeMet) {
  Job urgent = elastic_job("urgent", 0, 400, 1, 8);
  urgent.deadline = 200;  // two workers all the time
  Job relaxed = elastic_job("relaxed", 0, 400, 1, 8);
  relaxed.deadline = 800;
  Job any = elastic_job("any", 0, 400, 1, 8);
  const Outcome outcome = replay("elasticflow", {any, relaxed, urgent}, pool(2), {.slot_seconds = 20});
  EXPECT_LE(outcome.jobs[2].finished, 200);
  EXPECT_LE(outcome.jobs[1].finished, 800);
}

TEST(ElasticFlow, DoesNotLetAHopelessJobHarmOthers) {
  Job first = elastic_job("first", 0, 400, 1, 2);
  first.deadline = 240;
  Job hopeless = elastic_job("hopeless", 20, 4000, 1, 2);
  hopeless.deadline = 100;
  const Outcome outcome = replay("elasticflow", {first, hopeless}, pool(2), {.slot_seconds = 20});
  EXPECT_LE(outcome.jobs[0].finished, 240);
  EXPECT_TRUE(std::isfinite(outcome.jobs[1].finished));
}

// Where all can be met by running them one after another by their deadlines, at full speed, they are.
TEST(ElasticFlow, MeetsAllDeadlinesOfAFeasibleSequence) {
  Random random(4);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<Job> jobs;
    double ready = 0;
    for (int i = 0; i < 6; ++i) {
      const double seconds = 20 * static_cast<double>(1 + random.below(10));  // on all devices
      ready += seconds;
      Job job = elastic_job(fmt::format("job{}", i), 0, 2 * seconds, 1, 2);
      job.deadline = ready + 20 * static_cast<double>(random.below(3));
      jobs.push_back(job);
    }
    const Outcome outcome = replay("elasticflow", jobs, pool(2), {.slot_seconds = 20});
    // The last one is admitted only if all before it are kept in time.
    int met = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) met += outcome.jobs[i].finished <= jobs[i].deadline + 1e-6 ? 1 : 0;
    EXPECT_EQ(met, 6) << "trial " << trial;
  }
}

// Two jobs with a worker each, and one that is left: as they stay until the first is done, and the other then has two,
// one of two ways is better, and what is done is no worse.
TEST(Afs, GivesTheSpareWorkerWhereBothAreDoneSooner) {
  Random random(6);
  int to_shorter = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Job> jobs = {elastic_job("a", 0, 10 + 90 * random.uniform(), 1, 2),
                             elastic_job("b", 0, 10 + 90 * random.uniform(), 1, 2)};
    std::array<double, 2> faster{};
    for (std::size_t i = 0; i < 2; ++i) {
      faster[i] = 1 + random.uniform();
      jobs[i].elastic->speedup = {{2, faster[i]}};
    }
    // The sum of both completion times where `first` has two workers until one of them is done.
    const auto sum_with = [&](std::size_t first) {
      std::array<double, 2> rate = {1, 1};
      rate[first] = faster[first];
      const double end = std::min(jobs[0].duration / rate[0], jobs[1].duration / rate[1]);
      const std::size_t later = jobs[0].duration / rate[0] > jobs[1].duration / rate[1] ? 0 : 1;
      return 2 * end + (jobs[later].duration - end * rate[later]) / faster[later];
    };
    const Outcome outcome = replay("afs", jobs, pool(3), {}, {.keep_runs = true});
    const double sum = outcome.jobs[0].finished + outcome.jobs[1].finished;
    const std::size_t shorter = jobs[0].duration < jobs[1].duration ? 0 : 1;
    // The rule asks which job is done first without the worker; where the other would overtake with it, it is no
    // optimum.
    if (jobs[1 - shorter].duration / faster[1 - shorter] < jobs[shorter].duration) continue;
    EXPECT_NEAR(sum, std::min(sum_with(0), sum_with(1)), 1e-6) << "trial " << trial;
    to_shorter += sum_with(shorter) < sum_with(1 - shorter) ? 1 : 0;
  }
  EXPECT_GT(to_shorter, 20);
}

class ProgramPolicies : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_program_solver()) GTEST_SKIP() << "needs HiGHS, and this build has none";
  }
};

TEST_F(ProgramPolicies, GavelSharesTimeEvenly) {
  // Twice as many jobs as devices: each has half of the time, to within a round.
  std::vector<Job> jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back({fmt::format("job{}", i), 0, 1e6, 1});
  const Outcome outcome = replay("gavel", jobs, pool(4), {.slot_seconds = 60}, {.horizon = 60 * 100});
  for (const JobOutcome& job : outcome.jobs) EXPECT_NEAR(job.done_seconds, 3000, 121);
}

// A restart takes longer than a slot: who restarts keeps its device until it has trained.
TEST_F(ProgramPolicies, GavelTakesTurnsWithRestartsLongerThanASlot) {
  for (const double restart : {60.0, 100.0, 1000.0}) {
    std::vector<Job> jobs = {elastic_job("a", 0, 1000, 1, 1), elastic_job("b", 0, 1000, 1, 1)};
    for (Job& job : jobs) job.elastic->restart_cost_seconds = restart;
    const Outcome outcome = replay("gavel", jobs, pool(1), {.slot_seconds = 60});
    for (const JobOutcome& job : outcome.jobs) EXPECT_DOUBLE_EQ(job.done_seconds, 1000) << "restarts of " << restart;
  }
}

TEST_F(ProgramPolicies, GavelOfMostThroughputPrefersFastJobs) {
  std::vector<Job> jobs = {elastic_job("slow", 0, 1000, 1, 1), elastic_job("fast", 0, 1000, 1, 1)};
  jobs[0].elastic->compute_seconds = 2;
  const Outcome outcome =
      replay("gavel", jobs, pool(1), {.slot_seconds = 60, .objective = Objective::kCompletion}, {.horizon = 600});
  EXPECT_EQ(outcome.jobs[0].done_seconds, 0);
  EXPECT_EQ(outcome.jobs[1].done_seconds, 600);
}

TEST_F(ProgramPolicies, SiaDoublesARoundAndServesAll) {
  const Outcome outcome = replay("sia", {elastic_job("a", 0, 1e6, 1, 8)}, uniform(1, 8), {.slot_seconds = 60},
                                 {.keep_runs = true, .horizon = 600});
  std::vector<int> workers;
  for (const scheduling::Run& run : outcome.runs) workers.push_back(count_workers(run.placement));
  EXPECT_THAT(workers, ::testing::ElementsAre(1, 2, 4, 8));

  std::vector<Job> jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back(elastic_job(fmt::format("job{}", i), 0, 1e6, 1, 1));
  const Outcome full = replay("sia", jobs, uniform(1, 8), {.slot_seconds = 60}, {.horizon = 600});
  for (const JobOutcome& job : full.jobs) EXPECT_EQ(job.done_seconds, 600);
}

}  // namespace
}  // namespace motley::scheduling
