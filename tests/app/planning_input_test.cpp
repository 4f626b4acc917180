// What a user names becomes planning problems, or is refused with the flag's name.
#include "motley/app/planning_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PlanningInputTest : public testing::Test {
 protected:
  // Two CPUs and a GPU; the file says how fast they are, and, with `links`, how they are connected.
  PlanningInput input_with_cluster(const std::string& speed, const std::string& links = "") {
    const std::string file = (folder_.path / "cluster.yaml").string();
    const std::string text =
        "version: 2\ndevice_types:\n"
        "- {name: cpu, kind: cpu, memory: 16 GiB, count: 2" +
        speed + "}\n" + links;
    EXPECT_TRUE(write_file(file, text));
    PlanningInput input;
    input.model = "vgg16";
    input.cluster = file;
    return input;
  }
  std::vector<std::string> warnings_;
  std::function<void(const std::string&)> warn_ = [this](const std::string& text) { warnings_.push_back(text); };
  TemporaryFolder folder_;
};

constexpr const char* kSpeed = ", speed: {flops_per_second: 1e12, memory_bandwidth: 100 GB/s}";

TEST_F(PlanningInputTest, ProfileAndModelExcludeEachOther) {
  PlanningInput input;
  EXPECT_EQ(planning_data(input).error().message, "--profile, --model: neither is given; accepted: one of them");
  input.profile = "profile.json";
  input.model = "vgg16";
  EXPECT_EQ(planning_data(input).error().message, "--profile, --model: both are given; accepted: one of them");
}

