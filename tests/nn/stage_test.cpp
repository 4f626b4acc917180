// Networks have the shapes and gradients that they should, and a stage hands them on unchanged however it is cut or
// recomputed.
#include "motley/nn/stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/nn/loss.h"
#include "motley/nn/networks.h"
#include "tests/nn/accelerator.h"
#include "tests/nn/exported_file.h"

namespace motley::nn {
namespace {

using ::testing::HasSubstr;

NetworkSpec make_spec(const std::string& name, std::vector<std::int64_t> shape, std::int64_t outputs,
                      const std::string& dtype = "float32") {
  NetworkSpec spec;
  spec.name = name;
  spec.input_shape = std::move(shape);
  spec.outputs = outputs;
  spec.dtype = dtype;
  return spec;
}

std::unique_ptr<Stage> load_stage(const NetworkSpec& spec, StageOptions options = {}) {
  auto stage = make_stage(spec, 7, options);
  EXPECT_TRUE(stage) << stage.error().message;
  return std::move(*stage);
}

torch::Tensor make_batch(const NetworkSpec& spec, std::int64_t samples) {
  std::vector<std::int64_t> shape = spec.input_shape;
  shape.insert(shape.begin(), samples);
  return torch::randn(shape, spec.dtype == "float64" ? torch::kFloat64 : torch::kFloat32);
}

struct ShapeCase {
  NetworkSpec spec;
  std::int64_t parameters;  // counted by hand from the layers, or torchvision's published number
};

TEST(Networks, HaveTheirShapesAndAGradientForEveryParameter) {
  torch::manual_seed(1);
  NetworkSpec group = make_spec("resnet18", {3, 32, 32}, 10);
  group.norm = "group";
  NetworkSpec vgg_norm = make_spec("vgg11", {1, 28, 28}, 10);
  vgg_norm.norm = "batch";
  NetworkSpec vgg_large = make_spec("vgg11", {3, 224, 224}, 5);
  vgg_large.hidden = {8};
  const std::int64_t resnet_small = 11'689'512 - (512 + 1) * 1000 - 7 * 7 * 3 * 64;  // without stem and classifier
  const std::int64_t vgg_features = 9'220'480 - 3 * 9 * 64;
  const std::vector<ShapeCase> cases = {
      {make_spec("mlp", {1, 28, 28}, 10), 784 * 128 + 128 + 128 * 10 + 10},
      {make_spec("cnn", {1, 28, 28}, 10), 25 * 24 + 24 + 9 * 24 * 48 + 48 + 48 * 49 * 64 + 64 + 650},
      {make_spec("cnn", {3, 33, 20}, 4), 75 * 24 + 24 + 9 * 24 * 48 + 48 + 48 * 9 * 5 * 64 + 64 + 65 * 4},
      {make_spec("resnet18", {1, 28, 28}, 10), resnet_small + 9 * 64 + 513 * 10},
      {group, resnet_small + 27 * 64 + 513 * 10},
      {make_spec("resnet18", {3, 224, 224}, 1000), 11'689'512},
      {vgg_norm, vgg_features + 9 * 64 + 513 * 512 + 513 * 10 + 2 * (64 + 128 + 256 * 2 + 512 * 4)},
      {make_spec("vgg11", {3, 32, 32}, 10), vgg_features + 27 * 64 + 513 * 512 + 513 * 10},
      {vgg_large, vgg_features + 27 * 64 + (512 * 49 + 1) * 8 + 9 * 5},
  };
  for (const ShapeCase& example : cases) {
    const std::string what = example.spec.name + " " + format_shape(example.spec.input_shape);
    const auto stage = load_stage(example.spec);
    EXPECT_EQ(stage->parameter_count(), example.parameters) << what;
    const auto outputs = stage->forward(0, {make_batch(example.spec, 2)});
    ASSERT_TRUE(outputs) << outputs.error().message;
    ASSERT_EQ(outputs->front().sizes(), (std::vector<std::int64_t>{2, example.spec.outputs})) << what;
    ASSERT_TRUE(stage->backward(0, {torch::randn_like(outputs->front())}));
    for (const NamedTensor& parameter : stage->parameters()) {
      ASSERT_TRUE(parameter.tensor.grad().defined()) << what << " " << parameter.name;
      EXPECT_TRUE(torch::isfinite(parameter.tensor.grad()).all().item<bool>()) << what << " " << parameter.name;
    }
  }
}

TEST(Networks, InitialWeightsDependOnTheSeedAlone) {
  const NetworkSpec spec = make_spec("cnn", {1, 28, 28}, 10);
  torch::manual_seed(5);
  const auto one = *make_stage(spec, 3, {});
  torch::manual_seed(6);
  const auto two = *make_stage(spec, 3, {});
  const auto other = *make_stage(spec, 4, {});
  for (std::size_t i = 0; i < one->parameters().size(); ++i) {
    EXPECT_EQ(one->parameters()[i].name, two->parameters()[i].name);
    EXPECT_TRUE(torch::equal(one->parameters()[i].tensor, two->parameters()[i].tensor));
    EXPECT_FALSE(torch::equal(one->parameters()[i].tensor, other->parameters()[i].tensor));
  }
}

// The directional derivative along a random direction, by central differences in double precision.
TEST(Networks, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(2);
  NetworkSpec group = make_spec("resnet18", {1, 8, 8}, 3, "float64");
  group.norm = "group";
  for (const NetworkSpec& spec :
       {make_spec("mlp", {5}, 3, "float64"), make_spec("cnn", {1, 8, 8}, 3, "float64"),
        make_spec("resnet18", {1, 8, 8}, 3, "float64"), group, make_spec("vgg11", {1, 8, 8}, 3, "float64")}) {
    const auto stage = load_stage(spec);
    const torch::Tensor inputs = make_batch(spec, 4);
    const torch::Tensor targets = torch::randint(0, 3, {4});
    const auto loss_and_gradient = [&] {
      const auto outputs = stage->forward(0, {inputs});
      const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs->front(), targets, 4);
      EXPECT_TRUE(stage->backward(0, {loss.output_gradient}));
      return loss.sum.item<double>() / 4;
    };
    loss_and_gradient();
    std::vector<torch::Tensor> directions;
    double predicted = 0;
    for (const NamedTensor& parameter : stage->parameters()) {
      directions.push_back(torch::randn_like(parameter.tensor) * parameter.tensor.abs().mean());
      predicted += (parameter.tensor.grad() * directions.back()).sum().item<double>();
    }
    const auto moved = [&](double distance) {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < directions.size(); ++i) {
        stage->parameters()[i].tensor.add_(directions[i], distance);
      }
    };
    const double step = 1e-7;
    moved(step);
    const double after = loss_and_gradient();
    moved(-2 * step);
    const double before = loss_and_gradient();
    EXPECT_NEAR((after - before) / (2 * step), predicted, 1e-5 * (1 + std::abs(predicted))) << spec.name;
  }
}

