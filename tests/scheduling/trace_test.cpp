#include "motley/scheduling/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
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
  const std::string header = "job,arrival_seconds,duration_seconds,workers,max_workers,gradient_bytes,min_workers\n";
  const auto trace = parse_trace(header + "a,0,10,4,8,1e9,2\n", "t.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  const Job& job = trace->front();
  ASSERT_TRUE(job.elastic);
  EXPECT_EQ(job.min_workers(), 2);
  EXPECT_EQ(job.max_workers(), 8);
  EXPECT_EQ(job.elastic->gradient_bytes, 1e9);
  const auto again = parse_trace(format_trace(*trace), "again.csv");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->front().min_workers(), 2);
  EXPECT_EQ(again->front().max_workers(), 8);
  EXPECT_EQ(again->front().elastic->gradient_bytes, 1e9);
  EXPECT_FALSE(parse_trace("job,arrival_seconds,duration_seconds,workers\na,0,1,1\n", "t.csv")->front().elastic);

  const auto refused = [&](const std::string& line) {
    const auto wrong = parse_trace(header + line, "t.csv");
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(refused("a,0,10,4,3,0,2\n"),
              HasSubstr("t.csv:2: max_workers is '3'; accepted: an integer from the workers"));
  EXPECT_THAT(refused("a,0,10,4,8,0,5\n"),
              HasSubstr("t.csv:2: min_workers is '5'; accepted: an integer from 1 to the"));
  EXPECT_THAT(refused("a,0,10,4,8,0,1.5\n"), HasSubstr("t.csv:2: min_workers is '1.5'"));
  EXPECT_THAT(refused("a,0,10,4,8,-1,1\n"), HasSubstr("t.csv:2: gradient_bytes is '-1'; accepted: bytes from 0"));
  for (const char* extra : {"max_workers,max_workers", "mast"}) {
    const auto wrong = parse_trace(fmt::format("job,arrival_seconds,duration_seconds,workers,{}\n", extra), "t.csv");
    ASSERT_FALSE(wrong) << extra;
    EXPECT_THAT(wrong.error().message, HasSubstr("none of a trace that is known here"));
  }
  const auto before = parse_trace("job,arrival_seconds,duration_seconds,workers,least,most\n", "t.csv");
  ASSERT_FALSE(before);
  EXPECT_THAT(before.error().message, HasSubstr("(least is now min_workers, most is now max_workers)"));
}

TEST(Trace, OursHasNotAllThatJobsMayBe) {
  Job plain{.name = "a", .duration = 10};
  EXPECT_TRUE(fits_format({plain}));
  plain.elastic = Elastic{.max_workers = 4, .gradient_bytes = 1e9, .restart_cost_seconds = 5};
  EXPECT_TRUE(fits_format({plain, plain}));
  const auto fits_with = [&](const std::function<void(Job&)>& change) {
    Job other = plain;
    change(other);
    return fits_format({plain, other});
  };
  EXPECT_FALSE(fits_with([](Job& job) { job.utility.weight = 2; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.utility.shape = Utility::Shape::kLinear; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.iterations = 100; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.elastic->reserve = 1e9; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.elastic->reduce_rate = 1e9; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.elastic->speedup = {{2, 1.5}}; }));
  EXPECT_FALSE(fits_with([](Job& job) { job.elastic->measured = std::make_shared<MeasuredSpeeds>(); }));
}

TEST(Trace, OursMaySayWhatWorkersRequest) {
  const std::string text =
      "job,arrival_seconds,duration_seconds,workers,memory_bytes_per_worker,cpus_per_worker\na,0,10,1,32e9,4.5\n"
      "b,0,10,1,0,0\n";
  const TraceOptions options = {.resources = {kCpus, kMemory}};
  const auto jobs = parse_trace(text, "t.csv", options);
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_THAT(jobs->at(0).requests, ::testing::ElementsAre(4.5, 32e9));
  EXPECT_TRUE(jobs->at(1).requests.empty());
  const auto again = parse_trace(format_trace(*jobs, {}, options.resources), "again.csv", options);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->at(0).requests, jobs->at(0).requests);
  const auto ignored = parse_trace(text, "t.csv", {.resources = {kMemory}});
  ASSERT_FALSE(ignored);
  EXPECT_THAT(ignored.error().message,
              HasSubstr("t.csv:2: cpus_per_worker is '4.5'; accepted: 0, or with what each node has (--node-cpus)"));
}

