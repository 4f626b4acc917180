// The emulated accelerator computes what the CPU does, and finds what a program forgets that uses it.
#include "motley/nn/emulated/emulated_accelerator.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "motley/base/clock.h"
#include "motley/nn/runtime.h"

namespace motley::nn::emulated {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kValues = 100'000;

class AcceleratorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    Options options;
    options.devices = 2;
    options.memory_bytes = 256e6;
    options.link_bytes_per_second = 2e9;
    options.flops_per_second = 1e9;
    options.memory_bytes_per_second = 1e9;
    options.refuses_pageable = true;
    const Status enabled = enable(options);
    ASSERT_TRUE(enabled) << enabled.error().message;
  }
};
[[maybe_unused]] auto* const environment = ::testing::AddGlobalTestEnvironment(new AcceleratorEnvironment());

class EmulatedAccelerator : public ::testing::Test {
 protected:
  void SetUp() override { runtime().collect_violations(true); }
  void TearDown() override {
    runtime().synchronize_device(0);
    runtime().synchronize_device(1);
    EXPECT_THAT(runtime().take_violations(), IsEmpty());
  }
  static torch::Tensor pinned(std::int64_t values = kValues) {
    return torch::zeros({values}, torch::dtype(torch::kFloat32).pinned_memory(true));
  }
  c10::Stream new_stream() const { return guard_.getStreamFromGlobalPool(device_); }
  c10::Stream current() const { return guard_.getStream(device_); }
  void wait_for(const c10::Stream& stream, const c10::Stream& other) const {
    c10::Event event(device_.type());
    event.record(other);
    event.block(stream);
  }

  // On the device's clock, which a busy machine makes longer only.
  double milliseconds(const std::function<void()>& work) const {
    c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(current());
    work();
    end.record(current());
    end.synchronize();
    return begin.elapsedTime(end);
  }

  static auto finds(bool nothing, const char* what) {
    return nothing ? ::testing::Matcher<std::vector<std::string>>(IsEmpty()) : ElementsAre(HasSubstr(what));
  }

  const torch::Device device_{"emulated:0"};
  const torch::Device other_device_{"emulated:1"};
  const c10::impl::VirtualGuardImpl guard_{device_.type()};
};

TEST_F(EmulatedAccelerator, IsADeviceOfPyTorch) {
  EXPECT_EQ(*parse_device("emulated"), torch::Device("emulated:0"));
  EXPECT_EQ(*parse_device("emulated:1"), torch::Device("emulated:1"));
  EXPECT_EQ(*parse_device("auto"), torch::Device("emulated:0"));
  EXPECT_EQ(parse_device("emulated:2").error().code, ErrorCode::kInvalidInput);
  EXPECT_EQ(count_devices(device_.type()), 2);
  EXPECT_EQ(device_memory_bytes(device_), 256e6);
  EXPECT_TRUE(pinned().is_pinned());
  EXPECT_FALSE(torch::zeros({8}).is_pinned());
}

// A network's layers of all kinds, trained: what the CPU gives, bit for bit.
TEST_F(EmulatedAccelerator, TrainsAsTheCpuDoes) {
  const auto train = [](torch::Device device) {
    torch::manual_seed(1);
    namespace nn = torch::nn;
    nn::Sequential net(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2), nn::Dropout(0.2),
                       nn::Flatten(), nn::Linear(144, 16), nn::LayerNorm(nn::LayerNormOptions({16})), nn::GELU(),
                       nn::Linear(16, 10));
    net->to(device);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    std::vector<double> losses;
    for (int step = 0; step < 6; ++step) {
      torch::manual_seed(100 + static_cast<std::uint64_t>(step));
      const torch::Tensor inputs = torch::randn({8, 1, 14, 14}).to(device);
      const torch::Tensor targets = torch::randint(10, {8}).to(device);
      torch::manual_seed(200 + static_cast<std::uint64_t>(step));
      optimizer.zero_grad();
      torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(inputs), targets);
      loss.backward();
      nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
  const std::vector<double> host = train(torch::kCPU), device = train(device_);
  ASSERT_EQ(host.size(), device.size());
  for (std::size_t i = 0; i < host.size(); ++i) EXPECT_NEAR(host[i], device[i], 1e-6 * host[i]) << i;
}

TEST_F(EmulatedAccelerator, FollowsShapesThatDependOnValues) {
  const torch::Tensor values = torch::arange(10, torch::device(device_));
  for (int least = 0; least < 10; ++least) {
    EXPECT_EQ(values.masked_select(values.ge(least)).size(0), 10 - least);
    EXPECT_EQ(torch::nonzero(values.ge(least)).size(0), 10 - least);
    EXPECT_EQ(values.index({values.ge(least)}).cpu().sum().item<int>(), 45 - least * (least - 1) / 2);
  }
}