TEST(Stage, RecomputationGivesTheSameBits) {
  NetworkSpec spec = make_spec("vgg11", {1, 8, 8}, 3);
  spec.norm = "batch";
  spec.dropout = 0.4;
  const torch::Tensor inputs = make_batch(spec, 6);
  const torch::Tensor gradient = torch::randn({6, 3});
  std::vector<NamedTensors> states;
  std::vector<Tensors> gradients;
  std::vector<torch::Tensor> drawn_after;
  for (const bool recompute : {false, true}) {
    const auto stage = load_stage(spec, {.recompute = recompute, .input_gradients = true});
    seed_randomness(1, 2, 3, 4, std::vector<std::uint32_t>{9, 8, 7, 6, 5, 4});
    ASSERT_TRUE(stage->forward(0, {inputs}));
    ASSERT_TRUE(stage->forward(1, {inputs * 2}));
    Tensors found = *stage->backward(0, {gradient});
    ASSERT_TRUE(stage->backward(1, {gradient}));
    for (const NamedTensor& parameter : stage->parameters()) {
      found.push_back(parameter.tensor.grad());
    }
    gradients.push_back(found);
    states.push_back(stage->buffers());
    drawn_after.push_back(torch::rand({4}));
  }
  set_random_samples(nullptr);
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i])) << i;
  }
  for (std::size_t i = 0; i < states[0].size(); ++i) {
    EXPECT_TRUE(torch::equal(states[0][i].tensor, states[1][i].tensor)) << states[0][i].name;
  }
  EXPECT_TRUE(torch::equal(drawn_after[0], drawn_after[1])) << "replaying must not move the stream of random numbers";
}