TEST(Trace, OursMaySayHowFastJobsAreOnWhat) {
  const std::string text =
      "job,arrival_seconds,duration_seconds,workers,speed_k80,device_hour_cost,speed_v100\na,0,10,1,0.25,3,1\n"
      "b,0,10,1,0,0,2\n";
  const auto jobs = parse_trace(text, "t.csv", {.types = {"v100", "k80"}});
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_THAT(jobs->at(0).type_speeds, ::testing::ElementsAre(1, 0.25));
  EXPECT_THAT(jobs->at(1).type_speeds, ::testing::ElementsAre(2, 0));
  EXPECT_EQ(jobs->at(0).device_hour_cost, 3);
  EXPECT_FALSE(jobs->at(0).elastic);
  EXPECT_TRUE(parse_trace(text, "t.csv")->at(0).type_speeds.empty()) << "all devices are alike";
  const auto again = parse_trace(format_trace(*jobs, {"v100", "k80"}), "again.csv", {.types = {"k80", "v100"}});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_THAT(again->at(1).type_speeds, ::testing::ElementsAre(0, 2));
  EXPECT_EQ(again->at(0).device_hour_cost, 3);

  const auto refused = [](const std::string& changed, const std::string& type) {
    const auto wrong =
        parse_trace("job,arrival_seconds,duration_seconds,workers,speed_v100\n" + changed, "t.csv", {.types = {type}});
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_EQ(refused("a,0,10,1,1\n", "v100"), "accepted");
  EXPECT_THAT(refused("a,0,10,1,1\n", "k80"), HasSubstr("t.csv:1: speed_k80 is ''; accepted: this column, too"));
  EXPECT_THAT(refused("a,0,10,1,-1\n", "v100"), HasSubstr("t.csv:2: speed_v100 is '-1'; accepted: a number from 0"));
  EXPECT_THAT(refused("a,0,10,1,0\n", "v100"), HasSubstr("accepted: a type on which the job can run"));
}

TEST(Trace, OursMayNameProfiles) {
  const TemporaryFolder own;
  const std::filesystem::path& folder = own.path;
  const auto read_profile = [&](const std::filesystem::path& file) -> Result<ProfiledJob> {
    if (file != folder / "profile.json") return fail(ErrorCode::kIo, "there is no such file");
    return ProfiledJob{0.108, 600, {{"new", 1}, {"old", 0.5}}};
  };
  const std::string header = "job,arrival_seconds,duration_seconds,workers,max_workers,profile\n";
  const auto read = [&](const std::string& line, const std::vector<std::string>& types) {
    EXPECT_TRUE(write_file(folder / "trace.csv", header + line));
    return read_trace(folder / "trace.csv", {.types = types, .read_profile = read_profile});
  };
  const auto jobs = read("a,0,10,2,4,profile.json\nb,0,10,2,4,\n", {"older", "old", "new"});
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_NEAR(jobs->at(0).elastic->compute_seconds, 0.108, 1e-12);
  EXPECT_EQ(jobs->at(0).elastic->gradient_bytes, 600);
  EXPECT_EQ(jobs->at(0).max_workers(), 4);
  EXPECT_THAT(jobs->at(0).type_speeds, ::testing::ElementsAre(0, ::testing::DoubleEq(0.5), 1));
  EXPECT_TRUE(jobs->at(1).type_speeds.empty());
  EXPECT_TRUE(read("a,0,10,2,4,profile.json\n", {})->front().type_speeds.empty());
  const auto refused = [&](const std::string& line, const std::vector<std::string>& types) {
    const auto wrong = read(line, types);
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(refused("a,0,10,2,4,other.json\n", {}), HasSubstr("trace.csv:2: profile is 'other.json'; accepted: a"));
  EXPECT_THAT(refused("a,0,10,2,4,profile.json\n", {"v100"}),
              HasSubstr("accepted: one with a device of the cluster's (v100); it has new, old"));
  const auto unread = read_trace(folder / "trace.csv");
  ASSERT_FALSE(unread);
  EXPECT_THAT(unread.error().message, HasSubstr("profile is 'profile.json'; accepted: nothing"));
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
  EXPECT_THAT(refused("\nb,1,2,0\n"), HasSubstr("t.csv:4: workers is '0'; accepted: an integer from 1"));
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

TEST(Trace, AlibabasPodsThatHadGpusAreJobs) {
  const std::string header =
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";
  const auto trace = parse_trace(header +
                                     "pod-1,12000,16384,8,1000,,LS,Running,100,700,160\n"
                                     "pod-2,20000,65536,0,0,,LS,Running,120,800,120\n"
                                     "pod-3,11908,47104,1,1000,V100M16|V100M32,BE,Pending,130,250,\n"
                                     "pod-4,6000,12288,1,460,,LS,Running,40,940,40\n",
                                 "pods.csv");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->size(), 2U) << "one has no GPU, one never began";
  EXPECT_EQ((*trace)[0].name, "pod-4");
  EXPECT_EQ((*trace)[0].duration, 900);
  EXPECT_EQ((*trace)[1].arrival, 60);
  EXPECT_EQ((*trace)[1].duration, 540) << "from when it was scheduled";
  EXPECT_EQ((*trace)[1].workers, 8);
  const auto wrong = parse_trace(header + "pod-1,1,1,1,1000,,LS,Running,100,150,160\n", "pods.csv");
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("pods.csv:2: deletion_time is '150'; accepted: seconds from 160 on"));
}

constexpr const char* kThroughputs = R"json({
  "v100": {"('LM (batch size 5)', 1)": {"null": 20.0, "('LM (batch size 5)', 1)": [9.0, 9.0]},
           "('LM (batch size 5)', 4)": {"null": 50.0}},
  "k80": {"('LM (batch size 5)', 1)": {"null": 2.0}}
})json";

