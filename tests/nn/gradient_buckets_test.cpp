// Gradients in the exchange's memory are those that autograd computes, and buckets are announced in order.
#include "motley/nn/gradients/gradient_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "motley/nn/loss.h"
#include "motley/nn/networks.h"
#include "tests/nn/accelerator.h"

namespace motley::nn {
namespace {

using ::testing::ElementsAre;

class GradientBucketsTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  static NetworkSpec spec(const std::string& dtype) {
    NetworkSpec spec;
    spec.name = "cnn";
    spec.input_shape = {1, 12, 12};
    spec.outputs = 4;
    spec.dtype = dtype;
    return spec;
  }

  void make(const std::string& dtype, std::size_t bucket_bytes, torch::Device device = torch::kCPU,
            bool keeps_own = false) {
    stage_ = *make_stage(spec(dtype), 5, {.device = device});
    buckets_ = *GradientBuckets::create(stage_->parameters(), bucket_bytes, {.keeps_own = keeps_own});
    bind();
    inputs_ = torch::randn({20, 1, 12, 12}, torch::dtype(buckets_->dtype()));
    targets_ = torch::randint(0, 4, {20});
  }

  void bind() {
    memory_.clear();
    std::vector<std::span<std::byte>> spans;
    for (const std::size_t elements : buckets_->bucket_elements()) {
      memory_.emplace_back(elements);  // doubles: aligned, and large enough for either type
      spans.push_back(
          std::as_writable_bytes(std::span(memory_.back())).first(elements * torch::elementSize(buckets_->dtype())));
    }
    ASSERT_TRUE(buckets_->bind(spans));
  }

  void micro_batch(std::int64_t from, std::int64_t samples, double divisor) {
    const Tensors outputs = *stage_->forward(from, {inputs_.narrow(0, from, samples)});
    const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs[0], targets_.narrow(0, from, samples), divisor);
    ASSERT_TRUE(stage_->backward(from, {loss.output_gradient}));
  }

  // By autograd alone, on a second network with the same weights: the mean loss of all samples.
  Tensors expected() {
    const auto plain = *make_network(spec(buckets_->dtype() == torch::kFloat64 ? "float64" : "float32"), 5);
    plain->to(torch::kCPU, buckets_->dtype());
    torch::nn::functional::cross_entropy(plain->forward({inputs_})[0], targets_).backward();
    Tensors gradients;
    for (const NamedTensor& parameter : plain->parameters()) {
      gradients.push_back(parameter.tensor.grad());
    }
    return gradients;
  }

  // Reads the memory as the exchange would: parameters last first, one after the other.
  Tensors in_memory() {
    Tensors gradients;
    std::size_t bucket = 0;
    std::int64_t offset = 0;
    for (auto parameter = stage_->parameters().rbegin(); parameter != stage_->parameters().rend(); ++parameter) {
      if (offset == static_cast<std::int64_t>(buckets_->bucket_elements()[bucket])) {
        ++bucket;
        offset = 0;
      }
      const torch::Tensor flat = torch::from_blob(
          memory_[bucket].data(), {static_cast<std::int64_t>(buckets_->bucket_elements()[bucket])}, buckets_->dtype());
      gradients.push_back(flat.narrow(0, offset, parameter->tensor.numel()).view(parameter->tensor.sizes()));
      offset += parameter->tensor.numel();
    }
    return {gradients.rbegin(), gradients.rend()};
  }

  void TearDown() override { buckets_.reset(); }

  std::unique_ptr<Stage> stage_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<std::vector<double>> memory_;
  torch::Tensor inputs_;
  torch::Tensor targets_;
};

