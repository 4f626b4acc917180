// Masks follow from the samples: any cut of a batch, and any order of its samples, leaves out the same values.
#include "motley/nn/runtime.h"

#include <gtest/gtest.h>

#include "motley/nn/networks.h"

namespace motley::nn {
namespace {

std::vector<std::uint32_t> numbers(std::uint32_t count) {
  std::vector<std::uint32_t> samples(count);
  for (std::uint32_t i = 0; i < count; ++i) samples[i] = i * 7919 % 100'003;
  return samples;
}

void tell(std::vector<std::uint32_t> samples, std::uint64_t step = 3) {
  set_random_samples(std::make_shared<RandomSamples>(RandomSamples{5, step, std::move(samples)}));
}

class SampleDropoutTest : public ::testing::Test {
 protected:
  void TearDown() override { set_random_samples(nullptr); }
};

TEST_F(SampleDropoutTest, DropsItsFractionAndKeepsTheMean) {
  tell(numbers(200));
  for (const double share : {0.1, 0.5, 0.9}) {
    const torch::Tensor result = sample_dropout(torch::ones({200, 1000}), share, 1);
    const double kept = result.count_nonzero().item<double>() / 200'000;
    EXPECT_NEAR(kept, 1 - share, 0.005);  // 4.5 standard deviations at a half
    EXPECT_NEAR(result.max().item<double>(), 1 / (1 - share), 1e-5);
  }
}

TEST_F(SampleDropoutTest, EverySampleValuePlaceAndStepIsDrawnForItself) {
  tell(numbers(100));
  const torch::Tensor ones = torch::ones({100, 100});
  const torch::Tensor mask = sample_dropout(ones, 0.5, 1) != 0;
  const auto agreement = [&](const torch::Tensor& other) {
    return (mask == other).to(torch::kFloat64).mean().item<double>();
  };
  EXPECT_NEAR(agreement(sample_dropout(ones, 0.5, 2) != 0), 0.5, 0.03);
  EXPECT_NEAR(agreement(mask.roll(1, 0)), 0.5, 0.03);
  EXPECT_NEAR(agreement(mask.roll(1, 1)), 0.5, 0.03);
  tell(numbers(100), 4);
  EXPECT_NEAR(agreement(sample_dropout(ones, 0.5, 1) != 0), 0.5, 0.03);
}

TEST_F(SampleDropoutTest, ANetworkGivesASampleTheSameWhateverItIsComputedWith) {
  for (const char* name : {"mlp", "vgg11", "transformer"}) {
    const bool is_text = std::string(name) == "transformer";
    NetworkSpec spec;
    spec.name = name;
    spec.input_shape = is_text ? std::vector<std::int64_t>{16} : std::vector<std::int64_t>{1, 28, 28};
    spec.outputs = 12;
    spec.dropout = 0.3;
    spec.norm = is_text || spec.name == "mlp" ? "" : "group";
    auto network = make_network(spec, 1);
    ASSERT_TRUE(network) << network.error().message;
    (*network)->to(torch::kCPU, torch::kFloat64);
    (*network)->train(true);
    const std::vector<std::uint32_t> samples = numbers(6);
    std::vector<std::int64_t> shape = spec.input_shape;
    shape.insert(shape.begin(), 6);
    const torch::Tensor input =
        is_text ? torch::randint(12, shape, torch::kFloat64) : torch::rand(shape, torch::kFloat64);
    tell(samples);
    const torch::Tensor whole = (*network)->forward({input}).front();
    for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{0, 1}, {5, 2, 3}, {4}}) {
      std::vector<std::uint32_t> part;
      for (const std::int64_t row : rows) part.push_back(samples[static_cast<std::size_t>(row)]);
      tell(part);
      const torch::Tensor index = torch::tensor(rows);
      const torch::Tensor result = (*network)->forward({input.index_select(0, index)}).front();
      EXPECT_LE((result - whole.index_select(0, index)).abs().max().item<double>(), 1e-12) << name;
    }
    tell(samples, 4);
    EXPECT_GE(((*network)->forward({input}).front() - whole).abs().max().item<double>(), 1e-3) << name;
  }
}

// What is written out for dropout is libtorch's attention.
TEST_F(SampleDropoutTest, AttentionWithALittleDropoutIsAttention) {
  NetworkSpec spec;
  spec.name = "transformer";
  spec.input_shape = {16};
  spec.outputs = 12;
  auto plain = make_network(spec, 1);
  spec.dropout = 1e-12;  // fewer than any of 32 random bits
  auto dropping = make_network(spec, 1);
  ASSERT_TRUE(plain && dropping);
  (*plain)->to(torch::kCPU, torch::kFloat64);
  (*dropping)->to(torch::kCPU, torch::kFloat64);
  const torch::Tensor input = torch::randint(12, {3, 16}, torch::kFloat64);
  tell(numbers(3));
  EXPECT_LE(((*plain)->forward({input}).front() - (*dropping)->forward({input}).front()).abs().max().item<double>(),
            1e-9);
}

}  // namespace
}  // namespace motley::nn
