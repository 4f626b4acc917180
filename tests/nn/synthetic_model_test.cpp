// What a synthetic network sends and keeps, against the graph that it stands for.
#include "motley/nn/model_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "motley/model/model_names.h"
#include "motley/model/profile.h"
#include "motley/model/tables.h"
#include "motley/nn/network_part.h"
#include "motley/nn/networks.h"
#include "tests/temporary_folder.h"

namespace motley::nn {
namespace {

using ::testing::HasSubstr;

class SyntheticModelTest : public ::testing::Test {
 protected:
  model::Profile write(const std::string& table, int max_layers) {
    profile_ = model::coarsen(model::estimate(*model::table(table), {{"cpu", 1e10, 1e10, 1e-6, 1e6}}, 8), max_layers);
    EXPECT_TRUE(write_file(file_, model::to_json(profile_)));
    return profile_;
  }
  NetworkSpec spec() const {
    return {.name = model::kSyntheticModel, .path = file_.string(), .input_shape = {1, 4, 4}, .outputs = 10};
  }

  const TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_.path / "profile.json";
  model::Profile profile_;
};

TEST_F(SyntheticModelTest, PartsSendAndTrainWhatThoseOfTheGraphDo) {
  const model::Profile profile = write("resnet18", 12);
  const std::vector<double> cuts = model::cut_bytes(profile.graph);
  std::vector<std::string> names;
  for (const model::Layer& layer : profile.graph.layers) names.push_back(layer.name);
  for (int first = 0; first < 12; first += 3) {
    auto network = make_network(spec(), 1);
    ASSERT_TRUE(network) << network.error().message;
    const auto part = take_part(std::move(*network), names, first, first + 2);
    ASSERT_TRUE(part) << part.error().message;
    double parameters = 0, trained = 0;
    for (int layer = first; layer <= first + 2; ++layer) {
      parameters += profile.graph.layers[static_cast<std::size_t>(layer)].parameters;
    }
    for (const NamedTensor& tensor : part->network->parameters()) trained += static_cast<double>(tensor.tensor.numel());
    EXPECT_EQ(trained, parameters);
    if (first > 0) {
      EXPECT_EQ(4.0 * static_cast<double>(part->input_shape.at(0)), cuts[static_cast<std::size_t>(first)]);
    }
    if (first == 9) {
      EXPECT_THAT(part->output_shape, ::testing::ElementsAre(10));
    }
  }
}

TEST_F(SyntheticModelTest, JoinsLayersAsPlansDo) {
  write("vgg16", 40);
  NetworkSpec joined = spec();
  joined.layers = 5;
  const auto network = make_network(joined, 1);
  ASSERT_TRUE(network) << network.error().message;
  const model::Profile coarse = model::coarsen(profile_, 5);
  const auto chain = (*network)->chain();
  ASSERT_EQ(chain.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(chain[i].name, coarse.graph.layers[i].name);
}

TEST_F(SyntheticModelTest, StagesGiveZerosBothWaysAndLeaveWeightsWithoutGradients) {
  write("alexnet", 8);
  StageOptions options;
  options.input_gradients = true;
  const auto stage = make_stage(spec(), 1, options);
  ASSERT_TRUE(stage) << stage.error().message;
  const auto outputs = (*stage)->forward(0, {torch::ones({3, 1, 4, 4})});
  ASSERT_TRUE(outputs) << outputs.error().message;
  EXPECT_EQ(outputs->front().sizes(), torch::IntArrayRef({3, 10}));
  EXPECT_EQ(outputs->front().abs().sum().item<double>(), 0);
  const auto gradients = (*stage)->backward(0, {torch::ones({3, 10})});
  ASSERT_TRUE(gradients) << gradients.error().message;
  EXPECT_EQ(gradients->front().sizes(), torch::IntArrayRef({3, 1, 4, 4}));
  EXPECT_EQ(gradients->front().abs().sum().item<double>(), 0);
  for (const NamedTensor& parameter : (*stage)->parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
}

TEST_F(SyntheticModelTest, SaysWhatItCannotStandFor) {
  NetworkSpec missing = spec();
  missing.path.clear();
  EXPECT_THAT(make_network(missing, 1).error().message, HasSubstr("model.path: missing"));
  write("ctrdnn-8", 8);
  EXPECT_THAT(make_network(spec(), 1).error().message, HasSubstr("looks up rows"));
}

}  // namespace
}  // namespace motley::nn
