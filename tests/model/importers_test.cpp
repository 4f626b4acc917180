// PipeDream's text becomes the project's own terms: by hand on small texts, and on the published profiles (where they
// are) against a few lines that read them in another way, and against the tables of the same models.
#include "motley/model/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "motley/model/tables.h"

namespace motley::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kSmall =
    "node3 -- Add(inplace) -- forward_compute_time=0.500, backward_compute_time=0.250, activation_size=80.000, "
    "parameter_size=0.000\n"
    "node1 -- Input -- forward_compute_time=900.0, backward_compute_time=0.0, activation_size=240.0, "
    "parameter_size=0.0\n"
    "node2 -- Conv2d(3, 64, kernel_size=(1, 1)) -- forward_compute_time=2.000, backward_compute_time=4.000, "
    "activation_size=[40.0; 40.0], parameter_size=48.000 -- stage_id=1\n"
    "node9 -- Linear(in_features=10, out_features=5, bias=True) -- forward_compute_time=1.0, "
    "backward_compute_time=1.5, activation_size=40.0, parameter_size=220.0\n"
    "\tnode3 -- node9\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3\n"
    "\tnode2 -- node9\n";

TEST(PipeDream, DividesAMinibatchIntoSamples) {
  const auto profile = parse_pipedream(kSmall, "folder/small.txt", 0, "v100");
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->batch, 2);  // 40 bytes of 5 values each
  EXPECT_EQ(profile->graph.name, "small");
  EXPECT_EQ(profile->graph.input_bytes, 120);
  ASSERT_EQ(profile->graph.layers.size(), 3u);
  const Layer& convolution = profile->graph.layers[0];
  EXPECT_EQ(convolution,
            (Layer{.name = "node2 Conv2d", .kind = LayerKind::kConvolution, .parameters = 12, .activation_bytes = 40}));
  EXPECT_EQ(profile->graph.layers[1].kind, LayerKind::kElementwise);
  EXPECT_THAT(profile->graph.layers[1].inputs, ElementsAre(0));
  EXPECT_THAT(profile->graph.layers[2].inputs, ElementsAre(0, 1));
  EXPECT_THAT(cut_bytes(profile->graph), ElementsAre(120, 40, 80, 0));
  const DeviceProfile* device = profile->device("v100");
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(device->origin, Origin::kPublished);
  EXPECT_EQ(device->layers[0], (LayerTime{{0, 0.001}, {0, 0.002}, {{2, 0.002, 0.004, 0}}}));

  const auto of_four = parse_pipedream(kSmall, "small.txt", 4, "v100");
  ASSERT_TRUE(of_four);
  EXPECT_EQ(of_four->graph.input_bytes, 60);
  EXPECT_DOUBLE_EQ(of_four->devices[0].layers[0].forward.at(4), 0.002);
}

TEST(PipeDream, KeepsAnInputThatIsReadBesideOthers) {
  const std::string text = std::string(kSmall) + "\tnode1 -- node9\n";
  const auto profile = parse_pipedream(text, "small.txt", 2, "v100");
  ASSERT_TRUE(profile) << profile.error().message;
  ASSERT_EQ(profile->graph.layers.size(), 4u);
  EXPECT_EQ(profile->graph.layers[0].kind, LayerKind::kInput);
  EXPECT_EQ(profile->devices[0].layers[0].forward, Affine{});
  EXPECT_THAT(cut_bytes(profile->graph), ElementsAre(120, 120, 160, 200, 0));
}

TEST(PipeDream, RefusalsNameTheLine) {
  const auto message = [](const std::string& text, double batch = 2) {
    const auto profile = parse_pipedream(text, "bad.txt", batch, "v100");
    return profile ? "accepted" : profile.error().message;
  };
  const std::string numbers =
      " -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n";
  const std::string two = "node1 -- A" + numbers + "node2 -- B" + numbers;
  EXPECT_EQ(message(two + "\tnode1 -- node2\n"), "accepted");
  EXPECT_THAT(message(""), HasSubstr("bad.txt: graph 'bad': field 'layers' is empty"));
  EXPECT_THAT(message(two + "hello\n"), HasSubstr("bad.txt:3: accepted are 'nodeN -- description"));
  EXPECT_THAT(message(two + "node-3 -- C" + numbers), HasSubstr("bad.txt:3: accepted are"));
  EXPECT_THAT(message(two + "node2 -- C" + numbers), HasSubstr("bad.txt:3: node 2 is there twice"));
  EXPECT_THAT(message(two + "\tnode1 -- node7\n"), HasSubstr("bad.txt:3: an edge names node 7"));
  EXPECT_THAT(message(two + "\tnode1 -- node1\n"), HasSubstr("bad.txt:3: an edge goes to another node"));
  EXPECT_THAT(message(two + "\tnode1 -- node2\n\tnode2 -- node1\n"), HasSubstr("bad.txt: the edges make a cycle"));
  EXPECT_THAT(message("node1 -- A -- forward_compute_time=-1, backward_compute_time=1"),
              HasSubstr("bad.txt:1: node 1 has 'forward_compute_time=-1'; accepted is 'forward_compute_time='"));
  EXPECT_THAT(message("node1 -- A -- forward_compute_time=1, backward_compute_time=nan"),
              HasSubstr("has 'backward_compute_time=nan'"));
  EXPECT_THAT(message("node1 -- A -- forward_compute_time=1"),
              HasSubstr("has ''; accepted is 'backward_compute_time='"));
  EXPECT_THAT(message("node1 -- A"), HasSubstr("bad.txt:1: node 1 has no numbers"));
  EXPECT_THAT(message(two, 0), HasSubstr("tells the minibatch"));
  EXPECT_THAT(message(two, 0.5), HasSubstr("minibatch is 0.5; accepted is a finite number, 1 or more"));
  EXPECT_THAT(message("node1 -- A -- forward_compute_time=[1e308; 1e308]"), HasSubstr("forward_compute_time=[1e308"));
  EXPECT_THAT(message(two, -3), HasSubstr("minibatch is -3"));
}