TEST_F(EmulatedAccelerator, DrawsWhatTheCpuDrawsFromTheSameSeed) {
  torch::manual_seed(5);
  const torch::Tensor host = torch::randn({64});
  at::Generator generator = at::globalContext().defaultGenerator(device_);
  generator.set_current_seed(5);
  const torch::Tensor state = generator.get_state();
  EXPECT_TRUE(torch::equal(torch::randn({64}, torch::device(device_)).cpu(), host));
  EXPECT_FALSE(torch::equal(torch::randn({64}, torch::device(device_)).cpu(), host));
  generator.set_state(state);
  EXPECT_TRUE(torch::equal(torch::randn({64}, torch::device(device_)).cpu(), host));
}

TEST_F(EmulatedAccelerator, PoisonsFreshMemory) {
  for (int i = 0; i < 3; ++i) {  // new, and given out again
    const torch::Tensor fresh = torch::empty({kValues}, torch::device(device_));
    EXPECT_TRUE(fresh.isnan().all().item<bool>());
    torch::ones({kValues}, torch::device(device_));
  }
}

TEST_F(EmulatedAccelerator, SaysWhenMemoryIsFull) {
  const auto options = torch::device(device_).dtype(torch::kUInt8);
  torch::Tensor most = torch::empty({200'000'000}, options);
  EXPECT_THROW(torch::empty({100'000'000}, options), c10::OutOfMemoryError);
  most = torch::Tensor();
  EXPECT_EQ(torch::empty({100'000'000}, options).numel(), 100'000'000);
  EXPECT_EQ(torch::empty({220'000'000}, options).numel(), 220'000'000);  // of what both had
}

// What a stream's thread does keeps nobody else from going on.
TEST_F(EmulatedAccelerator, GoesOnWhileAStreamIsBehind) {
  const torch::Tensor ones = torch::ones({64, 64}, torch::device(device_));
  torch::Tensor known = ones.matmul(ones) + 1;  // whose shapes are known from now on
  std::promise<void> gate;
  runtime().issue(
      current_stream(0), Engine::kCompute, 0, {}, [opens = gate.get_future().share()] { opens.wait(); }, "gate");
  const torch::Tensor queued = ones.matmul(ones) + 1;
  torch::Tensor on_host = pinned(64 * 64);
  on_host.copy_(queued.flatten(), /*non_blocking=*/true);
  c10::Event copied(device_.type());
  copied.record(current());
  EXPECT_FALSE(copied.query());
  const torch::Tensor other = torch::ones({8}, torch::device(other_device_));
  EXPECT_EQ(other.sum().item<float>(), 8);
  gate.set_value();
  copied.synchronize();
  EXPECT_TRUE(on_host.eq(65).all().item<bool>());
}

TEST_F(EmulatedAccelerator, TakesTheTimeOfItsLink) {
  torch::Tensor host = pinned(1'000'000);
  torch::Tensor device = torch::empty({1'000'000}, torch::device(device_));
  c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  device.copy_(host, true);
  begin.record(current());
  device.copy_(host, true);
  end.record(current());
  end.synchronize();
  EXPECT_GE(begin.elapsedTime(end), 2 - 1e-6);  // ms for 4 MB at 2 GB/s
  const double before = monotonic_seconds();
  device.copy_(host, true);
  device.copy_(host, true);
  guard_.synchronizeDevice(0);
  EXPECT_GE(monotonic_seconds() - before, 4e-3);
}

TEST_F(EmulatedAccelerator, TakesTheTimeOfWhatIsReadAndWritten) {
  const torch::Tensor column = torch::ones({1000, 1}, torch::device(device_));
  const torch::Tensor row = torch::ones({1, 1000}, torch::device(device_));
  torch::Tensor product;
  for (const char* call : {"first", "second"}) {  // before the result's shape is known, and after
    EXPECT_GE(milliseconds([&] { product = column * row; }), 4 - 1e-3) << call;  // 4 MB at 1 GB/s
  }
  EXPECT_GE(milliseconds([&] { product.sum(); }), 4 - 1e-3);
}

TEST_F(EmulatedAccelerator, TakesTheTimeOfWhatConvolutionsMultiply) {
  const auto ones = [&](std::initializer_list<std::int64_t> sizes) {
    return torch::ones(sizes, torch::device(device_)).requires_grad_();
  };
  const torch::Tensor input = ones({8, 16, 32, 32}), weight = ones({16, 8, 3, 3});
  const double flops = 2.0 * (8 * 16 * 16 * 16) * (8 * 9);  // each value of the result with half of the channels
  torch::Tensor result;
  EXPECT_GE(milliseconds([&] { result = torch::conv2d(input, weight, {}, 2, 1, 1, 2); }), flops / 1e6 - 1e-3);
  const torch::Tensor gradient = torch::ones_like(result);
  EXPECT_GE(milliseconds([&] { torch::autograd::grad({result}, {input, weight}, {gradient}); }),
            2 * flops / 1e6 - 1e-3);

  const torch::Tensor wide = ones({16, 32, 3, 3});
  const double transposed_flops = 2.0 * (8 * 16 * 32 * 32) * (32 * 9);  // each value of the input
  EXPECT_GE(milliseconds([&] { result = torch::conv_transpose2d(input, wide, {}, 1, 1); }),
            transposed_flops / 1e6 - 1e-3);
}

// What a program forgets.