// Two stages in a row, driven by hand, give what one network of both gives; micro-batches may interleave.
TEST(Stage, AChainOfStagesEqualsTheWhole) {
  NetworkSpec first_spec = make_spec("mlp", {6}, 5, "float64");
  first_spec.hidden = {4};
  NetworkSpec second_spec = make_spec("mlp", {5}, 2, "float64");
  second_spec.hidden = {3};
  const auto first = load_stage(first_spec);
  const auto second = load_stage(second_spec, {.input_gradients = true});
  const torch::Tensor inputs[] = {make_batch(first_spec, 3), make_batch(first_spec, 4)};
  for (const int id : {0, 1}) {
    const Tensors between = *first->forward(id, {inputs[id]});
    ASSERT_TRUE(second->forward(id, between));
  }
  for (const int id : {1, 0}) {
    const Tensors between = *second->backward(id, {torch::ones({inputs[id].size(0), 2}, torch::kFloat64)});
    ASSERT_TRUE(first->backward(id, between));
  }

  const NamedTensors a = first->parameters();
  const NamedTensors b = second->parameters();
  Tensors leaves;
  for (const NamedTensor& parameter : a) leaves.push_back(parameter.tensor);
  for (const NamedTensor& parameter : b) leaves.push_back(parameter.tensor);
  const auto whole = [&](torch::Tensor x) {
    x = torch::linear(torch::relu(torch::linear(x, a[0].tensor, a[1].tensor)), a[2].tensor, a[3].tensor);
    return torch::linear(torch::relu(torch::linear(x, b[0].tensor, b[1].tensor)), b[2].tensor, b[3].tensor);
  };
  const Tensors expected = torch::autograd::grad({whole(inputs[0]).sum() + whole(inputs[1]).sum()}, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(torch::allclose(leaves[i].grad(), expected[i], 1e-12, 1e-12)) << i;
  }
}

TEST(Stage, BackwardMayGiveTheGradientsOfInputsAlone) {
  for (const bool recomputes : {false, true}) {
    const NetworkSpec spec = make_spec("mlp", {6}, 5, "float64");
    const auto stage = load_stage(spec, {.recompute = recomputes, .input_gradients = true});
    const torch::Tensor inputs = make_batch(spec, 3);
    const torch::Tensor gradient = torch::randn({3, 5}, torch::kFloat64);
    ASSERT_TRUE(stage->forward(0, {inputs}));
    const Tensors expected = *stage->backward(0, {gradient});
    Tensors before;
    for (const NamedTensor& parameter : stage->parameters()) before.push_back(parameter.tensor.grad().clone());
    ASSERT_TRUE(stage->forward(1, {inputs}));
    EXPECT_TRUE(torch::equal(stage->backward(1, {gradient}, /*adds=*/false)->front(), expected.front()));
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(stage->parameters()[i].tensor.grad(), before[i])) << i;
    }
    ASSERT_TRUE(stage->forward(2, {inputs}));
    stage->forget(2);
    EXPECT_TRUE(stage->forward(2, {inputs})) << "the id is free again";
  }
}

TEST(Stage, SaysWhatDoesNotFit) {
  const NetworkSpec spec = make_spec("cnn", {1, 28, 28}, 10);
  const auto stage = load_stage(spec);
  const auto wrong = stage->forward(0, {torch::zeros({2, 3, 32, 32})});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr("1x28x28"));
  EXPECT_THAT(wrong.error().message, HasSubstr("2x3x32x32"));
  EXPECT_FALSE(stage->backward(0, {torch::zeros({2, 10})})) << "no forward came before";
  ASSERT_TRUE(stage->forward(0, {make_batch(spec, 2)}));
  EXPECT_FALSE(stage->forward(0, {make_batch(spec, 2)})) << "the id is taken";
  EXPECT_FALSE(stage->backward(0, {torch::zeros({2, 9})})) << "the gradient has another shape";
}

TEST(Stage, EvaluationKeepsNothing) {
  const NetworkSpec spec = make_spec("resnet18", {1, 8, 8}, 3);
  const auto stage = load_stage(spec);
  stage->train(false);
  const torch::Tensor inputs = make_batch(spec, 2);
  const torch::Tensor first = stage->forward(0, {inputs})->front();
  EXPECT_TRUE(torch::equal(first, stage->forward(0, {inputs})->front())) << "running statistics must not move";
  EXPECT_FALSE(stage->backward(0, {torch::ones_like(first)}));
}