TEST_P(GradientBucketsTest, OneMicroBatchEqualsAutogradBitwise) {
  make("float32", GetParam());
  const std::vector<std::size_t> sizes = buckets_->bucket_elements();
  const std::size_t elements = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  EXPECT_EQ(elements, static_cast<std::size_t>(stage_->parameter_count()));
  for (int step = 0; step < 3; ++step) {
    std::vector<int> announced;
    std::vector<bool> complete;
    const Tensors reference = expected();
    buckets_->zero();
    buckets_->arm([&](int bucket) -> Status {
      announced.push_back(bucket);
      const torch::Tensor last = in_memory().back();
      complete.push_back(bucket > 0 || torch::equal(last, reference.back()));
      return {};
    });
    micro_batch(0, 20, 20);
    EXPECT_EQ(announced.size(), static_cast<std::size_t>(buckets_->count())) << "all are announced within backward";
    ASSERT_TRUE(buckets_->flush());
    std::vector<int> order(static_cast<std::size_t>(buckets_->count()));
    std::iota(order.begin(), order.end(), 0);
    EXPECT_EQ(announced, order);
    EXPECT_TRUE(complete.front()) << "a bucket is complete when it is announced";
    const Tensors found = in_memory();
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::equal(found[i], reference[i])) << stage_->parameters()[i].name;
      EXPECT_TRUE(torch::equal(stage_->parameters()[i].tensor.grad(), reference[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BucketBytes, GradientBucketsTest, ::testing::Values(1, 1000, 20000, 1 << 30));

TEST_F(GradientBucketsTest, UnequalMicroBatchesGiveTheMeanOverAllSamples) {
  for (int way = 0; way < 4; ++way) {
    buckets_.reset();
    make("float64", 4096, torch::kCPU, way >= 2);
    buckets_->zero();
    int announced = 0;
    const auto count = [&](int) -> Status {
      ++announced;
      return {};
    };
    if (way % 2 == 0) {  // the number of samples is known
      micro_batch(0, 3, 20);
      micro_batch(3, 12, 20);
      EXPECT_EQ(announced, 0) << "nothing is announced before arm()";
      buckets_->arm(count);
      micro_batch(15, 5, 20);
    } else {  // it turns out at the end
      micro_batch(0, 3, 1);
      micro_batch(3, 12, 1);
      micro_batch(15, 5, 1);
      buckets_->scale(1.0 / 20);
      buckets_->arm(count);
    }
    ASSERT_TRUE(buckets_->flush());
    EXPECT_EQ(announced, buckets_->count());
    const Tensors reference = expected();
    const Tensors found = in_memory();
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::allclose(found[i], reference[i], 1e-12, 1e-14)) << way << " " << i;
    }
  }
}

// The exchange writes over what it was given; it is all there for another one, and more can be added to it.
TEST_F(GradientBucketsTest, OwnGradientsOutliveTheReducedOnes) {
  make("float64", 20000, torch::kCPU, true);
  const Tensors reference = expected();
  const auto expect = [&](const Tensors& found, double tolerance) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::allclose(found[i], reference[i], tolerance, tolerance)) << stage_->parameters()[i].name;
    }
  };
  const auto gradients = [&] {
    Tensors gradients;
    for (const NamedTensor& parameter : stage_->parameters()) gradients.push_back(parameter.tensor.grad());
    return gradients;
  };
  const auto ignore = [](int) { return Status(); };
  buckets_->zero();
  buckets_->arm(ignore);
  micro_batch(0, 7, 7);
  ASSERT_TRUE(buckets_->flush());
  for (const bool is_again : {false, true}) {
    for (std::vector<double>& values : memory_) std::ranges::fill(values, 3.0);  // reduced, in part
    ASSERT_TRUE(buckets_->fetch(0));
    EXPECT_TRUE(torch::equal(stage_->parameters().back().tensor.grad(),
                             torch::full_like(stage_->parameters().back().tensor, 3.0)));
    buckets_->restore();
    if (is_again) bind();  // another exchange
    buckets_->scale(is_again ? 1 : 7.0 / 20);
    buckets_->arm(ignore);
    if (!is_again) micro_batch(7, 13, 20);
    ASSERT_TRUE(buckets_->flush());
    expect(in_memory(), 1e-12);
    expect(gradients(), 1e-12);
  }
}

// Where two parameters' gradients are one tensor to autograd, what is added to one, or scaled, is not the other's.
TEST(GradientBuckets, GradientsThatAreTheSameTensorAreKeptApart) {
  const auto parameter = [](const char* name) {
    return NamedTensor{name, torch::zeros({3}, torch::dtype(torch::kFloat64).requires_grad(true))};
  };
  const NamedTensors parameters = {parameter("a"), parameter("b")};
  const auto buckets = *GradientBuckets::create(parameters, 1 << 20, {.keeps_own = true});
  std::vector<double> memory(6);
  ASSERT_TRUE(buckets->bind({std::as_writable_bytes(std::span(memory))}));
  const auto backward = [&](double factor) {
    (factor * (parameters[0].tensor.unsqueeze(0) + parameters[1].tensor.unsqueeze(0))).sum().backward();
  };
  buckets->zero();
  backward(1);
  backward(10);
  buckets->scale(0.5);
  buckets->arm([](int) { return Status(); });
  backward(100);
  ASSERT_TRUE(buckets->flush());
  EXPECT_THAT(memory, ::testing::Each(105.5));
}

