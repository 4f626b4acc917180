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

TEST(Trace, OursMaySayHowElasticJobsAre) {
  const std::string header = "job,arrival_seconds,duration_seconds,workers,most,gradient_bytes,least\n";
  const auto trace = parse_trace(header + "a,0,10,4,8,1e9,2\n", "t.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  const Job& job = trace->front();
  ASSERT_TRUE(job.elastic);
  EXPECT_EQ(job.least(), 2);
  EXPECT_EQ(job.most(), 8);
  EXPECT_EQ(job.elastic->gradient_bytes, 1e9);
  const auto again = parse_trace(format_trace(*trace), "again.csv");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->front().least(), 2);
  EXPECT_EQ(again->front().most(), 8);
  EXPECT_EQ(again->front().elastic->gradient_bytes, 1e9);
  EXPECT_FALSE(parse_trace("job,arrival_seconds,duration_seconds,workers\na,0,1,1\n", "t.csv")->front().elastic);

  const auto refused = [&](const std::string& line) {
    const auto wrong = parse_trace(header + line, "t.csv");
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(refused("a,0,10,4,3,0,2\n"),
              HasSubstr("t.csv:2: most is '3'; accepted: a whole number from the workers"));
  EXPECT_THAT(refused("a,0,10,4,8,0,5\n"), HasSubstr("t.csv:2: least is '5'; accepted: a whole number from 1 to the"));
  EXPECT_THAT(refused("a,0,10,4,8,0,1.5\n"), HasSubstr("t.csv:2: least is '1.5'"));
  EXPECT_THAT(refused("a,0,10,4,8,-1,1\n"), HasSubstr("t.csv:2: gradient_bytes is '-1'; accepted: bytes from 0"));
  for (const char* extra : {"most,most", "mast"}) {
    const auto wrong = parse_trace(fmt::format("job,arrival_seconds,duration_seconds,workers,{}\n", extra), "t.csv");
    ASSERT_FALSE(wrong) << extra;
    EXPECT_THAT(wrong.error().message, HasSubstr("none of a trace that is known here"));
  }
}

TEST(Trace, MayBeginWithAByteOrderMark) {
  const auto trace = parse_trace("\xef\xbb\xbfjob,arrival_seconds,duration_seconds,workers\na,0,1,1\n", "t.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->size(), 1U);
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
