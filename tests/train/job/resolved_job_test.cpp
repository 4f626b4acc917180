// What a job's plan and cluster decide, and what they refuse.
#include "motley/train/job/resolved_job.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "motley/base/os/file.h"

namespace motley::train {
namespace {

using ::testing::HasSubstr;

class ResolvedJobTest : public ::testing::Test {
 protected:
  ResolvedJobTest() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-resolved-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    plan_.model = "m";
    plan_.layers = {"a", "b"};
    plan_.batch = 256;
    plan_.micro_batches = 2;
    plan_.stages = {{.first_layer = 0, .last_layer = 0, .replicas = {{"cpu", 1, 1}}},
                    {.first_layer = 1,
                     .last_layer = 1,
                     .replicas = {{"cpu", 2, 0.5}},
                     .gradient_sync = planning::GradientSync::kParameterServer}};
  }
  ~ResolvedJobTest() override { std::filesystem::remove_all(folder_); }

  Job planned() const {
    EXPECT_TRUE(write_file(folder_ / "plan.json", planning::to_json(plan_)));
    Job job;
    job.execution.plan = (folder_ / "plan.json").string();
    return job;
  }
  static std::string refused(const Job& job) {
    const auto resolved = resolve_job(job);
    return resolved ? "resolved" : resolved.error().message;
  }

  std::filesystem::path folder_;
  planning::Plan plan_;
};

TEST_F(ResolvedJobTest, WithoutFilesHasTheWorkersThatItAsksFor) {
  Job job;
  job.execution.workers = 3;
  job.execution.threads = 2;
  const auto resolved = resolve_job(job);
  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_FALSE(resolved->plan);
  ASSERT_EQ(resolved->cluster.workers.size(), 3u);
  EXPECT_EQ(resolved->cluster.workers[2].name, "worker-2");
  EXPECT_EQ(resolved->cluster.workers[2].threads, 2);
  EXPECT_EQ(format_job(resolved->job), format_job(job));
  job.training.global_batch_size = 2;
  EXPECT_THAT(refused(job), HasSubstr("global_batch_size: 2 is smaller than the number of workers; accepted: 3"));
}

// A rank for each worker that it may have, whatever it begins with.
TEST_F(ResolvedJobTest, AnElasticJobThatCanGrowHasItsMostWorkers) {
  Job job;
  job.execution.workers = 2;
  job.execution.elastic = "1:4";
  EXPECT_EQ(resolve_job(job)->cluster.workers.size(), 2u);
  EXPECT_EQ(resolve_job(job, true)->cluster.workers.size(), 4u);
  EXPECT_EQ(resolve_job(job, true)->job.execution.workers, 2);
  job.execution.elastic = "3:4";
  EXPECT_THAT(resolve_job(job, true).error().message,
              HasSubstr("elastic: 3:4; the job has 2 workers; accepted: a range that they are in"));

  job.execution.elastic = "1:4";
  job.execution.cluster = (folder_ / "cluster.yaml").string();
  ASSERT_TRUE(write_file(job.execution.cluster,
                         "version: 2\ndevice_types: [{name: core, kind: cpu, count: 3}]\n"
                         "workers: [{name: a, device: core}, {name: b, device: core}, {name: c, device: core}]\n"));
  const auto described = resolve_job(job, true);
  ASSERT_TRUE(described) << described.error().message;
  EXPECT_EQ(described->cluster.workers.size(), 3u);
  EXPECT_THAT(refused(job), HasSubstr("workers: 2 is given, '"));
  job.execution.workers = 4;
  EXPECT_THAT(resolve_job(job, true).error().message, HasSubstr("workers: 4 is given, '"));
}

// Whoever is lost of an elastic job, those who are left go on with the same batch.
TEST_F(ResolvedJobTest, TheFewestWorkersOfAnElasticJobHoldAStep) {
  Job job;
  job.execution.elastic = "2:3";
  job.training.global_batch_size = 256;
  cluster::Cluster cluster;
  cluster.workers.resize(3);
  EXPECT_TRUE(make_split_options(job, cluster, false));
  cluster.workers[0].max_samples = 100;
  EXPECT_TRUE(make_split_options(job, cluster, false));
  cluster.workers[2].max_samples = 155;
  const auto refused = make_split_options(job, cluster, false);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("hold 255 of the 256 samples of a step; accepted: "));
  job.execution.elastic = "3:3";
  EXPECT_TRUE(make_split_options(job, cluster, false));
}

TEST_F(ResolvedJobTest, AWorkerMayBeGivenNothing) {
  Job job;
  job.training.global_batch_size = 256;
  job.batch_split.mode = "fixed";
  job.batch_split.fixed = {256, 0};
  cluster::Cluster cluster;
  cluster.workers.resize(2);
  const auto shares = [&](std::uint32_t window) {
    const auto options = make_split_options(job, cluster, false);
    EXPECT_TRUE(options) << options.error().message;
    const auto split = data::BatchSplitter::create(*options);
    EXPECT_TRUE(split) << split.error().message;
    return split->plan(0, window)->shares;
  };
  EXPECT_EQ(shares(256), (data::BatchSplit{256, 0}));
  EXPECT_EQ(shares(10), (data::BatchSplit{10, 0}));
  cluster.workers[1].min_samples = 4;  // but for what the cluster file says that it gets at least
  EXPECT_EQ(shares(256), (data::BatchSplit{252, 4}));
}

TEST_F(ResolvedJobTest, FollowsItsPlan) {
  const auto resolved = resolve_job(planned());
  ASSERT_TRUE(resolved) << resolved.error().message;
  ASSERT_TRUE(resolved->plan);
  EXPECT_EQ(*resolved->plan, plan_);
  EXPECT_EQ(resolved->job.gradient_sync.method, "parameter-server");
  ASSERT_EQ(resolved->cluster.workers.size(), 3u);
  EXPECT_EQ(resolved->cluster.workers[2].name, "cpu-2");
}

TEST_F(ResolvedJobTest, RefusesKeysThatItsPlanContradicts) {
  const auto with = [&](auto change) {
    Job job = planned();
    change(job);
    return refused(job);
  };
  EXPECT_THAT(with([](Job& job) { job.training.global_batch_size = 128; }), HasSubstr("accepted: 256"));
  EXPECT_THAT(with([](Job& job) { job.training.gradient_accumulation_steps = 2; }), HasSubstr("2 micro-batches"));
  EXPECT_THAT(with([](Job& job) { job.baseline.every = 5; }), HasSubstr("baseline.every: 5; accepted with a plan"));
  EXPECT_THAT(with([](Job& job) { job.gradient_sync.method = "ring"; }),
              HasSubstr("accepted: auto or parameter-server"));
  EXPECT_THAT(with([](Job& job) { job.gradient_sync.racks = {0}; }), HasSubstr("without racks"));
  EXPECT_THAT(with([](Job& job) { job.execution.workers = 2; }), HasSubstr("3 replicas; accepted: 0 or 3"));
  EXPECT_THAT(with([](Job& job) { job.execution.plan = "/nowhere"; }), HasSubstr("/nowhere"));
}

TEST_F(ResolvedJobTest, ASyntheticNetworkIsEmulatedByItsProfile) {
  Job job = planned();
  job.model.name = "synthetic";
  job.model.path = "/profile.json";
  const auto resolved = resolve_job(job);
  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(resolved->job.execution.emulation, "/profile.json");
}

}  // namespace
}  // namespace motley::train
