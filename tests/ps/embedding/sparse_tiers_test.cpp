// Tables larger than their memory: with budgets so small that rows come and go all the time, over a store in a map and
// over RocksDB, with threads, prefetches, and stores that fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <fstream>
#include <thread>

#include "motley/base/os/file.h"
#include "tests/no_threads.h"
#include "tests/ps/embedding/sparse_support.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Kind = RowOptimizer::Kind;

struct Tiered {
  explicit Tiered(const SparseTableSpec& spec)
      : table(SparseTable::create(spec, std::make_unique<MapStore>(store, SparseTable::make_shape(spec).record_bytes()))
                  .value()) {}
  std::shared_ptr<MapStoreControl> store = std::make_shared<MapStoreControl>();
  std::unique_ptr<SparseTable> table;
};

void expect_equal(SparseTable& table, const ReferenceTable& reference, const Ids& ids, double tolerance = 2e-5) {
  const std::size_t d = table.spec().dimension;
  const Floats rows = pull_all(table, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::vector<double> expected = reference.row(ids[i]);
    for (std::size_t e = 0; e < d; ++e) ASSERT_NEAR(rows[i * d + e], expected[e], tolerance) << "id " << ids[i];
  }
}

// Pulls and pushes at random; `range` ids.
void follow_reference(SparseTable& table, std::uint64_t seed, int turns, std::uint64_t range) {
  const std::size_t d = table.spec().dimension;
  ReferenceTable reference(table.spec());
  Random random(seed);
  for (int turn = 0; turn < turns; ++turn) {
    const Ids ids = random_ids(random, 1 + random.below(60), range);
    if (random.below(4) == 0) table.prefetch(random_ids(random, 40, range));
    if (random.below(3) > 0) {
      const Floats gradients = random_floats(random, ids.size() * d);
      ASSERT_TRUE(table.push(ids, gradients));
      reference.push(ids, gradients);
    } else {
      expect_equal(table, reference, ids);
    }
  }
  Ids all;
  for (std::uint64_t i = 0; i < range; ++i) all.push_back(i * 0x10001);
  expect_equal(table, reference, all);
  EXPECT_EQ(table.statistics().rows, reference.rows());
}

class SparseTiers : public testing::TestWithParam<Kind> {};

TEST_P(SparseTiers, GiveWhatAMapGives) {
  Tiered tiered(small_spec(GetParam(), 3, 160));
  follow_reference(*tiered.table, 21, 250, 1000);
  const SparseStatistics statistics = tiered.table->statistics();
  EXPECT_GT(statistics.counters.evictions, 1000U);
  EXPECT_LE(statistics.hot_rows, 160U);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SparseTiers, testing::Values(Kind::kSgd, Kind::kAdagrad, Kind::kAdam),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(SparseTiersOnDisk, GiveWhatAMapGives) {
#ifndef MOTLEY_HAS_ROCKSDB
  GTEST_SKIP() << "needs a build with RocksDB (librocksdb-dev)";
#endif
  TemporaryFolder folder;
  SparseTableSpec spec = small_spec(Kind::kAdagrad, 4, 200);
  spec.cold_folder = folder.path / "cold";
  for (int life = 0; life < 2; ++life) {  // the second finds what the first left, and removes it
    auto table = SparseTable::create(spec).value();
    follow_reference(*table, 22, 150, 1500);
    EXPECT_GT(table->statistics().counters.cold_writes, 1000U);
  }
}

TEST(SparseTiersWithoutThreads, AreRefused) {
  const SparseTableSpec spec = small_spec(Kind::kSgd, 4, 200);
  const auto create = [&] {
    return SparseTable::create(spec, std::make_unique<MapStore>(std::make_shared<MapStoreControl>(),
                                                                SparseTable::make_shape(spec).record_bytes()));
  };
  {
    const NoThreads none;
    const auto table = create();
    ASSERT_FALSE(table);
    EXPECT_EQ(table.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(table.error().message, HasSubstr("table 'test': no thread could be started"));
  }
  EXPECT_TRUE(create());
}

TEST(SparseTiersOnDisk, LeavesForeignFoldersAlone) {
#ifndef MOTLEY_HAS_ROCKSDB
  GTEST_SKIP() << "needs a build with RocksDB (librocksdb-dev)";
#endif
  TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder.path / "thesis.tex", "years of work"));
  SparseTableSpec spec = small_spec(Kind::kSgd, 4, 200);
  spec.cold_folder = folder.path;
  const auto table = SparseTable::create(spec);
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(table.error().message, HasSubstr(folder.path.string()));
  EXPECT_TRUE(fs::exists(folder.path / "thesis.tex"));
}

