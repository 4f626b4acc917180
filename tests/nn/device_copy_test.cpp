// Copies that run beside computation: on the CPU there are none, and on a GPU many of them at once bring the right
// values.
#include "motley/nn/gradients/device_copy.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/nn/accelerator.h"

namespace motley::nn {
namespace {

TEST(DeviceCopies, PassTensorsOfTheCpuOn) {
  for (const bool overlaps : {true, false}) {
    const auto copies = DeviceCopies::create(torch::kCPU, overlaps);
    ASSERT_TRUE(copies) << copies.error().message;
    const auto memory = copies->host_memory({3, 2}, torch::kFloat64);
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->sizes(), (std::vector<std::int64_t>{3, 2}));
    EXPECT_EQ(memory->scalar_type(), torch::kFloat64);
    EXPECT_TRUE(memory->is_contiguous());

    const torch::Tensor values = torch::arange(6, torch::kFloat64).view({3, 2});
    EXPECT_TRUE(copies->to_device(values)->is_same(values));
    auto arriving = copies->to_host(values);
    ASSERT_TRUE(arriving);
    EXPECT_TRUE(arriving->is_here());
    EXPECT_TRUE(arriving->values.is_same(values));
    EXPECT_TRUE(arriving->wait());

    auto copied = copies->to_host(values, *memory);
    ASSERT_TRUE(copied && copied->wait());
    EXPECT_TRUE(copied->values.is_same(*memory));
    EXPECT_TRUE(torch::equal(*memory, values));
  }
}

// Memory is let go as soon as the calls allow, and so given out again while copies are under way.
TEST(DeviceCopies, OnAcceleratorsManyAtOnceBringTheRightValues) {
  const auto accelerator = find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  const torch::Device device = *accelerator;
  for (const bool overlaps : {true, false}) {
    const auto copies = DeviceCopies::create(device, overlaps);
    ASSERT_TRUE(copies) << copies.error().message;
    const torch::Tensor identity = torch::eye(1024, torch::device(device));
    std::deque<std::pair<double, DeviceCopies::Arriving>> under_way;
    const auto check = [&] {
      ASSERT_TRUE(under_way.front().second.wait());
      EXPECT_TRUE(under_way.front().second.values.eq(under_way.front().first).all().item<bool>());
      under_way.pop_front();
    };
    for (int i = 0; i < 200; ++i) {
      torch::Tensor host = *copies->host_memory({1024, 1024}, torch::kFloat32);
      EXPECT_EQ(host.is_pinned(), overlaps);
      host.fill_(i);
      torch::Tensor values = *copies->to_device(host);
      EXPECT_EQ(values.device(), device);
      host = torch::Tensor();
      for (int pass = 0; pass < 4; ++pass) {  // keeps the device behind this thread
        values = torch::matmul(values, identity);
      }
      values = values + 1;
      auto arriving = copies->to_host(values);
      ASSERT_TRUE(arriving) << arriving.error().message;
      EXPECT_EQ(arriving->is_here(), !overlaps);
      under_way.emplace_back(i + 1, std::move(*arriving));
      if (under_way.size() > 3) {
        check();
      }
    }
    while (!under_way.empty()) {
      check();
    }
  }
}

}  // namespace
}  // namespace motley::nn
