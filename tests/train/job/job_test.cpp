// The job file: keys to fields and back, and what is refused.
#include "motley/train/job/job.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "motley/base/os/file.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/train/job/job_data.h"
#include "motley/train/job/servers.h"

namespace motley::train {
namespace {

using ::testing::HasSubstr;

class JobTest : public ::testing::Test {
 protected:
  JobTest() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-job-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~JobTest() override { std::filesystem::remove_all(folder_); }

  Result<Job> read(const std::string& text) const {
    EXPECT_TRUE(write_file(folder_ / "job.yaml", text));
    return read_job(folder_ / "job.yaml");
  }
  // What check_job has against the default job with these keys.
  static std::string refused(const std::vector<std::pair<std::string, std::string>>& keys) {
    Job job;
    EXPECT_TRUE(apply_flags(job, keys));
    const Status status = check_job(job);
    return status ? "accepted" : status.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(JobTest, KeysAreTheWordsOfSpecsAndFields) {
  const auto job = read(
      "name: one\nmodel: {name: mlp, hidden_sizes: [16, 8]}\nglobal_batch_size: 64\nworkers: 3\n"
      "gradient_sync: {comm_dtype: bfloat16, bucket_size: 1 MB}\ncheckpoint: {every: 5 min}\nlog_level: warn\n");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->model.hidden_sizes, (std::vector<std::int64_t>{16, 8}));
  EXPECT_EQ(job->training.global_batch_size, 64);
  EXPECT_EQ(job->execution.workers, 3);
  EXPECT_EQ(job->gradient_sync.comm_dtype, "bfloat16");
  EXPECT_EQ(job->gradient_sync.bucket_size, 1e6);
  EXPECT_EQ(job->checkpoint.every, 300);
  EXPECT_EQ(job->log_level, "warn");
}

TEST_F(JobTest, IsReadBackFromItsText) {
  Job job;
  ASSERT_TRUE(apply_flags(job, {{"optimizer.betas", "0.5, 0.75"}, {"plan", "auto"}, {"data.target", "a: b"}}));
  const auto again = read(format_job(job));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(format_job(*again), format_job(job));
  EXPECT_EQ(fingerprint(*again), fingerprint(job));
  EXPECT_EQ(
      changed_keys(Job(), *again, {""}),
      "data.target is \"a: b\", was \"\"; optimizer.betas is [0.5, 0.75], was [0.9, 0.999]; plan is auto, was \"\"");
}

TEST_F(JobTest, PathsAreTakenFromTheFileAndDoNotCountAmongRanks) {
  const auto job = read("cluster: c/cluster.yaml\nplan: auto\ndata: {train: ../train.npy}\n");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->execution.cluster, (folder_ / "c/cluster.yaml").string());
  EXPECT_EQ(job->execution.plan, "auto");
  EXPECT_EQ(job->data.train, (folder_.parent_path() / "train.npy").string());
  EXPECT_EQ(fingerprint(*job), fingerprint(Job()));
}

TEST_F(JobTest, FingerprintsSayWhatIsNotAtItsDefault) {
  Job job;
  EXPECT_EQ(fingerprint(job), "");
  ASSERT_TRUE(apply_flags(
      job, {{"seed", "7"}, {"optimizer.learning_rate", "0.25"}, {"data.drop_columns", std::string(99, 'a')}}));
  EXPECT_THAT(fingerprint(job), testing::MatchesRegex("seed=7; data.drop_columns=a text with the checksum [0-9a-f]+; "
                                                      "optimizer.learning_rate=0.25"));
  EXPECT_THAT(fingerprint(job, "{}"), testing::StartsWith(fingerprint(job) + "; contents of the plan=a text with"));
  EXPECT_NE(fingerprint(job, "{}"), fingerprint(job, "{ }"));
}

TEST_F(JobTest, ItsFileIsRefusedWithPlaceAndReason) {
  EXPECT_THAT(read("seed: 1\ngradient_sync: {comm_dtyp: int8}\n").error().message,
              HasSubstr("job.yaml:2: unknown key 'gradient_sync.comm_dtyp'; did you mean 'gradient_sync.comm_dtype'?"));
  EXPECT_THAT(read("epochs: -1\n").error().message,
              HasSubstr("job.yaml:1: epochs: '-1' is not accepted; accepted: a number from 0 to"));
  EXPECT_THAT(read("batch: 64\n").error().message, HasSubstr("global_batch_size"));
}

TEST_F(JobTest, AliasesStandForWhatTheyName) {
  const auto job = read("batch_split: {mode: fixed, fixed: &same [2, 1]}\ngradient_sync: {racks: *same}\n");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->batch_split.fixed, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(job->gradient_sync.racks, (std::vector<std::int64_t>{2, 1}));
}

TEST_F(JobTest, AliasesWithoutEndAreRefused) {
  const std::string accepted = "too deep or too long, with what aliases stand for; accepted: up to 8 levels, and 4 MiB";
  EXPECT_THAT(read("seed: 1\noptimizer: &a {b: *a}\n").error().message,
              testing::AllOf(HasSubstr("job.yaml:2: optimizer.b.b"), HasSubstr(accepted)));
  EXPECT_THAT(read("data: &a [*a]\n").error().message, HasSubstr("job.yaml:1: data: a list of numbers or of names"));
  // A few kilobytes that stand for 27 million values, as many empty ones, and 100 kB that stand for 30 MB.
  const auto many = [](const std::string& value) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("{}k{}: {}", i == 0 ? "" : ", ", i, value);
    return "{" + text + "}\n";
  };
  EXPECT_THAT(read("a: &a " + many("1") + "b: &b " + many("*a") + "c: " + many("*b")).error().message,
              testing::AllOf(HasSubstr("job.yaml:"), HasSubstr(accepted)));
  EXPECT_THAT(read("a: &a {}\nb: &b " + many("*a") + "c: &c " + many("*b") + "d: " + many("*c")).error().message,
              HasSubstr(accepted));
  EXPECT_THAT(read("a: &a " + std::string(100'000, 'x') + "\nb: " + many("*a")).error().message, HasSubstr(accepted));
}

TEST_F(JobTest, NamesOfColumnsMayBeAList) {
  const auto job = read("data:\n  drop_columns: [id, name]\n  categorical_columns: []\n  one_hot_columns:\n    - a\n");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->data.drop_columns, "id, name");
  EXPECT_EQ(job->data.categorical_columns, "");
  EXPECT_EQ(job->data.one_hot_columns, "a");
  Job flags;
  ASSERT_TRUE(apply_flags(flags, {{"data.drop_columns", "[id, name]"}, {"data.one_hot_columns", "a"}}));
  EXPECT_EQ(fingerprint(flags), fingerprint(*job));

  ASSERT_TRUE(write_file(folder_ / "t.csv", "id,x,name,y\na,1,b,0\nc,2,d,1\n"));
  const auto table = read("data: {name: csv, train: t.csv, target: y, drop_columns: [id, name]}\n");
  ASSERT_TRUE(table) << table.error().message;
  const auto dataset = open_training_data(*table);
  ASSERT_TRUE(dataset) << dataset.error().message;
  EXPECT_THAT((*dataset)->preprocessing().columns, testing::ElementsAre("x"));
}

TEST_F(JobTest, OtherKeysTakeNoList) {
  EXPECT_THAT(read("seed: 1\ndata: {target: [y]}\n").error().message,
              HasSubstr("job.yaml:2: data.target: a list is not accepted here; accepted: a text"));
  EXPECT_THAT(read("seed: [1]\n").error().message,
              HasSubstr("job.yaml:1: seed: a list is not accepted here; accepted: an integer"));
  EXPECT_THAT(read("sed: [1]\n").error().message, HasSubstr("job.yaml:1: unknown key 'sed'"));
  // What only looks like one is a text, which the file of the effective job keeps.
  Job job;
  ASSERT_TRUE(apply_flags(job, {{"data.target", "[1]"}, {"data.drop_columns", "[[2]]"}}));
  const auto again = read(format_job(job));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->data.target, "[1]");
  EXPECT_EQ(again->data.drop_columns, "[2]");  // a column of that name
}

TEST_F(JobTest, TargetsOfBceAreFromZeroToOne) {
  ASSERT_TRUE(write_file(folder_ / "good.csv", "x,y\n1,0\n2,0.25\n3,1\n"));
  ASSERT_TRUE(write_file(folder_ / "bad.csv", "x,y\n1,0\n2,2.5\n3,1\n"));
  const auto job_with = [&](const std::string& train, const std::string& loss) {
    return *read(fmt::format("loss: {}\ndata: {{name: csv, train: {}, test: bad.csv, target: y, target_kind: real}}\n",
                             loss, train));
  };
  EXPECT_TRUE(open_training_data(job_with("bad.csv", "mse")));
  const auto refused = open_training_data(job_with("bad.csv", "bce"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(refused.error().message,
            "loss: 'bce' does not suit data.train, whose sample 1 (counted from 0) has the target 2.5; accepted with "
            "bce: targets from 0 to 1");
  const auto training = open_training_data(job_with("good.csv", "bce"));
  ASSERT_TRUE(training) << training.error().message;
  EXPECT_THAT(open_test_data(job_with("good.csv", "bce"), **training).error().message,
              HasSubstr("does not suit data.test, whose sample 1"));
}

TEST_F(JobTest, TargetsOfBceAtADataServerAreFromZeroToOne) {
  const std::filesystem::path token = folder_ / "token";
  ASSERT_TRUE(write_file(token, "a token that nobody guesses\n"));
  std::filesystem::permissions(token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_TRUE(write_file(folder_ / "good.csv", "x,y\n1,0\n2,0.25\n3,1\n"));
  ASSERT_TRUE(write_file(folder_ / "bad.csv", "x,y\n1,0\n2,0.5\n3,-1\n"));
  Job job = *read("loss: mse\ndata: {name: csv, train: good.csv, test: bad.csv, target: y, target_kind: real}\n");
  const auto server = serve_data(job, "127.0.0.1:0", token.string());
  ASSERT_TRUE(server) << server.error().message;
  job.data.server = server->address;
  job.data.token_file = token.string();
  const auto training = open_training_data(job);
  ASSERT_TRUE(training) << training.error().message;
  EXPECT_TRUE(open_test_data(job, **training));
  job.training.loss = "bce";
  EXPECT_TRUE(open_training_data(job));
  const auto refused = open_test_data(job, **training);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(
      refused.error().message,
      fmt::format("loss: 'bce' does not suit the test data of data.server {}, whose sample 2 (counted from 0) has "
                  "a target that is not from 0 to 1; accepted with bce: targets from 0 to 1",
                  server->address));
}

TEST_F(JobTest, ChecksEachSpec) {
  EXPECT_EQ(refused({}), "accepted");
  EXPECT_THAT(refused({{"optimizer.betas", "0.9"}}), HasSubstr("optimizer.betas: 1 numbers are given; accepted: two"));
  EXPECT_THAT(refused({{"optimizer.nesterov", "true"}, {"optimizer.momentum", "0"}}), HasSubstr("optimizer.nesterov"));
  EXPECT_THAT(refused({{"epochs", "0"}}), HasSubstr("epochs and steps are both 0"));
  EXPECT_THAT(refused({{"baseline.every", "3"}}), HasSubstr("baseline.every: 3, of which baseline.steps 3"));
  EXPECT_EQ(refused({{"baseline.every", "4"}}), "accepted");
  EXPECT_THAT(refused({{"batch_split.mode", "replay"}}), HasSubstr("batch_split.replay"));
  EXPECT_THAT(refused({{"device", "tpu"}}), HasSubstr("device: 'tpu' is not accepted; accepted: auto, cpu, cuda"));
  EXPECT_THAT(refused({{"emulation", "p.json"}}), HasSubstr("emulation: "));
  EXPECT_THAT(refused({{"model.name", "exported"}}), HasSubstr("model.path"));
  EXPECT_THAT(refused({{"model.name", "mlp"}, {"data.name", "csv"}}), HasSubstr("data.train: data.name csv needs"));
  EXPECT_THAT(refused({{"gradient_sync.comm_dtype", "int8"}}),
              HasSubstr("needs gradient_sync.method parameter-server; accepted with auto: float32 and bfloat16"));
  EXPECT_THAT(refused({{"gradient_sync.consistency", "ssp"}}),
              HasSubstr("needs gradient_sync.method parameter-server"));
  EXPECT_THAT(refused({{"gradient_sync.staleness", "2"}}), HasSubstr("gradient_sync.staleness: 2 is given"));
  for (const char* racks : {"[0, 4294967296]", "[4096]", "[-1]"}) {  // the first is 0 in 32 bits
    EXPECT_THAT(read(fmt::format("gradient_sync: {{servers: 'a:1', racks: {}}}\n", racks)).error().message,
                HasSubstr(fmt::format("job.yaml:1: gradient_sync.racks: '{}' is not accepted; accepted: a list of "
                                      "integers from 0 to 4095",
                                      racks)));
  }
}

TEST_F(JobTest, ChecksSpecsTogether) {
  const std::pair<std::string, std::string> served = {"gradient_sync.method", "parameter-server"};
  const std::pair<std::string, std::string> async = {"gradient_sync.consistency", "async"};
  EXPECT_THAT(refused({served, async, {"max_grad_norm", "1"}}),
              HasSubstr("max_grad_norm: 1 needs the gradient of all"));
  EXPECT_THAT(refused({served, async, {"batch_split.mode", "work-queue"}}), HasSubstr("batch_split.mode: work-queue"));
  EXPECT_THAT(refused({{"batch_split.mode", "fixed"}}), HasSubstr("batch_split.fixed"));
  EXPECT_THAT(refused({{"model.name", "synthetic"}}), HasSubstr("model.path: empty"));
  EXPECT_THAT(refused({{"model.name", "transformer"}}), HasSubstr("accepted with it: data.name text"));
  EXPECT_THAT(refused({{"data.name", "text"}}), HasSubstr("model.name: cnn reads no tokens"));
  EXPECT_THAT(refused({{"model.name", "ctrdnn"}}), HasSubstr("data.name: fashion-mnist has no categories"));
  const std::pair<std::string, std::string> ctr[] = {{"model.name", "ctrdnn"}, {"data.name", "clicks"}};
  EXPECT_EQ(refused({ctr[0], ctr[1]}), "accepted");
  EXPECT_THAT(refused({ctr[0], ctr[1], {"embedding.cache_rows", "10"}}),
              HasSubstr("embedding.cache_rows: 10 is given"));
  EXPECT_THAT(refused({ctr[0], ctr[1], {"embedding.max_staleness", "1"}, {"device", "cpu"}}),
              HasSubstr("embedding.max_staleness: 1 is given, but embedding.cache_rows is 0, and device: cpu"));
  EXPECT_THAT(refused({ctr[0], ctr[1], {"embedding.max_staleness", "1"}, {"embedding.device_memory", "0"}}),
              HasSubstr("embedding.cache_rows is 0 and embedding.device_memory, too"));
  EXPECT_THAT(refused({ctr[0], ctr[1], {"max_grad_norm", "1"}}), HasSubstr("accepted with embedding.placement server"));
  EXPECT_THAT(refused({ctr[0], ctr[1], {"embedding.placement", "replicated"}, {"embedding.comm_dtype", "int8"}}),
              HasSubstr("embedding.comm_dtype: accepted with embedding.placement replicated: float32"));
}

TEST_F(JobTest, DataKeysAreOfTheirFormats) {
  const std::pair<std::string, std::string> csv[] = {{"model.name", "mlp"}, {"data.name", "csv"}};
  const std::pair<std::string, std::string> files[] = {{"data.train", "t.csv"}, {"data.target", "y"}};
  const auto refused_csv = [&](const std::string& key, const std::string& value) {
    return refused({csv[0], csv[1], files[0], files[1], {key, value}});
  };
  EXPECT_EQ(refused_csv("data.missing", "mean"), "accepted");
  EXPECT_EQ(refused_csv("data.target_kind", "label"), "accepted");
  EXPECT_THAT(refused_csv("data.missing_indicator", "true"),
              HasSubstr("accepted with data.missing mean, median or zero"));
  EXPECT_THAT(refused_csv("data.vocab_size", "9"),
              HasSubstr("data.vocab_size: accepted with data.name tokens, not csv"));
  EXPECT_THAT(refused_csv("data.channels", "last"), HasSubstr("data.channels: accepted with data.name npy, not csv"));
  EXPECT_THAT(refused_csv("data.categorical_columns", "a"), HasSubstr("data.one_hot_columns in place of"));
  EXPECT_THAT(refused({{"data.image_size", "8"}}), HasSubstr("data.image_size: accepted with data.name image-folder"));
  EXPECT_THAT(refused({{"data.name", "image-folder"}}), HasSubstr("data.train: data.name image-folder needs"));
  EXPECT_THAT(refused({{"data.name", "image-folder"}, {"data.train", "t"}, {"data.image_size", "[1, 2, 3]"}}),
              HasSubstr("data.image_size: 3 numbers are given; accepted: height and width"));
  EXPECT_EQ(refused({{"model.name", "transformer"}, {"data.name", "tokens"}, {"data.train", "t.bin"}}), "accepted");
  EXPECT_THAT(refused({{"data.name", "tokens"}, {"data.train", "t.bin"}}), HasSubstr("cnn reads no tokens"));
}

TEST_F(JobTest, NamesAreThoseOfFolders) {
  EXPECT_THAT(refused({{"name", "../evil"}}),
              HasSubstr("name: '../evil' is not the name of a folder; accepted: up to"));
  EXPECT_THAT(refused({{"gradient_sync.tenant", ".."}}), HasSubstr("gradient_sync.tenant: '..' is not the name"));
}

TEST_F(JobTest, ServersUpdateAsTheOptimizerDoes) {
  using kernels::UpdateRule;
  const auto options = [](const std::vector<std::pair<std::string, std::string>>& keys) {
    Job job;
    EXPECT_TRUE(apply_flags(job, keys));
    return make_server_options(job);
  };
  EXPECT_EQ(options({}).update.rule, UpdateRule::kMomentum);
  EXPECT_EQ(options({{"optimizer.momentum", "0"}}).update.rule, UpdateRule::kSgd);
  EXPECT_EQ(options({{"optimizer.nesterov", "true"}}).update.rule, UpdateRule::kNesterov);
  const auto adam = options({{"optimizer.name", "adam"}, {"optimizer.betas", "0.5, 0.75"}});
  EXPECT_EQ(adam.update.rule, UpdateRule::kAdam);
  EXPECT_EQ(adam.update.momentum, 0);
  EXPECT_EQ(adam.update.beta2, 0.75);
  EXPECT_EQ(options({{"max_grad_norm", "1"}}).update.rule, UpdateRule::kSum) << "workers clip, and then update as well";
  EXPECT_EQ(options({{"gradient_sync.consistency", "async"}}).staleness, ps::kAnyStaleness);
  EXPECT_EQ(options({{"gradient_sync.consistency", "ssp"}, {"gradient_sync.staleness", "3"}}).staleness, 3);
}

}  // namespace
}  // namespace motley::train
