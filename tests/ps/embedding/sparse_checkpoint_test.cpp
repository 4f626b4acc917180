// Checkpoints of sparse tables: written while pushes go on, incremental, restored onto other numbers of shards, and
// told apart from damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <fstream>
#include <thread>

#include "motley/base/os/file.h"
#include "tests/ps/embedding/sparse_support.h"

namespace motley::ps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = RowOptimizer::Kind;

const auto kAll = [](std::uint64_t) { return true; };

class SparseCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "motley-sparse-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override {
    ::umount2((folder_ / "small").c_str(), MNT_DETACH);  // where a test has mounted something
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  // With a cold store in a map where there is a budget.
  static std::unique_ptr<SparseTable> make(const SparseTableSpec& spec) {
    return SparseTable::create(spec, store(spec)).value();
  }
  static std::unique_ptr<ColdStore> store(const SparseTableSpec& spec) {
    if (spec.memory_bytes == 0) return nullptr;
    return std::make_unique<MapStore>(std::make_shared<MapStoreControl>(),
                                      SparseTable::make_shape(spec).record_bytes());
  }
  static void push_random(SparseTable& table, Random& random, int turns, std::uint64_t range) {
    for (int turn = 0; turn < turns; ++turn) {
      const Ids ids = random_ids(random, 50, range);
      ASSERT_TRUE(table.push(ids, random_floats(random, ids.size() * table.spec().dimension)));
    }
  }
  static Ids all_ids(std::uint64_t range) {
    Ids ids;
    for (std::uint64_t i = 0; i < range; ++i) ids.push_back(i * 0x10001);
    return ids;
  }
  // Equal weights, and equal optimizer state: the same gradients lead to the same weights again.
  static void expect_same(SparseTable& one, SparseTable& other, std::uint64_t range) {
    EXPECT_EQ(one.statistics().rows, other.statistics().rows);
    for (int turn = 0; turn < 2; ++turn) {
      for (std::uint64_t begin = 0; begin < range; begin += 50) {
        Ids ids;
        for (std::uint64_t i = begin; i < std::min(begin + 50, range); ++i) ids.push_back(i * 0x10001);
        ASSERT_EQ(pull_all(one, ids), pull_all(other, ids));
        const Floats gradients(ids.size() * one.spec().dimension, 0.25F);
        ASSERT_TRUE(one.push(ids, gradients));
        ASSERT_TRUE(other.push(ids, gradients));
      }
    }
  }

  fs::path folder_;
};

TEST_F(SparseCheckpoint, RestoresEachStepOfAChain) {
  for (const std::size_t hot_rows : {0U, 160U}) {
    for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kAdam}) {
      const fs::path folder = folder_ / fmt::format("{}-{}", to_string(kind), hot_rows);
      const SparseTableSpec spec = small_spec(kind, 3, hot_rows);
      auto table = make(spec);
      std::vector<Floats> states;
      Random random(41);
      for (int step = 0; step < 4; ++step) {
        push_random(*table, random, step == 0 ? 40 : 5, 800);
        const auto report = table->checkpoint(folder, step, {.keep = 10});
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_EQ(report->full, step == 0);
        if (step > 0 && hot_rows == 0) {
          EXPECT_LE(report->rows, 250U);
        }
        states.push_back(pull_all(*table, all_ids(800)));
      }
      EXPECT_THAT(sparse_checkpoint_steps(folder), ElementsAre(0, 1, 2, 3));
      for (int step = 0; step < 4; ++step) {
        auto restored = SparseTable::restore(spec, {folder}, step, kAll, store(spec));
        ASSERT_TRUE(restored) << restored.error().message;
        EXPECT_EQ(pull_all(**restored, all_ids(800)), states[step]) << step;
        if (step == 3) expect_same(*table, **restored, 800);
      }
    }
  }
}

TEST_F(SparseCheckpoint, RestoresOntoOtherNumbersOfShards) {
  const SparseTableSpec spec = small_spec(Kind::kAdam, 3, 320);
  const auto owns = [](std::size_t shard, std::size_t shards) {
    return [=](std::uint64_t id) { return find_shard(id, shards) == shard; };
  };
  // One table as a whole, and the same pushes split onto two shards.
  auto whole = make(spec);
  std::vector<std::unique_ptr<SparseTable>> two;
  for (int shard = 0; shard < 2; ++shard) two.push_back(make(spec));
  Random random(42);
  for (int turn = 0; turn < 40; ++turn) {
    const Ids ids = random_ids(random, 50, 700);
    const Floats gradients = random_floats(random, 150);
    ASSERT_TRUE(whole->push(ids, gradients));
    for (std::size_t shard = 0; shard < 2; ++shard) {
      Ids own;
      Floats own_gradients;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (find_shard(ids[i], 2) != shard) continue;
        own.push_back(ids[i]);
        own_gradients.insert(own_gradients.end(), &gradients[3 * i], &gradients[3 * i] + 3);
      }
      ASSERT_TRUE(two[shard]->push(own, own_gradients));
    }
  }
  const std::vector<fs::path> folders = {folder_ / "0", folder_ / "1"};
  EXPECT_EQ(two[0]->statistics().rows + two[1]->statistics().rows, whole->statistics().rows);
  for (std::size_t shard = 0; shard < 2; ++shard) ASSERT_TRUE(two[shard]->checkpoint(folders[shard], 7));
  for (const std::size_t shards : {1U, 3U}) {
    std::uint64_t rows = 0;
    for (std::size_t shard = 0; shard < shards; ++shard) {
      auto restored = SparseTable::restore(spec, folders, 7, owns(shard, shards), store(spec));
      ASSERT_TRUE(restored) << restored.error().message;
      rows += (*restored)->statistics().rows;
      for (const std::uint64_t id : all_ids(700)) {
        if (find_shard(id, shards) == shard) {
          ASSERT_EQ(pull_all(**restored, {id}), pull_all(*whole, {id}));
        }
      }
    }
    EXPECT_EQ(rows, whole->statistics().rows);
  }
}

