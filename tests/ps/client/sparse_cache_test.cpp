// The worker's cache against a naive model that remembers when each row was last brought: what is asked for, and how
// old what comes out is.
#include "motley/ps/client/sparse_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "motley/base/random.h"

namespace motley::ps {
namespace {

using Ids = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

// A row says whose it is, and after which step it was so.
void fill(std::span<const std::uint64_t> ids, std::int64_t after, Floats& rows) {
  rows.clear();
  for (const std::uint64_t id : ids) {
    rows.push_back(static_cast<float>(id));
    rows.push_back(static_cast<float>(after));
  }
}

struct Batch {
  Ids ids;
  std::int64_t after = 0;
  Floats rows;
  SparseCache::Missing missing;
};

// Batches come one after the other, often the next before the last one is answered, and answers in any order. With
// room for all rows exactly those are asked for that the model lacks; with less, more.
void play(std::size_t capacity, std::int64_t steps, bool has_room) {
  SparseCache cache(2, capacity, steps);
  std::map<std::uint64_t, std::int64_t> brought;  // id -> after which step
  Random random(mix({capacity, static_cast<std::uint64_t>(steps)}));
  std::deque<Batch> under_way;
  std::int64_t oldest = 0;
  std::size_t found = 0;
  std::int64_t after = 0;
  const auto answer = [&](std::size_t index) {
    Batch& batch = under_way[index];
    Floats answers;
    fill(batch.missing.ids, batch.after, answers);
    cache.put(batch.missing, answers, batch.after, batch.rows);
    for (const std::uint64_t id : batch.missing.ids) {
      brought[id] = std::max(brought.try_emplace(id, batch.after).first->second, batch.after);
    }
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      ASSERT_EQ(batch.rows[2 * i], static_cast<float>(batch.ids[i]));
      const std::int64_t age = batch.after - static_cast<std::int64_t>(batch.rows[2 * i + 1]);
      ASSERT_LE(age, steps);
      oldest = std::max(oldest, age);
    }
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (int turn = 0; turn < 600; ++turn) {
    if (!under_way.empty() && (under_way.size() == 3 || random.below(2) == 0)) {
      answer(random.below(under_way.size()));
      continue;
    }
    after += static_cast<std::int64_t>(random.below(3));
    Batch& batch = under_way.emplace_back();
    batch.after = after;
    for (int i = 0; i < 40; ++i)
      batch.ids.push_back(random.below(10) == 0 ? 100 + random.below(300) : random.below(60));
    batch.rows.assign(batch.ids.size() * 2, -1);
    batch.missing = cache.take(batch.ids, after, batch.rows);

    std::set<std::uint64_t> lacking;
    for (const std::uint64_t id : batch.ids) {
      const auto known = brought.find(id);
      if (known == brought.end() || known->second < after - steps) lacking.insert(id);
    }
    const std::set<std::uint64_t> asked(batch.missing.ids.begin(), batch.missing.ids.end());
    ASSERT_EQ(asked.size(), batch.missing.ids.size()) << "each row is asked for once";
    if (has_room) {
      ASSERT_EQ(asked, lacking);
    } else {
      ASSERT_TRUE(std::ranges::includes(asked, lacking));
    }
    const std::size_t different = std::set(batch.ids.begin(), batch.ids.end()).size();
    ASSERT_EQ(batch.missing.found, different - asked.size());
    found += batch.missing.found;
  }
  EXPECT_EQ(oldest, has_room ? steps : oldest) << "the bound is made use of";
  EXPECT_GT(found, 0U);
}

TEST(SparseCache, AsksForExactlyWhatItLacksAndGivesNothingTooOld) {
  for (const std::int64_t steps : {0, 1, 4, 20}) play(1000, steps, true);
}

TEST(SparseCache, WhenSmallGivesNothingTooOldEither) {
  for (const std::int64_t steps : {1, 4, 20}) {
    for (const std::size_t capacity : {10, 50}) play(capacity, steps, false);
  }
}

// Rows that every batch needs stay, whatever passes through.
TEST(SparseCache, KeepsHotRows) {
  SparseCache cache(2, 40, 1000);
  Ids hot;
  for (std::uint64_t id = 0; id < 10; ++id) hot.push_back(id);
  std::size_t found = 0;
  for (std::int64_t step = 0; step < 100; ++step) {
    Ids ids = hot;
    for (std::uint64_t i = 0; i < 15; ++i) ids.push_back(1000 + static_cast<std::uint64_t>(step) * 15 + i);
    Floats rows(ids.size() * 2);
    Floats answers;
    const SparseCache::Missing missing = cache.take(ids, step, rows);
    fill(missing.ids, step, answers);
    cache.put(missing, answers, step, rows);
    found += missing.found;
  }
  EXPECT_EQ(found, 99U * hot.size());
}

// An answer that comes after a newer one leaves that in place.
TEST(SparseCache, KeepsTheNewerOfTwoAnswers) {
  SparseCache cache(2, 4, 1);
  Floats rows(2);
  Floats answer;
  const auto early = cache.take(Ids{7}, 3, rows);
  const auto late = cache.take(Ids{7}, 5, rows);
  fill(late.ids, 5, answer);
  cache.put(late, answer, 5, rows);
  fill(early.ids, 3, answer);
  cache.put(early, answer, 3, rows);
  EXPECT_EQ(rows[1], 3.0F) << "the batch itself gets what it asked for";
  EXPECT_TRUE(cache.take(Ids{7}, 6, rows).ids.empty());
  EXPECT_EQ(rows[1], 5.0F);
}

}  // namespace
}  // namespace motley::ps