TEST(Stage, LoadsOnlyAStateThatFits) {
  const auto stage = load_stage(make_spec("mlp", {4}, 2));
  const auto other = *make_stage(make_spec("mlp", {4}, 2), 99, {});
  NamedTensors state = other->state();
  std::swap(state.front(), state.back());
  ASSERT_TRUE(stage->load_state(state)) << "the order does not matter";
  EXPECT_TRUE(torch::equal(stage->parameters()[0].tensor, other->parameters()[0].tensor));

  NamedTensors missing(state.begin() + 1, state.end());
  EXPECT_THAT(stage->load_state(missing).error().message, HasSubstr(state.front().name));
  NamedTensors reshaped = state;
  reshaped[0].tensor = torch::zeros({1, 1});
  EXPECT_FALSE(stage->load_state(reshaped));
  NamedTensors extra = state;
  extra.push_back({"more", torch::zeros({1})});
  EXPECT_THAT(stage->load_state(extra).error().message, HasSubstr("more"));
}

TEST(Stage, AutocastComputesInBfloat16AndKeepsWeights) {
  const NetworkSpec spec = make_spec("mlp", {64}, 8);
  const torch::Tensor inputs = make_batch(spec, 16);
  const auto exact = load_stage(spec);
  const auto cast = load_stage(spec, {.autocast = true});
  const torch::Tensor expected = exact->forward(0, {inputs})->front();
  const torch::Tensor found = cast->forward(0, {inputs})->front();
  EXPECT_EQ(found.scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(torch::equal(found.to(torch::kFloat32), expected));
  EXPECT_TRUE(torch::allclose(found.to(torch::kFloat32), expected, 0.05, 0.05));
  ASSERT_TRUE(cast->backward(0, {torch::ones({16, 8})}));
  EXPECT_EQ(cast->parameters()[0].tensor.grad().scalar_type(), torch::kFloat32);
  EXPECT_EQ(exact->forward(1, {inputs})->front().scalar_type(), torch::kFloat32)
      << "autocast ends with the stage's forward";
}

TEST(ExportedStage, TrainsFromAFile) {
  torch::manual_seed(3);
  const auto stage = load_stage(exported_spec("frozen"));
  ASSERT_EQ(stage->parameters().size(), 2u);
  EXPECT_EQ(stage->parameters()[0].name, "weight");
  ASSERT_EQ(stage->buffers().size(), 1u);
  EXPECT_EQ(stage->buffers()[0].name, "frozen");

  const torch::Tensor inputs = torch::randn({64, 3});
  const torch::Tensor targets = inputs.select(1, 0).gt(inputs.select(1, 1)).to(torch::kInt64);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 50; ++step) {
    const Tensors outputs = *stage->forward(step, {inputs});
    const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs[0], targets, 64);
    last = loss.sum.item<double>();
    first = step == 0 ? last : first;
    ASSERT_TRUE(stage->backward(step, {loss.output_gradient}));
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : stage->parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad());
      parameter.tensor.grad().zero_();
    }
  }
  EXPECT_LT(last, 0.3 * first);
}

TEST(ExportedStage, TakesAndReturnsSeveralTensors) {
  const auto stage = load_stage(exported_spec("several"), {.input_gradients = true});
  const torch::Tensor x = torch::randn({4});
  const torch::Tensor y = torch::randn({4});
  const Tensors outputs = *stage->forward(0, {x, y});
  ASSERT_EQ(outputs.size(), 2u);
  const Tensors gradients = *stage->backward(0, {torch::ones({4}), torch::Tensor()});
  EXPECT_TRUE(torch::allclose(gradients[0], 2 * y));
  EXPECT_TRUE(torch::allclose(gradients[1], 2 * x));
  EXPECT_TRUE(torch::allclose(stage->parameters()[0].tensor.grad(), (x * y).sum()));
}

