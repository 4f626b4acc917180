// Workloads made from traces, against plain sums over all windows and jobs.
#include "motley/scheduling/trace/workload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/random.h"
#include "motley/scheduling/trace/cluster_topology.h"

namespace motley::scheduling {
namespace {

std::vector<Job> random_jobs(Random& random, int count) {
  std::vector<Job> jobs;
  double arrival = 0;
  for (int i = 0; i < count; ++i) {
    jobs.push_back({fmt::format("job{}", i), arrival, 1000 * random.uniform(), 1 + static_cast<int>(random.below(8))});
    arrival += 40000 * random.uniform();
  }
  return jobs;
}

TEST(Workload, HasTheLoadThatIsAskedFor) {
  Random random(1);
  std::vector<Job> jobs = random_jobs(random, 50);
  const ClusterTopology topology = uniform(4, 8);
  for (const double load : {0.7, 1.3}) {
    set_load(jobs, topology, load);
    double asked = 0;
    for (const Job& job : jobs) asked += job.duration * job.workers;
    EXPECT_NEAR(asked / (32 * jobs.back().arrival), load, 1e-9);
    EXPECT_NEAR(compute_load(jobs, topology), load, 1e-9);
  }
}

TEST(Workload, TheBusiestDaysHaveMostWork) {
  Random random(2);
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<Job> jobs = random_jobs(random, 60);
    const double days = 0.5 + random.uniform();
    double most = 0;
    for (const Job& first : jobs) {
      double asked = 0;
      for (const Job& job : jobs) {
        const double after = job.arrival - first.arrival;
        if (after >= 0 && after < days * 86400) asked += job.device_seconds();
      }
      most = std::max(most, asked);
    }
    const std::vector<Job> chosen = busiest(jobs, days);
    double asked = 0;
    for (const Job& job : chosen) asked += job.device_seconds();
    EXPECT_NEAR(asked, most, 1e-6 * most);
    EXPECT_EQ(chosen.front().arrival, 0);
    EXPECT_LT(chosen.back().arrival, days * 86400);
  }
}

TEST(Workload, ElasticJobsKeepWhatTheyAskFor) {
  Random random(3);
  std::vector<Job> jobs = random_jobs(random, 100);
  std::vector<Job> again = jobs;
  const std::vector<Job> rigid = jobs;
  make_elastic(jobs, 5);
  make_elastic(again, 5);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_TRUE(jobs[i].elastic);
    EXPECT_EQ(jobs[i].workers, rigid[i].workers);
    EXPECT_EQ(jobs[i].duration, rigid[i].duration);
    EXPECT_EQ(jobs[i].min_workers(), static_cast<int>(std::ceil(rigid[i].workers / 4.0)));
    EXPECT_EQ(jobs[i].max_workers(), 4 * rigid[i].workers);
    EXPECT_EQ(jobs[i].elastic->gradient_bytes, again[i].elastic->gradient_bytes);
  }
}

TEST(Workload, ContendedJobsAskForMoreThanThereIs) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Setting setting = gadget_contended_setting(50, 100, seed);
    for (const Job& job : setting.jobs) {
      ASSERT_EQ(job.requests.size(), setting.topology.resources.size());
      EXPECT_LE(job.workers, setting.topology.workers(job.requests)) << job.name;
      EXPECT_DOUBLE_EQ(speed(job, setting.topology.network, {job.workers}), 1) << "on one node, as its duration says";
      const double spread = speed(job, setting.topology.network, {job.workers, 2});
      EXPECT_TRUE(job.workers == 1 || spread < 0.95) << "gradients take their time between nodes";
    }
    double cpu_seconds = 0;
    for (const Job& job : setting.jobs) cpu_seconds += job.device_seconds() * job.requests[0];
    EXPECT_GT(cpu_seconds, 0.5 * setting.topology.total(0) * setting.horizon);
  }
}

}  // namespace
}  // namespace motley::scheduling