// Each push adds one to every row of a group that spans all partitions. Whatever moment a checkpoint takes, all rows of
// a group have then the same number; and what it has lies between what was pushed before and after the call.
struct Groups {
  std::size_t hot_rows;  // 0: all
  std::uint64_t groups;
  std::uint64_t rows;  // of a group
};

class SparseCheckpointMoment : public SparseCheckpoint, public testing::WithParamInterface<Groups> {};

TEST_P(SparseCheckpointMoment, LiesBetweenPushes) {
  const Groups groups = GetParam();
  SparseTableSpec spec = small_spec(Kind::kSgd, 2, groups.hot_rows);
  spec.optimizer.learning_rate = 1;
  spec.initializer.scale = 0;
  auto table = make(spec);
  const auto group_ids = [&groups](std::uint64_t group) {
    Ids ids;
    for (std::uint64_t i = 0; i < groups.rows; ++i) ids.push_back(group * groups.rows + i);
    return ids;
  };
  std::vector<std::atomic<int>> begun(groups.groups);
  std::vector<std::atomic<int>> done(groups.groups);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      while (!stop) {
        const std::uint64_t group = random.below(groups.groups);
        ++begun[group];
        EXPECT_TRUE(table->push(group_ids(group), Floats(2 * groups.rows, -1.0F)));
        ++done[group];
      }
    });
  }
  for (int step = 0; step < 8; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::vector<int> least(groups.groups);
    std::vector<int> most(groups.groups);
    for (std::uint64_t g = 0; g < groups.groups; ++g) least[g] = done[g];
    const auto report = table->checkpoint(folder_, step);
    ASSERT_TRUE(report) << report.error().message;
    for (std::uint64_t g = 0; g < groups.groups; ++g) most[g] = begun[g];
    auto restored = SparseTable::restore(spec, {folder_}, step, kAll, store(spec));
    ASSERT_TRUE(restored) << restored.error().message;
    for (std::uint64_t g = 0; g < groups.groups; ++g) {
      const Floats rows = pull_all(**restored, group_ids(g));
      EXPECT_THAT(rows, testing::Each(rows[0])) << "step " << step << " group " << g;
      EXPECT_GE(rows[0], static_cast<float>(least[g]));
      EXPECT_LE(rows[0], static_cast<float>(most[g]));
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

// Rows that come and go while they are saved; and pushes so large that a moment would fall into one.
INSTANTIATE_TEST_SUITE_P(Sizes, SparseCheckpointMoment, testing::Values(Groups{480, 12, 100}, Groups{0, 2, 8000}));

TEST_F(SparseCheckpoint, KnowsDamageFromSoundness) {
  const SparseTableSpec spec = small_spec(Kind::kAdagrad, 3, 160);
  auto table = make(spec);
  Random random(43);
  push_random(*table, random, 20, 400);
  ASSERT_TRUE(table->checkpoint(folder_, 1));
  push_random(*table, random, 5, 400);
  ASSERT_TRUE(table->checkpoint(folder_, 2));
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 6U);  // two manifests, and hot and cold rows for each
  const SparseManifest second = read_sparse_manifest(folder_, 2).value();
  ASSERT_EQ(second.files.size(), 4U);
  for (const RowFile& file : second.files) {
    const std::string sound = read_file(folder_ / file.name).value();
    for (int kind = 0; kind < 3; ++kind) {
      std::string damaged = sound;
      if (kind == 0) damaged[random.below(damaged.size())] ^= 4;
      if (kind == 1) damaged.resize(damaged.size() - 1);
      if (kind < 2) {
        ASSERT_TRUE(write_file(folder_ / file.name, damaged));
      } else {
        fs::remove(folder_ / file.name);
      }
      const auto restored = SparseTable::restore(spec, {folder_}, 2, kAll, store(spec));
      ASSERT_FALSE(restored);
      EXPECT_EQ(restored.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(restored.error().message, HasSubstr(file.name));
    }
    ASSERT_TRUE(write_file(folder_ / file.name, sound));
  }
  EXPECT_TRUE(SparseTable::restore(spec, {folder_}, 2, kAll, store(spec)));
  // The step before does not need the newest files.
  fs::remove(folder_ / second.files.back().name);
  EXPECT_TRUE(SparseTable::restore(spec, {folder_}, 1, kAll, store(spec)));
  EXPECT_EQ(SparseTable::restore(spec, {folder_}, 9, kAll, store(spec)).error().code, ErrorCode::kInvalidInput);
  ASSERT_TRUE(write_file(folder_ / "sparse-00000002.json", "{\"version\": 1, \"step\": 2}"));
  EXPECT_THAT(SparseTable::restore(spec, {folder_}, 2, kAll, store(spec)).error().message, HasSubstr("'table'"));
}

TEST_F(SparseCheckpoint, RefusesAnotherTablesForm) {
  const SparseTableSpec spec = small_spec(Kind::kAdagrad, 3);
  auto table = make(spec);
  ASSERT_TRUE(table->push(Ids{1}, Floats(3, 1.0F)));
  ASSERT_TRUE(table->checkpoint(folder_, 1));
  SparseTableSpec other = spec;
  other.dimension = 4;
  EXPECT_THAT(SparseTable::restore(other, {folder_}, 1, kAll).error().message, HasSubstr("dimension 3"));
  other = spec;
  other.initializer.seed = 8;
  EXPECT_THAT(SparseTable::restore(other, {folder_}, 1, kAll).error().message, HasSubstr("seed 7"));
  other = spec;
  other.optimizer.kind = Kind::kAdam;
  EXPECT_EQ(SparseTable::restore(other, {folder_}, 1, kAll).error().code, ErrorCode::kInvalidInput);
}

TEST_F(SparseCheckpoint, FailsWholeAndGoesOnIncrementally) {
  const fs::path small = folder_ / "small";
  fs::create_directories(small);
  if (::mount("none", small.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "needs root, to mount a small file system";
  const SparseTableSpec spec = small_spec(Kind::kSgd, 16, 480);
  auto table = make(spec);
  Random random(44);
  push_random(*table, random, 10, 3000);
  ASSERT_TRUE(table->checkpoint(small, 1));
  const Floats at_first = pull_all(*table, all_ids(3000));
  ASSERT_TRUE(write_file(small / "filler", std::string(900'000, 'x')));
  push_random(*table, random, 100, 3000);
  const auto failed = table->checkpoint(small, 2);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_THAT(failed.error().message, HasSubstr("No space left"));
  EXPECT_THAT(sparse_checkpoint_steps(small), ElementsAre(1));
  EXPECT_EQ(pull_all(*SparseTable::restore(spec, {small}, 1, kAll, store(spec)).value(), all_ids(3000)), at_first);
  fs::remove(small / "filler");
  // What changed before the failure is in the next one.
  const auto report = table->checkpoint(small, 3);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->full);
  EXPECT_EQ(pull_all(*SparseTable::restore(spec, {small}, 3, kAll, store(spec)).value(), all_ids(3000)),
            pull_all(*table, all_ids(3000)));
}

TEST_F(SparseCheckpoint, KeepsWhatIsAskedForAndForgetsWhatWasRolledBack) {
  const SparseTableSpec spec = small_spec(Kind::kSgd, 3);
  auto table = make(spec);
  Random random(45);
  push_random(*table, random, 30, 500);
  for (int step = 1; step <= 5; ++step) {
    push_random(*table, random, 1, 500);
    ASSERT_TRUE(table->checkpoint(folder_, step, {.keep = 3}));
  }
  EXPECT_THAT(sparse_checkpoint_steps(folder_), ElementsAre(3, 4, 5));
  auto restored = SparseTable::restore(spec, {folder_}, 3, kAll).value();
  const Floats rolled_back = pull_all(*restored, all_ids(500));
  ASSERT_TRUE(restored->push(Ids{0}, Floats(3, 1.0F)));
  ASSERT_TRUE(restored->checkpoint(folder_, 4, {.keep = 2}));
  EXPECT_THAT(sparse_checkpoint_steps(folder_), ElementsAre(3, 4));
  EXPECT_EQ(pull_all(*SparseTable::restore(spec, {folder_}, 3, kAll).value(), all_ids(500)), rolled_back);
  EXPECT_EQ(pull_all(*SparseTable::restore(spec, {folder_}, 4, kAll).value(), all_ids(500)),
            pull_all(*restored, all_ids(500)));
  // A chain does not grow for ever, and files that no step needs go.
  bool began_again = false;
  for (int step = 5; step <= 40; ++step) {
    push_random(*restored, random, 10, 500);
    began_again = restored->checkpoint(folder_, step, {.keep = 1}).value().full || began_again;
  }
  EXPECT_TRUE(began_again);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1 + read_sparse_manifest(folder_, 40).value().files.size());
}

}  // namespace
}  // namespace motley::ps
