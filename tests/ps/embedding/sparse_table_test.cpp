// Tables in memory, against a plain map: any mix of pulls and pushes, duplicates, quotas, and several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/ps/embedding/sparse_support.h"

namespace motley::ps {
namespace {

using testing::HasSubstr;
using Kind = RowOptimizer::Kind;

class SparseTableInMemory : public testing::TestWithParam<Kind> {};

TEST_P(SparseTableInMemory, GivesWhatAMapGives) {
  const SparseTableSpec spec = small_spec(GetParam(), 5);
  auto table = SparseTable::create(spec).value();
  ReferenceTable reference(spec);
  Random random(11);
  for (int turn = 0; turn < 60; ++turn) {
    const Ids ids = random_ids(random, random.below(300), 2000);
    if (random.below(2) == 0) {
      const Floats gradients = random_floats(random, ids.size() * 5);
      ASSERT_TRUE(table->push(ids, gradients));
      reference.push(ids, gradients);
    }
    const Floats rows = pull_all(*table, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::vector<double> expected = reference.row(ids[i]);
      for (std::size_t e = 0; e < 5; ++e) ASSERT_NEAR(rows[i * 5 + e], expected[e], 2e-5);
    }
  }
  EXPECT_EQ(table->statistics().rows, reference.rows());
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SparseTableInMemory, testing::Values(Kind::kSgd, Kind::kAdagrad, Kind::kAdam),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(SparseTable, BeginsRowsAlikeOnAnyShard) {
  const SparseTableSpec spec = small_spec(Kind::kSgd, 8);
  auto one = SparseTable::create(spec).value();
  auto other = SparseTable::create(spec).value();
  ASSERT_TRUE(other->push(Ids{1, 2, 3}, Floats(24, 1.0F)));
  EXPECT_EQ(pull_all(*one, {77, 1'000'000'007}), pull_all(*other, {77, 1'000'000'007}));
  EXPECT_EQ(one->statistics().hot_rows, 0U) << "a pull alone makes no row";
}

TEST(SparseTable, SumsDuplicatesBeforeTheOptimizerRunsOnce) {
  SparseTableSpec spec = small_spec(Kind::kAdagrad, 2);
  auto table = SparseTable::create(spec).value();
  const Floats before = pull_all(*table, {9});
  ASSERT_TRUE(table->push(Ids{9, 4, 9, 9}, Floats{1, 0, 5, 5, 2, 0, -1, 2}));
  const Floats after = pull_all(*table, {9});
  // The sum is (2, 2): its mean square is 4, so each weight moves by 0.1 * 2 / 2.
  EXPECT_NEAR(after[0], before[0] - 0.1F, 1e-6F);
  EXPECT_NEAR(after[1], before[1] - 0.1F, 1e-6F);
}

TEST(SparseTable, FollowsTheLearningRate) {
  auto table = SparseTable::create(small_spec(Kind::kSgd, 1)).value();
  const float before = pull_all(*table, {1})[0];
  table->set_learning_rate(0.5F);
  ASSERT_TRUE(table->push(Ids{1}, Floats{1}));
  EXPECT_FLOAT_EQ(pull_all(*table, {1})[0], before - 0.5F);
}

TEST(SparseTable, RefusesWhatExceedsAQuotaAndAppliesNothingOfIt) {
  for (const bool of_memory : {false, true}) {
    SparseTableSpec spec = small_spec(Kind::kAdagrad, 4);
    if (!of_memory) spec.max_rows = 100;
    if (of_memory) spec.memory_bytes = 100 * RowShape{4, 5}.resident_bytes();
    auto table = SparseTable::create(spec).value();
    Ids ids(90);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
    ASSERT_TRUE(table->push(ids, Floats(360, 1.0F)));
    const Floats before = pull_all(*table, ids);
    Ids too_many(50);
    for (std::size_t i = 0; i < too_many.size(); ++i) too_many[i] = 60 + i;
    const Status refused = table->push(too_many, Floats(200, 1.0F));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
    EXPECT_THAT(refused.error().message, HasSubstr("'test'"));
    EXPECT_THAT(refused.error().message, HasSubstr(of_memory ? "memory_bytes" : "max_rows"));
    EXPECT_EQ(pull_all(*table, ids), before);
    EXPECT_EQ(table->statistics().rows, 90U);
    EXPECT_EQ(table->statistics().hot_rows, 90U);
    // What fits is still accepted: rows that exist, and new ones up to the quota.
    const Ids fits = {5, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104};
    EXPECT_TRUE(table->push(fits, Floats(44, 1.0F)));
    EXPECT_FALSE(table->push(Ids{200}, Floats(4, 1.0F)));
  }
}

TEST(SparseTable, NamesTheFieldThatCannotBe) {
  const auto error_message = [](auto change) {
    SparseTableSpec spec = small_spec(Kind::kAdam, 4);
    change(spec);
    const auto table = SparseTable::create(spec);
    return table ? std::string() : table.error().message;
  };
  EXPECT_THAT(error_message([](auto& spec) { spec.dimension = 0; }), HasSubstr("dimension is 0"));
  EXPECT_THAT(error_message([](auto& spec) { spec.optimizer.beta2 = 1; }), HasSubstr("beta2 is 1"));
  EXPECT_THAT(error_message([](auto& spec) { spec.optimizer.epsilon = 0; }), HasSubstr("epsilon is 0"));
  EXPECT_THAT(error_message([](auto& spec) { spec.optimizer.learning_rate = -1; }), HasSubstr("learning_rate is -1"));
  EXPECT_THAT(error_message([](auto& spec) {
                spec.cold_folder = "anywhere";
                spec.memory_bytes = 10;
              }),
              HasSubstr("memory_bytes is 10"));
  auto table = SparseTable::create(small_spec(Kind::kSgd, 4)).value();
  EXPECT_EQ(table->push(Ids{1, 2}, Floats(7)).error().code, ErrorCode::kInvalidInput);
}

// Integers add up exactly in any order: no push is lost and none is applied twice or in part.
TEST(SparseTable, LosesNothingAmongThreads) {
  SparseTableSpec spec = small_spec(Kind::kSgd, 3);
  spec.optimizer.learning_rate = 1;
  spec.initializer.scale = 0;
  auto table = SparseTable::create(spec).value();
  constexpr int kThreads = 4;
  constexpr std::uint64_t kIds = 500;
  std::vector<std::vector<int>> pushed(kThreads, std::vector<int>(kIds));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(100 + t);
      for (int turn = 0; turn < 50; ++turn) {
        Ids ids(200);
        for (auto& id : ids) ++pushed[t][id = random.below(kIds)];
        EXPECT_TRUE(table->push(ids, Floats(600, -1.0F)));
        pull_all(*table, ids);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::uint64_t id = 0; id < kIds; ++id) {
    int total = 0;
    for (const auto& counts : pushed) total += counts[id];
    EXPECT_EQ(pull_all(*table, {id}), Floats(3, static_cast<float>(total)));
  }
}

}  // namespace
}  // namespace motley::ps