// A step that goes on in other buckets, where some samples' gradients were of another mean.
TEST_F(GradientBucketsTest, OwnGradientsGoOnElsewhere) {
  make("float64", 20000, torch::kCPU, true);
  buckets_->zero();
  micro_batch(0, 7, 12);
  const auto own = buckets_->own();
  const torch::Tensor inputs = inputs_, targets = targets_;
  buckets_.reset();
  make("float64", 20000, torch::kCPU, true);
  inputs_ = inputs;
  targets_ = targets;
  buckets_->zero();
  buckets_->set_own(own, 12.0 / 20);
  buckets_->arm([](int) { return Status(); });
  micro_batch(7, 13, 20);
  ASSERT_TRUE(buckets_->flush());
  const Tensors gradients = expected();
  const Tensors read = in_memory();
  for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(torch::allclose(read[i], gradients[i], 1e-12, 1e-12));
  buckets_->zero();
  for (const auto& bucket : buckets_->own()) {
    EXPECT_THAT(bucket, ::testing::Each(std::byte{0})) << "what is left of an earlier step is no gradient";
  }
}

// A parameter used late in backward holds its bucket and all after it back; one that is never used counts as zero.
TEST(GradientBuckets, AnnouncesInOrderAlsoWhenGradientsComeOutOfOrder) {
  NamedTensors parameters;
  for (const char* name : {"a", "b", "unused", "c"}) {
    parameters.push_back({name, torch::ones({2}).requires_grad_()});
  }
  const auto buckets = *GradientBuckets::create(parameters, 1);
  ASSERT_EQ(buckets->count(), 4);
  std::vector<std::vector<float>> memory(4, std::vector<float>(2, 9.0F));
  std::vector<std::span<std::byte>> spans;
  for (std::vector<float>& bucket : memory) {
    spans.push_back(std::as_writable_bytes(std::span(bucket)));
  }
  ASSERT_TRUE(buckets->bind(spans));

  std::vector<int> announced;
  buckets->arm([&](int bucket) -> Status {
    announced.push_back(bucket);
    return {};
  });
  // Bucket 0 is parameter "c". It is used first, so its gradient comes last.
  (parameters[3].tensor * parameters[1].tensor * parameters[0].tensor).sum().backward();
  EXPECT_THAT(announced, ElementsAre(0)) << "bucket 1, which is unused, holds 2 and 3 back";
  ASSERT_TRUE(buckets->flush());
  EXPECT_THAT(announced, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(memory[0], ElementsAre(1.0F, 1.0F));
  EXPECT_THAT(memory[1], ElementsAre(0.0F, 0.0F));

  announced.clear();
  buckets->zero();
  buckets->arm([&](int bucket) -> Status {
    announced.push_back(bucket);
    return fail(ErrorCode::kPeerLost, "rank 1 is gone");
  });
  const Status status = buckets->flush();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(announced, ElementsAre(0)) << "an error stops further calls";
}

TEST(GradientBuckets, RefusesMixedTypes) {
  const NamedTensors parameters = {{"a", torch::ones({2}).requires_grad_()},
                                   {"b", torch::ones({2}, torch::kFloat64).requires_grad_()}};
  const auto refused = GradientBuckets::create(parameters, 100);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("'b'"));
}

TEST_F(GradientBucketsTest, OnAcceleratorsGradientsTravelThroughTheMemory) {
  const auto accelerator = find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  make("float64", 4096, *accelerator);
  int announced = 0;
  buckets_->arm([&](int) -> Status {
    ++announced;
    return {};
  });
  micro_batch(0, 20, 20);
  ASSERT_TRUE(buckets_->flush());
  EXPECT_EQ(announced, buckets_->count());
  const Tensors reference = expected();
  const Tensors found = in_memory();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], reference[i], 1e-9, 1e-12)) << i;
  }
  found[0].fill_(3);
  ASSERT_TRUE(buckets_->fetch(buckets_->count() - 1));
  EXPECT_TRUE(stage_->parameters()[0].tensor.grad().eq(3).all().item<bool>());
}

}  // namespace
}  // namespace motley::nn
