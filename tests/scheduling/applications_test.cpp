// Tables of applications that adapt their batch, against values by hand.
#include "motley/scheduling/trace/applications.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "motley/base/os/file.h"
#include "motley/scheduling/trace/trace.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

// One application, two types; a step of 10 examples on one `new` device takes 1 s, of 20 takes 2 s; two exchange for
// 0.5 s. With gradients of norm 1 and variance 3, a batch of 20 is worth 4 / 2.5 = 1.6 iterations of 10.
class ApplicationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "one");
    write("validation-10.csv", "progress,iteration,metric,grad_sqr,grad_var\n100,100,0,1,3\n300,300,0,1,3\n");
    write("validation-20.csv", "progress,iteration,metric,grad_sqr,grad_var\n100,60,0,1,3\n320,200,0,1,3\n");
    write("placements-new.csv",
          "placement,local_bsz,step_time,sync_time\n1,10,1,0\n1,20,2,0\n2,10,1.5,0.5\n2,20,2.5,0.5\n");
    write("placements-old.csv", "placement,local_bsz,step_time,sync_time\n1,10,4,0\n1,20,8,0\n");
  }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file(folder_ / "one" / name, text));
  }
  Result<Applications> read() { return Applications::read(folder_, *parse_topology("1x2:new,1x2:old")); }

  const TemporaryFolder own_;
  const std::filesystem::path& folder_ = own_.path;
};

TEST_F(ApplicationsTest, AJobAdaptsItsBatch) {
  const auto applications = read();
  ASSERT_TRUE(applications) << applications.error().message;
  const Job job = applications->adaptive("one");
  // Alone the batch of 10 is best: 1 iteration a second, and 300 of them; 20 takes 2 s for 1.6.
  EXPECT_NEAR(job.duration, 300, 1e-9);
  EXPECT_NEAR(job.speed_on(1), 0.25, 1e-9);
  EXPECT_EQ(job.max_workers(), 2);
  // Two workers have 10 examples each at least: 1.6 in 1.5 s.
  EXPECT_NEAR(speed(job, {}, {.workers = 2, .nodes = 1, .type = 0}), 1.6 / 1.5, 1e-9);
}

TEST_F(ApplicationsTest, AWorkloadSaysWorkersAndBatches) {
  const auto applications = read();
  ASSERT_TRUE(applications) << applications.error().message;
  const std::string text = "name,time,application,num_replicas,batch_size\na,5,one,2,20\nb,7,one,1,20\n";
  const auto jobs = parse_trace(text, "w.csv", {.applications = &*applications});
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_NEAR(jobs->at(0).duration, 300 * 1.5 / 1.6, 1e-9);
  EXPECT_EQ(jobs->at(0).speed_on(1), 0) << "two were not measured there";
  EXPECT_EQ(jobs->at(1).arrival, 2);
  EXPECT_NEAR(jobs->at(1).duration, 300 * 2 / 1.6, 1e-9) << "in two steps of 10";
  const auto wrong = parse_trace("name,time,application,num_replicas,batch_size\na,5,two,2,20\n", "w.csv",
                                 {.applications = &*applications});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("w.csv:2: application is 'two'; accepted: one"));
}

TEST_F(ApplicationsTest, WhatIsWrongIsNamed) {
  write("validation-20.csv", "progress,iteration,metric,grad_sqr,grad_var\n100,60,0,x,3\n");
  const auto wrong = read();
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("validation-20.csv:2: grad_sqr is 'x'; accepted: a number, 0 or more"));
}

TEST(MeasuredSpeeds, AreKnownAsFarAsAJobHasTrained) {
  MeasuredSpeeds all;
  for (const int type : {0, 1}) {
    const double one = type == 0 ? 1 : 0.5;
    all.add(type, 1, 1, one, one);
    all.add(type, 1, 2, 1.5 * one, 2 * one);
    all.add(type, 1, 4, 2 * one, 4 * one);
  }
  EXPECT_EQ(all.known_after({0, 0}).max_workers(), 1);
  EXPECT_EQ(all.known_after({0, 0}).at(1, 1, 1), 1) << "all types are alike before it has trained";
  const MeasuredSpeeds after = all.known_after({2, 0});
  EXPECT_EQ(after.max_workers(), 4);
  EXPECT_NEAR(after.at(0, 1, 2), 1.5, 1e-12);
  EXPECT_NEAR(after.at(0, 1, 4), 3, 1e-12) << "as if four exchanged no longer than two";
  EXPECT_NEAR(after.at(1, 1, 4), 1.5, 1e-12);
}

}  // namespace
}  // namespace motley::scheduling