TEST_F(EmulatedAccelerator, FindsTheHostInItsMemory) {
  const torch::Tensor values = torch::ones({8}, torch::device(device_));
  guard_.synchronizeDevice(0);
  EXPECT_EQ(*static_cast<const volatile float*>(values.const_data_ptr()), 1);
  EXPECT_THAT(runtime().take_violations(), ElementsAre(HasSubstr("the host touches memory of emulated:0")));
}

TEST_F(EmulatedAccelerator, FindsReadsOfCopiesThatNobodyWaitedFor) {
  const torch::Tensor values = torch::ones({kValues}, torch::device(device_));
  for (const bool waits : {true, false}) {
    torch::Tensor host = pinned();
    host.copy_(values, true);
    if (waits) current().synchronize();
    host.sum();
    EXPECT_THAT(runtime().take_violations(),
                finds(waits, "pinned memory that 'aten::copy_' on the default stream of emulated:0 still writes"));
  }
}

TEST_F(EmulatedAccelerator, FindsWritesToWhatACopyReads) {
  for (const bool waits : {true, false}) {
    torch::Tensor host = pinned();
    const torch::Tensor device = torch::empty({kValues}, torch::device(device_));
    device.copy_(host, true);
    host.sum();  // may be read
    if (waits) {
      c10::Event copied(device_.type());
      copied.record(current());
      while (!copied.query()) continue;
    }
    host.fill_(2);
    const auto violations = runtime().take_violations();
    EXPECT_THAT(violations, finds(waits, "still reads"));
  }
}

TEST_F(EmulatedAccelerator, FindsStreamsThatNothingOrders) {
  for (const bool first : {true, false}) {
    for (const bool second : {true, false}) {
      torch::Tensor values = torch::ones({kValues}, torch::device(device_));
      const c10::Stream other = new_stream();
      if (first) wait_for(other, current());
      {
        const c10::StreamGuard use(other);
        values.add_(1);
      }
      if (second) wait_for(current(), other);
      const float sum = values.sum().item<float>();
      if (first && second) {
        EXPECT_EQ(sum, 2 * kValues);
      }
      guard_.synchronizeDevice(0);
      const auto violations = runtime().take_violations();
      EXPECT_EQ(violations.size(), static_cast<std::size_t>(!first + !second)) << first << second;
      for (const std::string& violation : violations) EXPECT_THAT(violation, HasSubstr("neither an event nor a wait"));
    }
  }
}

TEST_F(EmulatedAccelerator, FindsMemoryThatIsLetGoTooEarly) {
  for (const bool records : {true, false}) {
    torch::Tensor values = torch::ones({kValues}, torch::device(device_));
    torch::Tensor host = pinned();
    const c10::Stream other = new_stream();
    wait_for(other, current());
    {
      const c10::StreamGuard use(other);
      host.copy_(values, true);
    }
    if (records) values.record_stream(other);
    values = torch::Tensor();
    const auto violations = runtime().take_violations();
    EXPECT_THAT(violations, finds(records, "is let go while stream"));
  }
}

TEST_F(EmulatedAccelerator, FailsOnceAndForAllWhereViolationsAreNotCollected) {
  torch::Tensor values = torch::ones({kValues}, torch::device(device_));
  runtime().collect_violations(false);
  {
    const c10::StreamGuard use(new_stream());
    EXPECT_THROW(values.add_(1), std::exception);
  }
  EXPECT_THROW(torch::ones({2}, torch::device(device_)), std::exception);
  runtime().collect_violations(true);
  EXPECT_EQ(runtime().take_violations().size(), 1U);
  guard_.synchronizeDevice(0);
}

TEST_F(EmulatedAccelerator, RefusesTensorsOfSeveralDevices) {
  const torch::Tensor device = torch::ones({8}, torch::device(device_));
  EXPECT_THROW(device + torch::ones({8}), c10::Error);
  EXPECT_THROW(device + torch::ones({8}, torch::device(other_device_)), c10::Error);
  EXPECT_EQ((device + torch::ones({})).sum().item<float>(), 16);
  EXPECT_EQ(device.to(other_device_).sum().item<float>(), 8);
}

TEST(EmulatedOptions, AreReadStrictly) {
  const auto options = Options::parse("devices=3, memory=1GB,host_link=2GB/s,host_link_latency=10us,flops=1e12");
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->devices, 3);
  EXPECT_EQ(options->memory_bytes, 1e9);
  EXPECT_EQ(options->link_bytes_per_second, 2e9);
  EXPECT_DOUBLE_EQ(options->link_seconds, 1e-5);
  EXPECT_EQ(options->flops_per_second, 1e12);
  const auto message = [](const char* text) {
    const auto refused = Options::parse(text);
    return refused ? std::string("accepted") : refused.error().message;
  };
  EXPECT_THAT(message("devices=0"), HasSubstr("MOTLEY_EMULATED: devices is '0'; accepted: 1 to 16"));
  EXPECT_THAT(message("colour=red"), HasSubstr("'colour' is no key; accepted: devices"));
  EXPECT_THAT(message("memory=much"), HasSubstr("MOTLEY_EMULATED: memory"));
}

}  // namespace
}  // namespace motley::nn::emulated