TEST_F(PlanningInputTest, ModelsThatWereNotMeasuredNeedSpeeds) {
  const auto data = planning_data(input_with_cluster(""));
  ASSERT_FALSE(data);
  EXPECT_EQ(data.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(data.error().message, HasSubstr("device_types: 'cpu' has no speed"));
}

TEST_F(PlanningInputTest, ADocumentTakesTheFilesPlace) {
  PlanningInput input = input_with_cluster(kSpeed);
  const auto from_file = planning_data(input);
  ASSERT_TRUE(from_file) << from_file.error().message;
  const std::string text = *read_file(input.cluster);
  input.cluster = "offers";
  EXPECT_FALSE(planning_data(input));
  input.documents = {{"offers", text}};
  const auto from_document = planning_data(input);
  ASSERT_TRUE(from_document) << from_document.error().message;
  EXPECT_EQ(from_document->profile, from_file->profile);
  input.documents = {{"offers", "version: 2\ndevice_types: []\n"}};
  EXPECT_THAT(planning_data(input).error().message, testing::StartsWith("offers"));
}

// Two branches that meet again, for minibatches of 8.
constexpr const char* kPipedream =
    "node1 -- Conv2d(3, 4) -- forward_compute_time=8.0, backward_compute_time=16.0, activation_size=64.0, "
    "parameter_size=40.0\n"
    "\tnode1 -- node2\n\tnode1 -- node3\n"
    "node2 -- ReLU() -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=64.0, parameter_size=0.0\n"
    "\tnode2 -- node4\n"
    "node3 -- ReLU() -- forward_compute_time=2.0, backward_compute_time=2.0, activation_size=64.0, parameter_size=0.0\n"
    "\tnode3 -- node4\n"
    "node4 -- Add -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=64.0, parameter_size=0.0\n";

TEST_F(PlanningInputTest, PipedreamsProfilesAreOfTheClustersOneType) {
  PlanningInput input = input_with_cluster("");
  input.model = "";
  input.profile = "graph.txt";
  input.documents = {{"graph.txt", kPipedream}};
  EXPECT_THAT(planning_data(input).error().message, HasSubstr("(--profile-batch-size)"));
  input.profile_batch_size = 8;
  const auto problems = planning_problems(input, warn_);
  ASSERT_TRUE(problems) << problems.error().message;
  const planning::Problem& problem = problems->front();
  EXPECT_EQ(problem.types.front().name, "cpu");
  ASSERT_EQ(problem.layer_count(), 4);
  EXPECT_NEAR(problem.at(0, 0).forward.at(1), 1e-3, 1e-12);
  // Between the branches both ways are cut: that of the first node's output, and that of the second's.
  EXPECT_EQ(problem.cut_bytes[2], 16);
  EXPECT_EQ(problem.merged_from, 0);

  input.documents["offers"] =
      "version: 2\ndevice_types:\n  - {name: a, kind: cpu, count: 1}\n  - {name: b, kind: cpu, count: 1}\n";
  input.cluster = "offers";
  EXPECT_THAT(planning_data(input).error().message, HasSubstr("the cluster has 2: a, b"));
}

// As many as the exact method bears under that cost model, by which every answer is explained.
TEST_F(PlanningInputTest, VeryLongModelsAreMergedUnderHeterpsToo) {
  constexpr int kLayers = 2003;
  std::string chain;
  for (int node = 1; node <= kLayers; ++node) {
    chain += fmt::format(
        "node{} -- ReLU() -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=64.0, "
        "parameter_size=0.0\n",
        node);
    if (node > 1) chain += fmt::format("\tnode{} -- node{}\n", node - 1, node);
  }
  PlanningInput input = input_with_cluster("");
  input.model = "";
  input.profile = "graph.txt";
  input.profile_batch_size = 8;
  input.documents = {{"graph.txt", chain}};
  input.cost_model = "heterps";
  const auto problems = planning_problems(input, warn_);
  ASSERT_TRUE(problems) << problems.error().message;
  EXPECT_EQ(problems->front().layer_count(), 2000);
  EXPECT_EQ(problems->front().merged_from, kLayers);
}

TEST_F(PlanningInputTest, MergedLayersAreSaid) {
  PlanningInput input = input_with_cluster(kSpeed);
  const auto whole = planning_problems(input, warn_);
  ASSERT_TRUE(whole) << whole.error().message;
  const int layers = whole->front().layer_count();
  EXPECT_EQ(whole->front().merged_from, 0);
  input.max_layers = 5;
  const auto merged = planning_problems(input, warn_);
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(merged->front().layer_count(), 5);
  EXPECT_EQ(merged->front().merged_from, layers);
  EXPECT_THAT(warnings_, testing::Contains(HasSubstr("merged into 5 blocks")));
}

TEST_F(PlanningInputTest, MicroBatchesArePowersOfTwoUnlessGiven) {
  PlanningInput input = input_with_cluster(kSpeed);
  input.batch = 9;
  const auto counts = [&] {
    const auto problems = planning_problems(input, warn_);
    EXPECT_TRUE(problems) << problems.error().message;
    std::vector<std::int64_t> all;
    for (const planning::Problem& problem : *problems) all.push_back(problem.micro_batches);
    return all;
  };
  EXPECT_THAT(counts(), ElementsAre(1, 2, 4, 8));
  input.micro_batches = 3;
  EXPECT_THAT(counts(), ElementsAre(3));
  input.batch = 256;
  input.micro_batches = 0;
  EXPECT_EQ(counts().back(), kMaxMicroBatches);
  input.cost_model = "heterps";
  EXPECT_THAT(counts(), ElementsAre(1));
  input.micro_batches = 257;
  EXPECT_EQ(planning_problems(input, warn_).error().message,
            "--micro-batches: 257 is more than the batch has samples; accepted: 0 to 256");
}

TEST_F(PlanningInputTest, MissingLinksAreWarnedOfOnce) {
  ASSERT_TRUE(planning_problems(input_with_cluster(kSpeed), warn_));
  EXPECT_THAT(warnings_,
              ElementsAre("no link is stated between cpu and cpu: what is sent there is taken to cost nothing"));
}

}  // namespace
}  // namespace motley::app
