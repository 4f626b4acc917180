// Rows on a device against a cache of the host of the same capacity, and against gradients that are summed one by one.
#include "motley/train/step/device_rows.h"

#include <gmock/gmock.h>

#include <map>

#include "motley/base/random.h"
#include "motley/ps/client/sparse_cache.h"
#include "tests/nn/accelerator.h"

namespace motley::train {
namespace {

using Ids = std::vector<std::uint64_t>;
using Rows = std::vector<float>;

constexpr std::size_t kDimension = 5;

Rows values(const torch::Tensor& tensor) {
  const torch::Tensor here = tensor.cpu().contiguous();
  return {here.data_ptr<float>(), here.data_ptr<float>() + here.numel()};
}

// Some often, most seldom; ids of a batch may be equal.
Ids random_batch(Random& random) {
  Ids ids(1 + random.below(40));
  for (std::uint64_t& id : ids) id = random.below(2) == 0 ? random.below(6) : random.below(200);
  return ids;
}

// A row as it is after a step, told apart from all others.
float make_value(std::uint64_t id, std::int64_t after, std::size_t at) {
  return static_cast<float>(id) + 1000.0F * static_cast<float>(after) + 0.125F * static_cast<float>(at);
}

Rows rows_after(const Ids& ids, std::int64_t after) {
  Rows rows;
  for (const std::uint64_t id : ids) {
    for (std::size_t i = 0; i < kDimension; ++i) rows.push_back(make_value(id, after, i));
  }
  return rows;
}

torch::Tensor answers_for(const DeviceRows& rows, const DeviceRows::Batch& batch, std::int64_t after) {
  torch::Tensor memory = rows.memory_for(batch).value();
  std::ranges::copy(rows_after(batch.missing, after), memory.data_ptr<float>());
  return memory;
}

// The same rows are found, asked for and given, bit by bit, with room for many rows and for a few.
void compare_with_a_cache(torch::Device device) {
  for (const std::size_t capacity : {1, 7, 30, 500}) {
    for (const std::int64_t staleness : {0, 1, 9}) {
      const auto on_device = DeviceRows::create(device, kDimension, capacity, staleness);
      ASSERT_TRUE(on_device) << on_device.error().message;
      ps::SparseCache cache(kDimension, capacity, staleness);
      Random random(capacity + static_cast<std::size_t>(staleness));
      for (std::int64_t step = 1; step <= 40; ++step) {
        const Ids ids = random_batch(random);
        Rows expected(ids.size() * kDimension);
        const ps::SparseCache::Missing missing = cache.take(ids, step, expected);
        auto batch = (*on_device)->take(ids, step);
        ASSERT_TRUE(batch) << batch.error().message;
        ASSERT_EQ(batch->missing, missing.ids);
        ASSERT_EQ(batch->found, missing.found);
        const std::int64_t after = step - static_cast<std::int64_t>(random.below(2));
        cache.put(missing, rows_after(missing.ids, after), after, expected);
        ASSERT_TRUE((*on_device)->send(*batch, answers_for(**on_device, *batch, after), after));
        const auto found = (*on_device)->complete(*batch);
        ASSERT_TRUE(found) << found.error().message;
        ASSERT_EQ(values(*found), expected) << "step " << step << ", room for " << capacity;
      }
    }
  }
}

void expect_sums(torch::Device device) {
  const auto rows = DeviceRows::create(device, kDimension, 0, 0);
  ASSERT_TRUE(rows) << rows.error().message;
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    const Ids ids = random_batch(random);
    // Their sums are exact in any order.
    Rows gradients(ids.size() * kDimension);
    for (float& gradient : gradients) gradient = static_cast<float>(random.below(64)) / 8 - 4;
    std::map<std::uint64_t, Rows> expected;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      expected.try_emplace(ids[i / kDimension], kDimension, 0.0F).first->second[i % kDimension] += gradients[i];
    }
    const torch::Tensor given = torch::from_blob(gradients.data(), {std::ssize(ids), std::int64_t{kDimension}});
    auto sums = (*rows)->sum(ids, given.to(device));
    ASSERT_TRUE(sums) << sums.error().message;
    ASSERT_TRUE(sums->values.wait());
    ASSERT_EQ(sums->ids.size(), expected.size());
    const Rows found = values(sums->values.values);
    for (std::size_t i = 0; i < sums->ids.size(); ++i) {
      const auto begin = found.begin() + static_cast<std::ptrdiff_t>(i * kDimension);
      EXPECT_EQ(Rows(begin, begin + kDimension), expected.at(sums->ids[i]));
    }
  }
}

// What is asked for past the rows that are kept leaves them as they are.
void expect_that_exact_rows_keep_nothing(torch::Device device) {
  const auto rows = DeviceRows::create(device, kDimension, 8, 5);
  ASSERT_TRUE(rows) << rows.error().message;
  const auto look_up = [&](const Ids& ids, std::optional<std::int64_t> after, std::int64_t as_after) {
    auto batch = (*rows)->take(ids, after).value();
    EXPECT_TRUE((*rows)->send(batch, answers_for(**rows, batch, as_after), after));
    return values((*rows)->complete(batch).value());
  };
  EXPECT_EQ(look_up({3, 4, 3}, 1, 1), rows_after({3, 4, 3}, 1));
  EXPECT_EQ(look_up({4, 3, 5}, std::nullopt, 2), rows_after({4, 3, 5}, 2));
  EXPECT_EQ(look_up({4, 3}, 3, 3), rows_after({4, 3}, 1));
  EXPECT_EQ(look_up({5}, 3, 3), rows_after({5}, 3));
  EXPECT_EQ(look_up({4}, 7, 7), rows_after({4}, 7));
}

TEST(DeviceRows, GiveWhatACacheOfTheSameCapacityGives) {
  compare_with_a_cache(torch::kCPU);
}

TEST(DeviceRows, SumGradients) {
  expect_sums(torch::kCPU);
}

TEST(DeviceRows, KeepNothingOfExactRows) {
  expect_that_exact_rows_keep_nothing(torch::kCPU);
}

TEST(DeviceRows, OnAcceleratorsDoTheSame) {
  const auto accelerator = nn::find_test_accelerator();
  if (!accelerator) GTEST_SKIP() << "needs an accelerator that PyTorch can use";
  compare_with_a_cache(*accelerator);
  expect_sums(*accelerator);
  expect_that_exact_rows_keep_nothing(*accelerator);
}

}  // namespace
}  // namespace motley::train