TEST(SparseTiersOnDisk, SaysThatRocksDbIsMissing) {
#ifdef MOTLEY_HAS_ROCKSDB
  GTEST_SKIP() << "needs a build without RocksDB (-DCMAKE_DISABLE_FIND_PACKAGE_RocksDB=ON)";
#endif
  SparseTableSpec spec = small_spec(Kind::kSgd, 4, 200);
  spec.cold_folder = "cold";
  const auto table = SparseTable::create(spec);
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(table.error().message, HasSubstr("librocksdb-dev"));
}

// A tiny file system fills up under the cold tier: pushes are refused by name, and what was applied stays readable.
TEST(SparseTiersOnDisk, SurviveAFullDisk) {
#ifndef MOTLEY_HAS_ROCKSDB
  GTEST_SKIP() << "needs a build with RocksDB (librocksdb-dev)";
#endif
  TemporaryFolder folder;
  if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=24m") != 0)
    GTEST_SKIP() << "needs root, to mount a small file system";
  {
    SparseTableSpec spec = small_spec(Kind::kSgd, 256, 2000);
    spec.cold_folder = folder.path / "cold";
    auto table = SparseTable::create(spec).value();
    ReferenceTable reference(spec);
    std::uint64_t next = 0;
    Status pushed;
    while (pushed && next < 100'000) {  // 100 MB
      Ids ids(200);
      for (auto& id : ids) id = next++;
      const Floats gradients(ids.size() * 256, 1.0F);
      pushed = table->push(ids, gradients);
      if (pushed) reference.push(ids, gradients);
    }
    EXPECT_FALSE(pushed);
    if (!pushed) {
      EXPECT_EQ(pushed.error().code, ErrorCode::kIo);
      EXPECT_THAT(pushed.error().message, HasSubstr("no space left"));
      EXPECT_THAT(pushed.error().message, HasSubstr("not applied"));
      Random random(3);
      Ids some(300);
      for (auto& id : some) id = random.below(next);
      expect_equal(*table, reference, some);
      EXPECT_EQ(table->statistics().rows, reference.rows());
    }
  }
}

TEST(SparseTiersRules, WriteOnlyDirtyRowsAndKeepTheOftenUsed) {
  Tiered tiered(small_spec(Kind::kSgd, 2, 320));
  SparseTable& table = *tiered.table;
  Ids hot(100);
  for (std::size_t i = 0; i < hot.size(); ++i) hot[i] = i;
  ASSERT_TRUE(table.push(hot, Floats(200, 1.0F)));
  // A scan of rows that are only read, between uses of the hot ones.
  for (std::uint64_t begin = 1000; begin < 9000; begin += 50) {
    pull_all(table, hot);
    Ids scan(50);
    for (std::size_t i = 0; i < scan.size(); ++i) scan[i] = begin + i;
    pull_all(table, scan);
  }
  const SparseStatistics after = table.statistics();
  EXPECT_GT(after.counters.evictions, 7000U);
  EXPECT_EQ(tiered.store->written, 0U) << "rows that were only read are not written, and the hot ones never left";
  EXPECT_EQ(after.rows, 100U);
}

TEST(SparseTiersRules, PrefetchedRowsWaitForTheirUse) {
  Tiered tiered(small_spec(Kind::kSgd, 2, 480));
  SparseTable& table = *tiered.table;
  for (std::uint64_t begin = 0; begin < 2000; begin += 100) {
    Ids ids(100);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = begin + i;
    ASSERT_TRUE(table.push(ids, Floats(200, 1.0F)));
  }
  Ids next(60);
  for (std::size_t i = 0; i < next.size(); ++i) next[i] = 31 * i;
  table.prefetch(next);
  ASSERT_TRUE(table.drain_prefetches(Deadline::after(30)));
  for (std::uint64_t begin = 2000; begin < 2600; begin += 60) {  // more than one revolution of the hand
    Ids others(60);
    for (std::size_t i = 0; i < others.size(); ++i) others[i] = begin + i;
    pull_all(table, others);
  }
  const RowCounters before = table.statistics().counters;
  pull_all(table, next);
  const RowCounters after = table.statistics().counters;
  EXPECT_EQ(after.misses, before.misses);
  EXPECT_EQ(after.prefetch_hits - before.prefetch_hits, 60U);
  // Nobody comes for these: they do not keep their places for ever.
  Ids unused(200);
  for (std::size_t i = 0; i < unused.size(); ++i) unused[i] = 100'000 + i;
  table.prefetch(unused);
  ASSERT_TRUE(table.drain_prefetches(Deadline::after(30)));
  for (std::uint64_t begin = 200'000; begin < 220'000; begin += 100) {
    Ids others(100);
    for (std::size_t i = 0; i < others.size(); ++i) others[i] = begin + i;
    pull_all(table, others);
  }
  const std::uint64_t misses = table.statistics().counters.misses;
  pull_all(table, unused);
  EXPECT_EQ(table.statistics().counters.misses - misses, 200U);
}

