// run.json reads back as it was written, to the byte.
#include "motley/train/records/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::train {
namespace {

TEST(RunFile, ReadsBackToTheByte) {
  const TemporaryFolder folder;
  const std::string text = R"({
  "motley_version": "0.1.0",
  "started": 1773480413.5,
  "name": "job",
  "workers": [
    {
      "rank": 0,
      "name": "a",
      "device": "cpu",
      "kind": "",
      "emulated": null
    },
    {
      "rank": 1,
      "name": "b",
      "device": "old",
      "kind": "cuda",
      "emulated": "3 ms a sample"
    }
  ],
  "gradient_sync": "ring",
  "global_batch_size": 64,
  "training_samples": 60000,
  "class_names": [
    "cat",
    "dog"
  ],
  "price_per_hour": null,
  "planned": {
    "plan": "plan.json",
    "profile": "profile.json",
    "cluster": null
  },
  "attempts": [
    {
      "started": 1773480413.5,
      "first_step": 1,
      "after_seconds": 0.0,
      "workers": 2,
      "exit": "interrupted"
    },
    {
      "started": 1773484013.5,
      "first_step": 121,
      "after_seconds": 74.25,
      "workers": 2,
      "exit": null
    }
  ],
  "finished": false,
  "exit": null,
  "error": null,
  "machine": "2 cores, 23 GB"
}
)";
  const auto file = folder.path / "run.json";
  ASSERT_TRUE(write_file(file, text));
  const auto run = read_run_file(file);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(run->workers[1].kind, "cuda");
  EXPECT_EQ(run->workers[1].emulated, "3 ms a sample");
  EXPECT_EQ(run->planned->profile, "profile.json");
  EXPECT_FALSE(run->planned->cluster);
  EXPECT_THAT(run->class_names, testing::ElementsAre("cat", "dog"));
  ASSERT_TRUE(write_run_file(file, *run));
  EXPECT_EQ(*read_file(file), text);
}

TEST(RunFile, ARunThatGoesOnKeepsItsBeginAndAllAttempts) {
  RunFile first;
  first.started = 100;
  first.workers.resize(2);
  first.exit = "interrupted";  // without attempts, as of a program that writes none
  RunFile second;
  second.started = 900;
  continue_run(second, first, {.started = 900, .first_step = 7, .after_seconds = 12.5, .workers = 3});
  EXPECT_EQ(second.started, 100);
  ASSERT_EQ(second.attempts.size(), 2u);
  EXPECT_EQ(second.attempts[0].started, 100);
  EXPECT_EQ(second.attempts[0].workers, 2);
  EXPECT_EQ(second.attempts[0].exit, "interrupted");
  EXPECT_EQ(second.attempts[1].first_step, 7);
  EXPECT_FALSE(second.attempts[1].exit);
  RunFile third;
  continue_run(third, second, {.started = 1800, .first_step = 9, .after_seconds = 20, .workers = 1});
  ASSERT_EQ(third.attempts.size(), 3u);
  EXPECT_EQ(third.started, 100);
  EXPECT_EQ(third.attempts[1].after_seconds, 12.5);
}

TEST(RunFile, AlmostAllMayBeMissing) {
  const TemporaryFolder folder;
  const auto file = folder.path / "run.json";
  ASSERT_TRUE(write_file(file, R"({"workers":[],"news":1})"));
  EXPECT_TRUE(read_run_file(file));
  ASSERT_TRUE(write_file(file, R"({"workers":[{"rank":-1,"name":"a"}]})"));
  EXPECT_THAT(read_run_file(file).error().message,
              testing::AllOf(testing::HasSubstr("run.json': field 'workers[0].rank' is -1; accepted is an integer")));
}

}  // namespace
}  // namespace motley::train
