// Rows on a device against rows in a map that are moved one by one, as the servers do.
#include "motley/train/step/device_rows.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>

#include "motley/base/random.h"
#include "motley/ps/embedding/row_optimizer.h"
#include "tests/nn/accelerator.h"

namespace motley::train {
namespace {

using ps::RowOptimizer;
using ::testing::HasSubstr;

constexpr std::size_t kDimension = 7, kCapacity = 40;
using Record = std::vector<float>;

std::vector<float> random_floats(Random& random, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
  return values;
}

void expect_near(std::span<const float> found, std::span<const float> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << i;
  }
}

// Rows go up and down at random, and are read and moved between, many of them several times in a batch.
void compare_with_a_map(torch::Device device, RowOptimizer::Kind kind) {
  RowOptimizer optimizer;
  optimizer.kind = kind;
  optimizer.learning_rate = 0.05F;
  const auto rows = DeviceRows::create(device, kDimension, optimizer, kCapacity);
  ASSERT_TRUE(rows) << rows.error().message;
  const std::size_t width = kDimension + ps::state_floats(kind, kDimension);
  ASSERT_EQ((*rows)->record_floats(), width);
  std::map<std::uint64_t, Record> held;
  Random random(static_cast<std::uint64_t>(kind));
  for (int round = 0; round < 60; ++round) {
    std::vector<std::uint64_t> fresh;
    std::vector<float> records;
    for (std::uint64_t more = random.below(8); more > 0 && held.size() < kCapacity; --more) {
      const std::uint64_t id = random.next();
      Record record = random_floats(random, kDimension);
      record.resize(width, 0);
      fresh.push_back(id);
      records.insert(records.end(), record.begin(), record.end());
      held.emplace(id, std::move(record));
    }
    ASSERT_TRUE((*rows)->insert(fresh, records));
    ASSERT_EQ((*rows)->size(), held.size());
    if (held.empty()) continue;

    std::vector<std::uint64_t> ids;
    for (int i = 0; i < 30; ++i) {
      ids.push_back(std::next(held.begin(), static_cast<std::ptrdiff_t>(random.below(held.size())))->first);
    }
    const std::vector<float> gradients = random_floats(random, ids.size() * kDimension);
    ASSERT_TRUE((*rows)->push(ids, gradients));
    std::map<std::uint64_t, Record> sums;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Record& sum = sums.try_emplace(ids[i], kDimension, 0.0F).first->second;
      std::transform(sum.begin(), sum.end(), &gradients[i * kDimension], sum.begin(), std::plus());
    }
    for (const auto& [id, sum] : sums) ps::update_row(optimizer, sum, held[id].data());
    std::vector<float> found(ids.size() * kDimension);
    ASSERT_TRUE((*rows)->pull(ids, found));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expect_near(std::span(found).subspan(i * kDimension, kDimension), std::span(held[ids[i]]).first(kDimension));
    }

    std::vector<std::uint64_t> leaving;
    for (const auto& [id, record] : held) {
      if (random.below(5) == 0) leaving.push_back(id);
    }
    std::vector<float> taken(leaving.size() * width);
    ASSERT_TRUE((*rows)->evict(leaving, taken));
    for (std::size_t i = 0; i < leaving.size(); ++i) {
      expect_near(std::span(taken).subspan(i * width, width), held[leaving[i]]);
      held.erase(leaving[i]);
      EXPECT_FALSE((*rows)->holds(leaving[i]));
    }
  }
}

constexpr RowOptimizer::Kind kKinds[] = {RowOptimizer::Kind::kSgd, RowOptimizer::Kind::kAdagrad,
                                         RowOptimizer::Kind::kAdam};

TEST(DeviceRows, MoveAsRowsOfServersDo) {
  for (const RowOptimizer::Kind kind : kKinds) compare_with_a_map(torch::kCPU, kind);
}

TEST(DeviceRows, OnAcceleratorsMoveAsRowsOfServersDo) {
  const auto accelerator = nn::find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  for (const RowOptimizer::Kind kind : kKinds) compare_with_a_map(*accelerator, kind);
}

TEST(DeviceRows, ChangeNothingWhereTheyRefuse) {
  const auto rows = DeviceRows::create(torch::kCPU, 2, {.kind = RowOptimizer::Kind::kSgd}, 3);
  ASSERT_TRUE(rows);
  ASSERT_TRUE((*rows)->insert(std::vector<std::uint64_t>{5, 6}, std::vector<float>{1, 2, 3, 4}));
  const auto message = [](const Status& status) { return status ? std::string("accepted") : status.error().message; };
  EXPECT_THAT(message((*rows)->insert(std::vector<std::uint64_t>{7, 5}, std::vector<float>(4))), HasSubstr("2 rows"));
  EXPECT_THAT(message((*rows)->insert(std::vector<std::uint64_t>{5}, std::vector<float>(2))), HasSubstr("row 5 is on"));
  EXPECT_THAT(message((*rows)->push(std::vector<std::uint64_t>{6, 9}, std::vector<float>(4, 1))), HasSubstr("row 9"));
  std::vector<float> records(4);
  EXPECT_THAT(message((*rows)->evict(std::vector<std::uint64_t>{6, 9}, records)), HasSubstr("row 9"));
  ASSERT_TRUE((*rows)->pull(std::vector<std::uint64_t>{6, 5}, records));
  EXPECT_EQ(records, (std::vector<float>{3, 4, 1, 2}));
  EXPECT_EQ((*rows)->size(), 2U);
}

}  // namespace
}  // namespace motley::train
