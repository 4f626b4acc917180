// The ledger: every sample exactly once, over random splits, joins, leaves, crashes and roll-backs; and that the audit
// sees each way in which this could be violated.
#include "motley/data/local/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "motley/base/random.h"

namespace motley::data {
namespace {

// A random split of the window among the workers; some get nothing.
std::vector<std::uint32_t> random_shares(Random& random, std::uint32_t window, std::size_t workers) {
  std::vector<std::uint32_t> shares(workers, 0);
  for (std::size_t i = 0; i + 1 < workers; ++i) {
    shares[i] = static_cast<std::uint32_t>(random.below(window + 1));
    window -= shares[i];
  }
  shares.back() = window;
  return shares;
}

struct Worker {
  UseCounts counts;
};

UseCounts merged(const std::vector<Worker>& workers, std::uint32_t size, std::uint64_t epoch) {
  UseCounts sum(size, epoch);
  for (const Worker& worker : workers) {
    EXPECT_TRUE(sum.merge(worker.counts));
  }
  return sum;
}

TEST(Ledger, EverySampleOnceOverSplitsJoinsLeavesAndCrashes) {
  Random random(11);
  int crashes = 0, epochs = 0;
  for (int round = 0; round < 150; ++round) {
    const auto size = static_cast<std::uint32_t>(1 + random.below(300));
    const auto batch = static_cast<std::uint32_t>(1 + random.below(80));
    auto ledger = Ledger::open({random.next(), 0, 0, size});
    ASSERT_TRUE(ledger);
    // What one reader of all committed steps would have seen: epoch -> times each sample was used.
    std::map<std::uint64_t, std::vector<int>> used;
    std::map<std::uint64_t, std::vector<int>> used_saved;
    LedgerState saved = ledger->state();
    std::string counts_saved = UseCounts(size, 0).serialise();
    std::vector<Worker> workers(1 + random.below(5), {UseCounts(size, 0)});
    for (int step = 0; step < 60; ++step) {
      const Range window = ledger->next(batch);
      ASSERT_GT(window.size(), 0U);
      const std::uint64_t epoch = ledger->state().epoch;
      auto& seen = used.try_emplace(epoch, std::vector<int>(size, 0)).first->second;
      const auto use = [&](std::size_t worker, Range part) {
        workers[worker].counts.record(ledger->samples(part));
        for (const std::uint32_t sample : ledger->samples(part)) {
          ++seen[sample];
        }
      };
      if (random.below(2) == 0) {
        const auto shares = random_shares(random, window.size(), workers.size());
        for (std::size_t rank = 0; rank < workers.size(); ++rank) {
          use(rank, part_of(window, shares, static_cast<int>(rank)));
        }
      } else {
        const PullPlan plan(window, static_cast<std::uint32_t>(1 + random.below(20)));
        for (std::uint32_t shard = 0; shard < plan.shards(); ++shard) {
          use(random.below(workers.size()), plan.shard(shard));
        }
      }
      if (random.below(8) == 0) {
        // A crash in the middle of the step: all state goes back to the checkpoint, with another number of workers.
        ++crashes;
        ledger = Ledger::open(saved);
        ASSERT_TRUE(ledger);
        used = used_saved;
        workers.assign(1 + random.below(5), {UseCounts(size, saved.epoch)});
        workers[0].counts = *UseCounts::parse(counts_saved);
        continue;
      }
      ASSERT_TRUE(ledger->commit(window));
      const UseCounts sum = merged(workers, size, epoch);
      ASSERT_EQ(sum.not_used_exactly_once(ledger->state()).value(), 0U);
      if (ledger->state().epoch != epoch) {
        ++epochs;
        ASSERT_EQ(seen, std::vector<int>(size, 1));
        for (Worker& worker : workers) {
          worker.counts.start(ledger->state().epoch);
        }
      }
      if (random.below(4) == 0) {
        saved = ledger->state();
        used_saved = used;
        counts_saved = merged(workers, size, saved.epoch).serialise();
      }
      if (random.below(5) == 0) {
        // Workers join or leave between steps: the sum of the counts goes to one of the new ones.
        const UseCounts all = merged(workers, size, ledger->state().epoch);
        workers.assign(1 + random.below(5), {UseCounts(size, ledger->state().epoch)});
        workers[0].counts = all;
      }
    }
  }
  EXPECT_GT(crashes, 500);
  EXPECT_GT(epochs, 500);
}

TEST(Ledger, AuditSeesLossDoublingAndForeignSamples) {
  auto ledger = Ledger::open({3, 0, 0, 100});
  const Range window = ledger->next(40);
  UseCounts counts(100, 0);
  counts.record(ledger->samples({0, 39}));
  counts.record(ledger->samples({10, 12}));
  counts.record(ledger->samples({60, 61}));
  ASSERT_TRUE(ledger->commit(window));
  EXPECT_EQ(counts.not_used_exactly_once(ledger->state()).value(), 1U + 2U + 1U);
  EXPECT_FALSE(counts.not_used_exactly_once({3, 2, 0, 100}));
  EXPECT_FALSE(counts.not_used_exactly_once({3, 0, 0, 99}));
}

TEST(Ledger, EpochsDifferAndRepeatFromTheSeed) {
  auto first = Ledger::open({3, 0, 0, 50});
  const std::vector<std::uint32_t> epoch0(first->samples({0, 50}).begin(), first->samples({0, 50}).end());
  ASSERT_TRUE(first->commit({0, 50}));
  EXPECT_EQ(first->state(), (LedgerState{3, 1, 0, 50}));
  const auto epoch1 = first->samples({0, 50});
  EXPECT_THAT(epoch0, testing::Not(testing::ElementsAreArray(epoch1)));
  const auto again = Ledger::open({3, 1, 0, 50});
  EXPECT_THAT(again->samples({0, 50}), testing::ElementsAreArray(epoch1));
}

TEST(Ledger, RefusesStepsThatWereLostOrDoneTwice) {
  auto ledger = Ledger::open({3, 0, 0, 50});
  const Range window = ledger->next(20);
  EXPECT_TRUE(ledger->commit(window));
  EXPECT_FALSE(ledger->commit(window));
  EXPECT_FALSE(ledger->commit({25, 45}));
  EXPECT_FALSE(ledger->commit({20, 51}));
  EXPECT_FALSE(Ledger::open({3, 0, 50, 50}));
  EXPECT_FALSE(Ledger::open({3, 0, 0, 0}));
}

TEST(Ledger, ShortLastWindowIsKeptOrSkipped) {
  auto ledger = Ledger::open({3, 0, 40, 50});
  EXPECT_EQ(ledger->next(20), (Range{40, 50}));
  EXPECT_TRUE(ledger->skip_short_window(20).value());
  EXPECT_EQ(ledger->state(), (LedgerState{3, 1, 0, 50}));
  EXPECT_FALSE(ledger->skip_short_window(20).value());
  EXPECT_FALSE(ledger->skip_short_window(51));
}

TEST(UseCounts, DamagedBytesAreRefused) {
  UseCounts counts(5000, 4);
  counts.record(std::vector<std::uint32_t>{1, 2, 2, 4999});
  const std::string good = counts.serialise();
  const auto back = UseCounts::parse(good);
  ASSERT_TRUE(back);
  EXPECT_THAT(back->counts(), testing::ElementsAreArray(counts.counts()));
  EXPECT_EQ(back->epoch(), 4U);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(UseCounts::parse(std::string_view(good).substr(0, length)));
  }
  std::string huge = good;
  huge[7] = '\x7f';
  EXPECT_FALSE(UseCounts::parse(huge));
}

TEST(PullPlan, ShardsTileTheWindow) {
  for (std::uint32_t size : {1U, 7U, 256U}) {
    for (std::uint32_t shards : {1U, 3U, 16U, 300U}) {
      const PullPlan plan({100, 100 + size}, shards);
      std::uint32_t at = 100;
      for (std::uint32_t i = 0; i < plan.shards(); ++i) {
        EXPECT_EQ(plan.shard(i).begin, at);
        EXPECT_GE(plan.shard(i).size(), size / plan.shards());
        EXPECT_LE(plan.shard(i).size(), size / plan.shards() + 1);
        at = plan.shard(i).end;
      }
      EXPECT_EQ(at, 100 + size);
    }
  }
}

}  // namespace
}  // namespace motley::data
