// The client's cache against a source that answers every pull with the step of its clock: the age of what comes out can
// be read off it.
#include "motley/exchange/sparse_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/server/sparse_support.h"

namespace motley::server {
namespace {

using exchange::RowSource;
using exchange::SparseCache;

class ClockSource final : public RowSource {
 public:
  Status pull(std::span<const std::uint64_t> ids, std::span<float> rows) override {
    if (broken) return fail(ErrorCode::kPeerLost, "the source is gone");
    EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size()) << "each row is asked for once";
    for (std::size_t i = 0; i < ids.size(); ++i) {
      rows[2 * i] = static_cast<float>(ids[i]);
      rows[2 * i + 1] = static_cast<float>(step);
    }
    pulled += ids.size();
    return {};
  }
  Status push(std::span<const std::uint64_t> ids, std::span<const float>) override {
    pushed += ids.size();
    return {};
  }
  std::int64_t step = 0;
  std::size_t pulled = 0;
  std::size_t pushed = 0;
  bool broken = false;
};

TEST(SparseCache, NeverGivesWhatIsTooOld) {
  for (const std::int64_t staleness : {0, 1, 4}) {
    ClockSource source;
    SparseCache cache(source, 2, 100, staleness);
    Random random(51);
    std::int64_t oldest = 0;
    std::size_t asked = 0;
    for (std::int64_t step = 0; step < 300; step += 1 + static_cast<std::int64_t>(random.below(2))) {
      source.step = step;
      cache.begin_step(step);
      for (int pull = 0; pull < 2; ++pull) {
        Ids ids(40);
        for (auto& id : ids) id = random.below(10) == 0 ? 100 + random.below(5000) : random.below(60);
        Floats rows(80);
        ASSERT_TRUE(cache.pull(ids, rows));
        asked += ids.size();
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ASSERT_EQ(rows[2 * i], static_cast<float>(ids[i]));
          const auto age = step - static_cast<std::int64_t>(rows[2 * i + 1]);
          ASSERT_LE(age, staleness);
          ASSERT_GE(age, 0);
          oldest = std::max(oldest, age);
        }
      }
    }
    EXPECT_EQ(oldest, staleness) << "the bound is made use of";
    EXPECT_EQ(cache.hits() + cache.misses(), asked);
    EXPECT_GE(cache.misses(), source.pulled);
    if (staleness == 4) {
      EXPECT_LT(source.pulled, asked / 2);
    }
  }
}

TEST(SparseCache, PassesGradientsThroughAndKeepsRowsForTheirTime) {
  SparseTableSpec spec = small_spec(RowOptimizer::Kind::kSgd, 2);
  auto table = SparseTable::create(spec).value();
  SparseCache cache(*table, 2, 10, 1);
  Floats first(2);
  Floats later(2);
  cache.begin_step(0);
  ASSERT_TRUE(cache.pull(Ids{3}, first));
  ASSERT_TRUE(cache.push(Ids{3}, Floats{1, 1}));
  EXPECT_EQ(pull_all(*table, {3})[0], first[0] - 0.1F);
  cache.begin_step(1);
  ASSERT_TRUE(cache.pull(Ids{3}, later));
  EXPECT_EQ(later, first);
  cache.begin_step(2);
  ASSERT_TRUE(cache.pull(Ids{3}, later));
  EXPECT_EQ(later, pull_all(*table, {3}));
}

TEST(SparseCache, PassesErrorsOnAndForgetsWhenTold) {
  ClockSource source;
  SparseCache cache(source, 2, 4, 10);
  Floats rows(2);
  ASSERT_TRUE(cache.pull(Ids{1}, rows));
  source.broken = true;
  ASSERT_TRUE(cache.pull(Ids{1}, rows));
  EXPECT_EQ(cache.pull(Ids{2}, rows).error().code, ErrorCode::kPeerLost);
  source.broken = false;
  source.step = 5;
  cache.clear();
  ASSERT_TRUE(cache.pull(Ids{1}, rows));
  EXPECT_EQ(rows[1], 5.0F);
  EXPECT_FALSE(cache.pull(Ids{1, 2}, rows));
}

}  // namespace
}  // namespace motley::server
