// Iteration times against numbers worked out by hand, and what they mean for jobs.
#include "motley/scheduling/trace/job.h"

#include <gtest/gtest.h>

namespace motley::scheduling {
namespace {

Elastic ring() {
  Elastic job;
  job.min_workers = 1;
  job.max_workers = 8;
  job.compute_seconds = 0.5;
  job.gradient_bytes = 100;
  job.reduce_rate = 400;
  return job;
}

TEST(Speed, IsEquationOne) {
  Network network;
  network.intra_node_bandwidth = 50;
  network.inter_node_bandwidth = 20;
  network.loss = 0.25;
  network.seconds_per_node = 0.125;
  const Elastic job = ring();
  // 100 * 3/4 * (2/50 + 1/400) = 3.1875
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {4, 1, 1}), 3.1875 + 0.125 + 0.5);
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {1, 1, 1}), 0.125 + 0.5) << "nobody to exchange with";
  // 100 * 3/4 * (2/20 + 1/400) = 7.6875
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {4, 2, 1}), 7.6875 + 0.25 + 0.5);
  // Three rings meet: 20 / (3 + 0.25 * 2) bytes a second.
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {4, 2, 3}), 75 * (2 * 3.5 / 20 + 1.0 / 400) + 0.25 + 0.5);
  network.contention = 0.5;
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {4, 2, 3}), 75 * (2 * 1.625 / 20 + 1.0 / 400) + 0.25 + 0.5);
  EXPECT_DOUBLE_EQ(iteration_seconds(job, network, {4, 2, 1}), 7.6875 + 0.25 + 0.5) << "a ring alone is not slowed";
  Elastic reserved = job;
  reserved.reserve = 25;
  EXPECT_DOUBLE_EQ(iteration_seconds(reserved, network, {4, 2, 3}), 75 * (2.0 / 25 + 1.0 / 400) + 0.25 + 0.5);
}

TEST(Speed, OneIsWhatAJobHasWithWhatItAsksFor) {
  Network network;
  network.intra_node_bandwidth = 50;
  Job job{"a", 0, 100, 4};
  EXPECT_EQ(speed(job, network, {4, 3, 7}), 1) << "a rigid job is as fast anywhere";
  job.elastic = ring();
  EXPECT_DOUBLE_EQ(speed(job, network, {4, 1, 1}), 1);
  // Half the workers, each a little faster: 2/4 * (3.1875 + 0.5) / (100 * 1/2 * 0.0425 + 0.5)
  EXPECT_DOUBLE_EQ(speed(job, network, {2, 1, 1}), 0.5 * 3.6875 / 2.625);
  job.elastic->gradient_bytes = 0;
  EXPECT_DOUBLE_EQ(speed(job, network, {8, 1, 1}), 2);
}

TEST(Speed, IsWhatAJobDeclares) {
  const Network network;
  Job job{"a", 0, 100, 2};
  job.elastic = ring();
  job.elastic->speedup = {{2, 1.5}, {4, 2.5}};
  EXPECT_DOUBLE_EQ(speed(job, network, {2, 1, 1}), 1);
  EXPECT_DOUBLE_EQ(speed(job, network, {1, 1, 1}), 1 / 1.5);
  EXPECT_DOUBLE_EQ(speed(job, network, {3, 2, 1}), 2 / 1.5) << "halfway between 1.5 and 2.5, on whatever nodes";
  EXPECT_DOUBLE_EQ(speed(job, network, {8, 1, 1}), 2.5 / 1.5) << "no more workers help";
}

}  // namespace
}  // namespace motley::scheduling