struct Published {
  const char* name;
  double batch;     // given to the importer
  double expected;  // what it must come out as
};

class PublishedProfile : public testing::TestWithParam<Published> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MOTLEY_SHARED_DATA");
    file_ = std::filesystem::path(folder != nullptr ? folder : MOTLEY_SOURCE_FOLDER "/../shared/data") /
            "profiles/pipedream" / (std::string(GetParam().name) + ".txt");
    if (!std::filesystem::exists(file_)) {
      GTEST_SKIP() << "needs " << file_;
    }
  }
  std::filesystem::path file_;
};

class PublishedImageNetwork : public PublishedProfile {};

TEST_P(PublishedProfile, KeepsLayersTimesAndParameters) {
  const auto profile = read_pipedream(file_, GetParam().batch, "v100");
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->batch, GetParam().expected);

  std::ifstream stream(file_);
  const std::regex line_form(
      "node\\d+ -- (?!Input).* -- forward_compute_time=([\\d.]+), "
      "backward_compute_time=([\\d.]+), .*parameter_size=([\\d.]+)");
  std::size_t count = 0;
  double milliseconds = 0;
  double parameter_bytes = 0;
  std::smatch match;
  for (std::string line; std::getline(stream, line);) {
    if (std::regex_match(line, match, line_form)) {
      ++count;
      milliseconds += std::stod(match[1]) + std::stod(match[2]);
      parameter_bytes += std::stod(match[3]);
    }
  }
  ASSERT_EQ(profile->graph.layers.size(), count);
  double seconds = 0;
  double parameters = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const LayerTime& time = profile->devices[0].layers[i];
    seconds += time.forward.at(profile->batch) + time.backward.at(profile->batch);
    parameters += profile->graph.layers[i].parameters;
  }
  EXPECT_NEAR(seconds, milliseconds / 1e3, 1e-9);
  EXPECT_DOUBLE_EQ(parameters, parameter_bytes / 4);
}

// Both say the same of the same network, though one was generated from a paper and the other measured.
TEST_P(PublishedImageNetwork, AgreesWithTheTable) {
  const auto profile = read_pipedream(file_, GetParam().batch, "v100");
  ASSERT_TRUE(profile) << profile.error().message;
  const Graph graph = *table(GetParam().name);
  const auto outputs = [](const Graph& of, LayerKind kind) {
    std::vector<double> bytes;
    for (const Layer& layer : of.layers) {
      if (layer.kind == kind) {
        bytes.push_back(layer.activation_bytes);
      }
    }
    std::ranges::sort(bytes);
    return bytes;
  };
  double parameters = 0;
  for (const Layer& layer : graph.layers) {
    parameters += layer.parameters;
  }
  for (const Layer& layer : profile->graph.layers) {
    parameters -= layer.parameters;
  }
  EXPECT_EQ(parameters, 0);
  EXPECT_EQ(profile->graph.input_bytes, graph.input_bytes);
  EXPECT_EQ(outputs(profile->graph, LayerKind::kConvolution), outputs(graph, LayerKind::kConvolution));
  EXPECT_EQ(outputs(profile->graph, LayerKind::kFullyConnected), outputs(graph, LayerKind::kFullyConnected));
}

const auto test_name = [](const auto& item) { return std::string(item.param.name); };
INSTANTIATE_TEST_SUITE_P(PipeDream, PublishedImageNetwork,
                         testing::Values(Published{"alexnet", 0, 256}, Published{"vgg16", 0, 128},
                                         Published{"resnet18", 0, 256}, Published{"resnet50", 0, 128}),
                         test_name);
INSTANTIATE_TEST_SUITE_P(PipeDream, PublishedProfile,
                         testing::Values(Published{"alexnet", 0, 256}, Published{"vgg16", 0, 128},
                                         Published{"resnet18", 0, 256}, Published{"resnet50", 0, 128},
                                         Published{"densenet121", 0, 64}, Published{"gnmt", 32, 32}),
                         test_name);

}  // namespace
}  // namespace motley::model