TEST(Networks, RefuseSettingsThatTheyDoNotHave) {
  const auto message = [](NetworkSpec spec) {
    const auto network = make_network(spec, 0);
    return network ? std::string("accepted") : network.error().message;
  };
  EXPECT_THAT(message(make_spec("lenet", {1, 28, 28}, 10)), HasSubstr("accepted: mlp, cnn, resnet18"));
  EXPECT_THAT(message(make_spec("cnn", {784}, 10)), HasSubstr("model.input_shape"));
  EXPECT_THAT(message(make_spec("mlp", {784}, 0)), HasSubstr("model.outputs"));
  EXPECT_THAT(message(make_spec("mlp", {784}, 2, "int8")), HasSubstr("model.dtype"));
  NetworkSpec spec = make_spec("cnn", {1, 28, 28}, 10);
  spec.dropout = 0.5;
  EXPECT_THAT(message(spec), HasSubstr("model.dropout"));
  spec = make_spec("resnet18", {1, 28, 28}, 10);
  spec.norm = "layer";
  EXPECT_THAT(message(spec), HasSubstr("batch, group"));
}

TEST(Runtime, NamesDevicesThatAreNotHere) {
  EXPECT_TRUE(parse_device("cpu")->is_cpu());
  EXPECT_EQ(parse_device("tpu").error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(parse_device("cuda:x").error().code, ErrorCode::kInvalidInput);
  if (count_devices(torch::kCUDA) > 0) {
    EXPECT_EQ(*parse_device("cuda"), torch::Device(torch::kCUDA, 0));
    EXPECT_EQ(parse_device("cuda:99").error().code, ErrorCode::kInvalidInput);
  } else {
    EXPECT_EQ(parse_device("cuda:0").error().code, ErrorCode::kUnavailable);
  }
}

TEST(Runtime, SeedsAreAFunctionOfTheirNumbers) {
  seed_randomness(1, 2, 3, 4, {});
  const torch::Tensor first = torch::rand({8});
  torch::rand({100});
  seed_randomness(1, 2, 3, 4, {});
  EXPECT_TRUE(torch::equal(first, torch::rand({8})));
  seed_randomness(1, 2, 4, 3, {});
  EXPECT_FALSE(torch::equal(first, torch::rand({8})));
}

// What a step computes, on an accelerator where there is one.
class Accelerator : public ::testing::TestWithParam<const char*> {};

TEST_P(Accelerator, AStageGivesWhatItGivesOnTheCpu) {
  const auto accelerator = find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  const std::string name = GetParam();
  const bool reads_tokens = name == "transformer";
  NetworkSpec spec = make_spec(
      name, name == "mlp" ? std::vector<std::int64_t>{20} : std::vector<std::int64_t>{1, 28, 28}, 10, "float64");
  if (reads_tokens) {
    spec.input_shape = {12};
    spec.layers = 2;
    spec.width = 16;
    spec.heads = 2;
  }
  const torch::Tensor inputs = reads_tokens ? torch::randint(10, {8, 12}, torch::kFloat64) : make_batch(spec, 8);
  const auto host = load_stage(spec, {.input_gradients = true});
  const auto device = load_stage(spec, {.device = *accelerator, .input_gradients = true});
  std::vector<Tensors> found;  // outputs, then gradients of the input where it has any, then of the weights
  torch::Tensor output_gradient;
  for (Stage* stage : {host.get(), device.get()}) {
    const auto outputs = stage->forward(0, {inputs});
    ASSERT_TRUE(outputs) << outputs.error().message;
    if (!output_gradient.defined()) {
      output_gradient = torch::randn_like(outputs->front());
    }
    const auto input_gradients = stage->backward(0, {output_gradient});
    ASSERT_TRUE(input_gradients) << input_gradients.error().message;
    Tensors all = *outputs;
    for (const torch::Tensor& gradient : *input_gradients) {
      if (gradient.defined()) {
        all.push_back(gradient);
      }
    }
    for (const NamedTensor& parameter : stage->parameters()) {
      all.push_back(parameter.tensor.grad());
    }
    found.push_back(std::move(all));
  }
  ASSERT_EQ(found[0].size(), found[1].size());
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[0][i], found[1][i].cpu(), 1e-8, 1e-10)) << name << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, Accelerator, ::testing::Values("mlp", "cnn", "resnet18", "transformer"),
                         [](const auto& example) { return std::string(example.param); });

}  // namespace
}  // namespace motley::nn