TEST(Trace, GavelsHaveStepsInsteadOfSeconds) {
  const auto throughputs = Throughputs::parse(kThroughputs, "speeds.json");
  ASSERT_TRUE(throughputs) << throughputs.error().message;
  const std::string early =
      "LM (batch size 5)\tcd %s && python main.py --batch_size 5 \t--steps\t1\t1000\t500.000000\t4\n"
      "LM (batch size 5)\tcd %s && python main.py --batch_size 5\t--steps\t1\t400\t300.000000\t1\n";
  const auto trace = parse_trace(early, "msr.trace", {.throughputs = &*throughputs});
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->size(), 2U);
  EXPECT_EQ((*trace)[0].name, "line 2");
  EXPECT_EQ((*trace)[0].duration, 20);
  EXPECT_EQ((*trace)[1].arrival, 200);
  EXPECT_EQ((*trace)[1].duration, 20);
  EXPECT_EQ((*trace)[1].workers, 4);

  const auto heterogeneous = parse_trace(early, "msr.trace", {.throughputs = &*throughputs, .types = {"k80", "v100"}});
  ASSERT_TRUE(heterogeneous) << heterogeneous.error().message;
  const double on_k80 = throughputs->steps_per_second("k80", "LM (batch size 5)", 1);
  const double on_v100 = throughputs->steps_per_second("v100", "LM (batch size 5)", 1);
  EXPECT_THAT((*heterogeneous)[0].type_speeds, ::testing::ElementsAre(on_k80 / on_v100, 1));
  const auto unknown = parse_trace(early, "msr.trace", {.throughputs = &*throughputs, .types = {"a100"}});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("the table of throughputs has no 'a100'"));

  const auto late = parse_trace(
      "LM (batch size 5)\tmain.py\t--steps\t1\t40\t1\t2.5\t1.2\t0\n"
      "LM (batch size 5)\tmain.py\t--steps\t1\t40\t1\t1\t-1\t7\n",
      "late.trace", {.throughputs = &*throughputs, .device_type = "k80"});
  ASSERT_TRUE(late) << late.error().message;
  EXPECT_EQ((*late)[0].duration, 20);
  EXPECT_EQ((*late)[0].utility.weight, 2.5);
  EXPECT_EQ((*late)[0].deadline, 24);
  EXPECT_TRUE(std::isinf((*late)[1].deadline));

  const auto refused = [&](const std::string& line) {
    const auto wrong = parse_trace(line + "\n", "g", {.throughputs = &*throughputs});
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(parse_trace(early, "msr.trace").error().message, HasSubstr("with a table of throughputs"));
  EXPECT_THAT(refused("LM (batch size 5)\tc\t-n\t1\t40\t0\t2"), HasSubstr("g:1: model is 'LM (batch size 5)'"));
  EXPECT_THAT(refused("GPT\tc\t-n\t1\t40\t0\t1"), HasSubstr("for 1 worker on 'v100'; its types: k80, v100"));
  EXPECT_THAT(refused("LM (batch size 5)\tc\t-n\t1\tmany\t0\t1"), HasSubstr("g:1: steps is 'many'"));
  EXPECT_THAT(refused("LM (batch size 5)\tc\t-n\t1\t40\t0\t1.5"), HasSubstr("g:1: workers is '1.5'"));
  EXPECT_THAT(refused("LM (batch size 5)\tc\t-n\t1\t40\t-1\t1"), HasSubstr("g:1: arrival is '-1'"));
  EXPECT_THAT(refused("LM (batch size 5)\tc\t40"), HasSubstr("g:1: has 3 fields; accepted: 7 or 9"));
}

TEST(Throughputs, SayWhereTheyAreWrong) {
  const auto refused = [](const std::string& text) {
    const auto wrong = Throughputs::parse(text, "s.json");
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(refused("[]"), HasSubstr("s.json: the whole is []; accepted: an object of device types"));
  EXPECT_THAT(refused(R"({"v100": 3})"), HasSubstr("v100 is 3; accepted: an object of jobs"));
  EXPECT_THAT(refused(R"({"v100": {"LM": {"null": 1}}})"), HasSubstr("accepted: a key such as"));
  EXPECT_THAT(refused(R"json({"v100": {"('LM', 1)": {}}})json"), HasSubstr("with steps a second as \"null\""));
  EXPECT_THAT(refused("{"), HasSubstr("s.json"));
}

TEST(Throughputs, GavelsTableIsRead) {
  const std::filesystem::path file = std::filesystem::path(MOTLEY_SHARED_DATA) / "throughputs/gavel.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "needs " << file.string();
  const auto throughputs = Throughputs::read(file);
  ASSERT_TRUE(throughputs) << throughputs.error().message;
  EXPECT_THAT(throughputs->types(), ::testing::IsSupersetOf({"k80", "p100", "v100"}));
  EXPECT_NEAR(throughputs->steps_per_second("v100", "ResNet-18 (batch size 64)", 2), 74.1359, 1e-4);
  EXPECT_EQ(throughputs->steps_per_second("v100", "ResNet-18 (batch size 64)", 3), 0);
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
}  // namespace motley::scheduling
