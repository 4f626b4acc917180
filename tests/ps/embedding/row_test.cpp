// The parts that a sparse table is made of, each against something plainer: the index against a map, the batch against
// a brute-force grouping, the optimizers against PyTorch's figures and closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "motley/base/random.h"
#include "motley/ps/embedding/row_optimizer.h"
#include "motley/ps/embedding/row_partition.h"
#include "motley/ps/protocol/row_index.h"

namespace motley::ps {
namespace {

using testing::FloatNear;
using testing::Pointwise;

TEST(RowIndex, FollowsAMapThroughInsertionsAndRemovals) {
  Random random(1);
  RowIndex index;
  std::unordered_map<std::uint64_t, std::uint32_t> map;
  for (int turn = 0; turn < 60'000; ++turn) {
    // Grows, shrinks, grows; ids collide in their low bits, zero and the largest id are among them.
    const std::uint64_t id = random.below(3) == 0 ? random.below(4) - 1 : random.below(3000) << 40;
    const std::uint64_t hash = hash_id(id);
    const auto known = map.find(id);
    ASSERT_EQ(index.find(id, hash), known == map.end() ? RowIndex::kNone : known->second) << id;
    const bool wants_it = random.uniform() < ((turn / 10'000) % 2 == 0 ? 0.7 : 0.3);
    if (wants_it && known == map.end()) {
      const auto slot = static_cast<std::uint32_t>(turn);
      index.insert(id, hash, slot);
      map[id] = slot;
    } else if (!wants_it && known != map.end()) {
      index.erase(id, hash);
      map.erase(id);
    }
    ASSERT_EQ(index.size(), map.size());
  }
  for (const auto& [id, slot] : map) EXPECT_EQ(index.find(id, hash_id(id)), slot);
}

TEST(RowBatch, GroupsByPartitionAndMergesEqualIds) {
  Random random(2);
  RowBatch batch;
  for (const std::size_t count : {0U, 1U, 7U, 500U}) {
    std::vector<std::uint64_t> ids(count);
    for (auto& id : ids) id = random.below(count / 2 + 1);
    batch.group(ids, 3);
    batch.merge();
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> positions;
    for (std::uint32_t i = 0; i < count; ++i) positions[ids[i]].push_back(i);
    std::size_t seen = 0;
    for (std::size_t p = 0; p < 8; ++p) {
      for (const RowBatch::Item& item : batch.of(p)) {
        EXPECT_EQ(hash_id(item.id) >> 61, p);
        std::vector<std::uint32_t> chain;
        for (std::uint32_t at = item.first; at != RowBatch::kEnd; at = batch.next(at)) chain.push_back(at);
        EXPECT_EQ(chain, positions[item.id]);
        EXPECT_EQ(item.last, chain.back());
        ++seen;
      }
    }
    EXPECT_EQ(seen, positions.size());
  }
}

TEST(RowOptimizer, AdamMatchesPyTorch) {
  RowOptimizer adam{.kind = RowOptimizer::Kind::kAdam, .learning_rate = 0.1F};
  std::vector<float> row = {0.5F, -1, 2, 0.25F};
  row.resize(4 + state_floats(adam.kind, 4));
  const float gradients[3][4] = {{1, -2, 0.5F, 0}, {0.5F, 1, -0.25F, 3}, {-1.5F, 0.125F, 0.75F, 1}};
  const std::vector<float> expected[3] = {{0.4F, -0.9F, 1.9F, 0.25F},
                                          {0.306782F, -0.8733664F, 1.8733662F, 0.1755863F},
                                          {0.3149797F, -0.8563793F, 1.8098342F, 0.1008087F}};
  for (int step = 0; step < 3; ++step) {
    update_row(adam, gradients[step], row.data());
    EXPECT_THAT(std::vector<float>(row.begin(), row.begin() + 4), Pointwise(FloatNear(2e-6F), expected[step]));
  }
}

TEST(RowOptimizer, AdagradOfOneWeightMatchesPyTorch) {
  RowOptimizer adagrad{.kind = RowOptimizer::Kind::kAdagrad, .learning_rate = 0.1F};
  float row[2] = {0.5F, 0};
  const float gradients[3] = {2, -0.5F, 1};
  const float expected[3] = {0.4F, 0.4242536F, 0.38061F};
  for (int step = 0; step < 3; ++step) {
    update_row(adagrad, std::span(&gradients[step], 1), row);
    EXPECT_NEAR(row[0], expected[step], 1e-6F);
  }
}

TEST(RowOptimizer, AdagradIsRowWise) {
  RowOptimizer adagrad{.kind = RowOptimizer::Kind::kAdagrad, .learning_rate = 1};
  std::vector<float> row(21 + 1);
  std::vector<float> gradient(21);
  std::iota(gradient.begin(), gradient.end(), 1.0F);  // squares add up to 21 * 22 * 43 / 6 = 3311
  update_row(adagrad, gradient, row.data());
  EXPECT_FLOAT_EQ(row[21], 3311.0F / 21);
  EXPECT_FLOAT_EQ(row[4], -5 / std::sqrt(3311.0F / 21));
}

TEST(RowOptimizer, InstructionSetsAgreeBitwise) {
  Random random(3);
  for (const auto kind : {RowOptimizer::Kind::kSgd, RowOptimizer::Kind::kAdagrad, RowOptimizer::Kind::kAdam}) {
    for (const std::size_t dimension : {1U, 5U, 16U, 33U, 128U}) {
      std::vector<float> start(dimension + state_floats(kind, dimension));
      initialize_row({RowInitializer::Kind::kNormal, 1, 9}, dimension, dimension, start);
      auto portable = start;
      auto best = start;
      for (int step = 0; step < 4; ++step) {
        std::vector<float> gradient(dimension);
        for (float& g : gradient) g = static_cast<float>(random.normal());
        update_row({.kind = kind}, gradient, portable.data(), kernels::Instructions::kPortable);
        update_row({.kind = kind}, gradient, best.data());
      }
      EXPECT_EQ(portable, best) << to_string(kind) << " " << dimension;
    }
  }
}

TEST(RowInitializer, FollowsTheDistributionAndLeavesTheStateAtZero) {
  const std::size_t dimension = 20'000;
  std::vector<float> row(dimension + 1, 5.0F);
  const auto moments = [&] {
    double sum = 0;
    double squares = 0;
    for (std::size_t e = 0; e < dimension; ++e) {
      sum += row[e];
      squares += row[e] * row[e];
    }
    return std::pair(sum / dimension, squares / dimension);
  };
  initialize_row({RowInitializer::Kind::kUniform, 0.3F, 1}, 5, dimension, row);
  EXPECT_NEAR(moments().first, 0, 0.01);
  EXPECT_NEAR(moments().second, 0.03, 0.001);  // scale^2 / 3
  EXPECT_LE(*std::max_element(row.begin(), row.end()), 0.3F);
  EXPECT_EQ(row[dimension], 0);
  initialize_row({RowInitializer::Kind::kNormal, 0.3F, 1}, 5, dimension, row);
  EXPECT_NEAR(moments().first, 0, 0.01);
  EXPECT_NEAR(moments().second, 0.09, 0.003);
  std::vector<float> other(dimension + 1);
  initialize_row({RowInitializer::Kind::kNormal, 0.3F, 1}, 6, dimension, other);
  EXPECT_NE(row, other);
}

}  // namespace
}  // namespace motley::ps