TEST(SparseTiersFailures, ApplyNothingOfAPushThatFindsNoSpace) {
  Tiered tiered(small_spec(Kind::kAdagrad, 3, 160));
  SparseTable& table = *tiered.table;
  ReferenceTable reference(table.spec());
  Random random(31);
  int refused = 0;
  for (int turn = 0; turn < 200; ++turn) {
    tiered.store->refuse_writes = random.below(3) == 0;
    const Ids ids = random_ids(random, 40, 600);
    const Floats gradients = random_floats(random, ids.size() * 3);
    const Status pushed = table.push(ids, gradients);
    if (pushed) {
      reference.push(ids, gradients);
    } else {
      ++refused;
      EXPECT_THAT(pushed.error().message, HasSubstr("no space left in the store"));
    }
    expect_equal(table, reference, random_ids(random, 30, 600));  // pulls work on a full disk
    ASSERT_EQ(table.statistics().rows, reference.rows());
  }
  EXPECT_GT(refused, 10);
}

TEST(SparseTiersFailures, SayWhyAPullCannotRead) {
  Tiered tiered(small_spec(Kind::kSgd, 3, 160));
  Ids ids(150);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  ASSERT_TRUE(tiered.table->push(ids, Floats(450, 1.0F)));
  tiered.store->refuse_reads = true;
  Floats rows(3);
  const Status pulled = tiered.table->pull(Ids{5000}, rows);
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(pulled.error().message, HasSubstr("'test'"));
}

TEST(SparseTiersFailures, RefuseAPushThatMemoryCannotHold) {
  Tiered tiered(small_spec(Kind::kSgd, 3, 160));
  Ids ids(161);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  const Status pushed = tiered.table->push(ids, Floats(483, 1.0F));
  ASSERT_FALSE(pushed);
  EXPECT_EQ(pushed.error().code, ErrorCode::kRefused);
  EXPECT_THAT(pushed.error().message, HasSubstr("at most the 160 rows"));
  EXPECT_EQ(tiered.table->statistics().rows, 0U);
}

TEST(SparseTiersFailures, QuotasCountRowsInBothTiers) {
  SparseTableSpec spec = small_spec(Kind::kSgd, 3, 160);
  spec.max_rows = 500;
  Tiered tiered(spec);
  for (std::uint64_t begin = 0; begin < 500; begin += 100) {
    Ids ids(100);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = begin + i;
    ASSERT_TRUE(tiered.table->push(ids, Floats(300, 1.0F)));
  }
  EXPECT_EQ(tiered.table->push(Ids{3, 1000}, Floats(6, 1.0F)).error().code, ErrorCode::kRefused);
  EXPECT_TRUE(tiered.table->push(Ids{3, 499}, Floats(6, 1.0F)));
  EXPECT_EQ(tiered.table->statistics().rows, 500U);
}

// As in memory: integers add up exactly. Three threads push, one pulls, prefetches come and go.
TEST(SparseTiersThreads, LoseNothing) {
  SparseTableSpec spec = small_spec(Kind::kSgd, 2, 320);
  spec.optimizer.learning_rate = 1;
  spec.initializer.scale = 0;
  Tiered tiered(spec);
  constexpr int kThreads = 3;
  constexpr std::uint64_t kIds = 3000;
  std::vector<std::vector<int>> pushed(kThreads, std::vector<int>(kIds));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(100 + t);
      for (int turn = 0; turn < 120; ++turn) {
        Ids ids(60);
        for (auto& id : ids) ++pushed[t][id = random.below(kIds)];
        if (turn % 3 == 0) tiered.table->prefetch(ids);
        EXPECT_TRUE(tiered.table->push(ids, Floats(120, -1.0F)));
      }
    });
  }
  threads.emplace_back([&] {
    Random random(200);
    for (int turn = 0; turn < 200; ++turn) {
      Ids ids(50);
      for (auto& id : ids) id = random.below(kIds);
      const Floats rows = pull_all(*tiered.table, ids);
      for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(rows[2 * i], rows[2 * i + 1]) << "half a row";
    }
  });
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(tiered.table->drain_prefetches(Deadline::after(30)));
  for (std::uint64_t id = 0; id < kIds; ++id) {
    int total = 0;
    for (const auto& counts : pushed) total += counts[id];
    ASSERT_EQ(pull_all(*tiered.table, {id}), Floats(2, static_cast<float>(total))) << id;
  }
}

}  // namespace
}  // namespace motley::ps
