#include "motley/schedule/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace motley::schedule {
namespace {

using ::testing::HasSubstr;

TEST(Trace, ReadsTheFormatsByTheirHeaders) {
  const auto philly = parse_trace(
      "timestamp,duration,num_gpus,gpu_time,cluster\r\n"
      "2017-10-09 07:01:55,66.0,2,132.0,11cb48\r\n"
      "2017-10-09 06:01:55,12.5,1,12.5,6214e9\r\n",
      "philly.csv");
  ASSERT_TRUE(philly) << philly.error().message;
  ASSERT_EQ(philly->size(), 2U);
  EXPECT_EQ((*philly)[0].name, "line 3");
  EXPECT_EQ((*philly)[0].arrival, 0);
  EXPECT_EQ((*philly)[0].duration, 12.5);
  EXPECT_EQ((*philly)[1].arrival, 3600);
  EXPECT_EQ((*philly)[1].workers, 2);

  const auto itp = parse_trace(
      "job_id,submission_time,duration,num_gpu\n"
      "b,70,10,8\n\n"
      "a,60,20,1\n"
      "c,60,30,4\n",
      "itp.csv");
  ASSERT_TRUE(itp) << itp.error().message;
  ASSERT_EQ(itp->size(), 3U);
  EXPECT_EQ((*itp)[0].name, "a");
  EXPECT_EQ((*itp)[1].name, "c") << "those of one instant stay in the file's order";
  EXPECT_EQ((*itp)[2].arrival, 10);

  const auto again = parse_trace(format_trace(*itp), "again.csv");
  ASSERT_TRUE(again) << again.error().message;
  for (std::size_t i = 0; i < itp->size(); ++i) {
    EXPECT_EQ((*again)[i].name, (*itp)[i].name);
    EXPECT_EQ((*again)[i].arrival, (*itp)[i].arrival);
    EXPECT_EQ((*again)[i].duration, (*itp)[i].duration);
    EXPECT_EQ((*again)[i].workers, (*itp)[i].workers);
  }
}

TEST(Trace, MayHaveNoJobs) {
  EXPECT_TRUE(parse_trace("job,arrival_seconds,duration_seconds,workers\n", "empty.csv")->empty());
}

TEST(Trace, SaysWhereItIsWrong) {
  const auto refused = [](const std::string& lines) {
    const auto trace = parse_trace("job,arrival_seconds,duration_seconds,workers\na,0,1,1\n" + lines, "t.csv");
    return trace ? "accepted" : trace.error().message;
  };
  EXPECT_EQ(refused("b,1,2,3\n"), "accepted");
  EXPECT_THAT(refused("b,-1,2,3\n"), HasSubstr("t.csv:3: arrival_seconds is '-1'; accepted: seconds from 0 to 1e10"));
  EXPECT_THAT(refused("b,x,2,3\n"), HasSubstr("t.csv:3: arrival_seconds is 'x'"));
  EXPECT_THAT(refused("b,1,,3\n"), HasSubstr("t.csv:3: duration_seconds is ''"));
  EXPECT_THAT(refused("b,1,nan,3\n"), HasSubstr("t.csv:3: duration_seconds is 'nan'"));
  EXPECT_THAT(refused("b,1,1e300,3\n"), HasSubstr("t.csv:3: duration_seconds is '1e300'"));
  EXPECT_THAT(refused("\nb,1,2,0\n"), HasSubstr("t.csv:4: workers is '0'; accepted: a whole number from 1"));
  EXPECT_THAT(refused("b,1,2,1.5\n"), HasSubstr("t.csv:3: workers is '1.5'"));
  EXPECT_THAT(refused("b,1,2\n"), HasSubstr("t.csv:3: has 3 fields; accepted: 4"));
  EXPECT_THAT(refused(",1,2,3\n"), HasSubstr("t.csv:3: job is ''"));
  EXPECT_THAT(refused("a,1,2,3\n"),
              HasSubstr("t.csv:3: job is 'a'; accepted: a name for each job; line 2 has this one"));
  const auto date =
      parse_trace("timestamp,duration,num_gpus,gpu_time,cluster\n2017-02-29 07:01:55,66.0,2,132.0,x\n", "p");
  ASSERT_FALSE(date) << "that year had no such day";
  EXPECT_THAT(date.error().message, HasSubstr("p:2: timestamp is '2017-02-29 07:01:55'; accepted: a date and time"));
  const auto header = parse_trace("a,b\n1,2\n", "h.csv");
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr("h.csv: the first line"));
  EXPECT_THAT(header.error().message, HasSubstr("job_id,submission_time,duration,num_gpu"));
}

// Counts of the published traces, where they are here.
TEST(Trace, PublishedOnesAreWhatTheyAreSaidToBe) {
  const std::filesystem::path folder = std::filesystem::path(MOTLEY_SHARED_DATA) / "traces";
  if (!std::filesystem::exists(folder / "philly.csv")) {
    GTEST_SKIP() << "needs " << (folder / "philly.csv").string();
  }
  const auto hours = [](const std::vector<Job>& jobs) {
    double seconds = 0;
    for (const Job& job : jobs) seconds += job.device_seconds();
    return seconds / 3600;
  };
  const auto philly = read_trace(folder / "philly.csv");
  ASSERT_TRUE(philly) << philly.error().message;
  EXPECT_EQ(philly->size(), 82247U);
  EXPECT_NEAR(hours(*philly), 978e3, 1e3);
  const auto itp = read_trace(folder / "itp" / "cluster06.csv");
  ASSERT_TRUE(itp) << itp.error().message;
  EXPECT_EQ(itp->size(), 2396U);
  EXPECT_NEAR(hours(*itp), 124e3, 1e3);
}

}  // namespace
}  // namespace motley::schedule
