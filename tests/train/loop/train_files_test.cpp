// TensorBoard's own reader must find what we wrote, and a timeline must keep each span and stay within its bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/train/loop/tensorboard.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "motley-train-files-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

std::string python() {
  const char* given = std::getenv("MOTLEY_PYTHON");
  return fmt::format("'{}'", given != nullptr ? given : MOTLEY_SOURCE_FOLDER "/.venv/bin/python");
}

TEST(TensorBoard, PyPiReaderFindsEveryScalar) {
  const char* const look = " -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(\"tensorboard\"))'";
  if (std::system((python() + look).c_str()) != 0) {
    GTEST_SKIP() << "no PyPI tensorboard in " << python() << " (set MOTLEY_PYTHON)";
  }
  Folder folder;
  Random random(7);
  std::map<std::string, std::map<std::int64_t, double>> written;
  {
    auto writer = TensorBoardWriter::open(folder.path / "tensorboard", 1.7e9);
    ASSERT_TRUE(writer) << writer.error().message;
    const std::string long_tag(300, 't');  // lengths above 127 need two bytes
    for (const std::string& tag : {std::string("train/loss"), std::string("share/größer"), long_tag}) {
      for (std::int64_t step : {0ll, 1ll, 127ll, 128ll, 300ll, 1ll << 40}) {
        const double value = random.normal() * std::pow(10, random.uniform() * 20 - 10);
        written[tag][step] = value;
        ASSERT_TRUE(writer->scalar(tag, step, value, 1.7e9 + static_cast<double>(step)));
      }
    }
    for (std::int64_t step = 0; step < 3000; ++step) {  // more than is gathered before a write
      written["many"][step] = static_cast<double>(step);
      ASSERT_TRUE(writer->scalar("many", step, static_cast<double>(step)));
    }
  }
  const fs::path script = folder.path / "read.py";
  ASSERT_TRUE(write_file(script, R"(
import glob, json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
files = glob.glob(sys.argv[1] + "/*tfevents*")
version = next(iter(LegacyEventFileLoader(files[0]).Load())).file_version
a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
a.Reload()
json.dump({"files": len(files), "version": version, "tags": {t: [[e.step, e.value, e.wall_time] for e in a.Scalars(t)] for t in a.Tags()["scalars"]}},
          open(sys.argv[2], "w"))
)"));
  const std::string command = fmt::format("{} {} {} {} 2>&1", python(), script.string(),
                                          (folder.path / "tensorboard").string(), (folder.path / "out.json").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto read = nlohmann::json::parse(*read_file(folder.path / "out.json"));
  EXPECT_EQ(read.at("files"), 1);
  EXPECT_EQ(read.at("version"), "brain.Event:2");
  ASSERT_EQ(read.at("tags").size(), written.size());
  for (const auto& [tag, points] : written) {
    const auto& found = read.at("tags").at(tag);
    ASSERT_EQ(found.size(), points.size()) << tag;
    for (const auto& point : found) {
      EXPECT_EQ(point.at(1).get<float>(), static_cast<float>(points.at(point.at(0).get<std::int64_t>()))) << tag;
    }
  }
  EXPECT_EQ(read.at("tags").at("train/loss").at(3).at(2).get<double>(), 1.7e9 + 128);
}

TEST(TensorBoard, NamesTheFolderThatCannotBeMade) {
  Folder folder;
  ASSERT_TRUE(write_file(folder.path / "file", "x"));
  const auto writer = TensorBoardWriter::open(folder.path / "file" / "inside", 0);
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().message, testing::HasSubstr("file"));
}

TEST(Timeline, ThinsItselfEvenlyAndStaysInBounds) {
  TimelineRecorder recorder(0, "", {.first_steps = 10, .every = 1, .max_spans = 400});
  constexpr int kSteps = 20000;
  for (int step = 0; step < kSteps; ++step) {
    for (const Phase phase : {Phase::kLoad, Phase::kForward, Phase::kBackward}) {
      recorder.record(phase, step, step, step + 0.5);
    }
    ASSERT_LE(recorder.spans().size(), 400u);
  }
  std::map<std::int64_t, int> kept;
  for (const Span& span : recorder.spans()) {
    ++kept[span.step];
  }
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(kept[step], 3) << step;
  }
  std::int64_t last = 10, widest = 0;
  for (const auto& [step, count] : kept) {
    EXPECT_EQ(count, 3) << "a recorded step is whole: " << step;
    if (step > 10) {
      widest = std::max(widest, step - last);
      last = step;
    }
  }
  EXPECT_GT(kept.size(), 60u);
  EXPECT_GT(last, kSteps - 2 * widest) << "the end of the run is there too";
  EXPECT_LE(widest, kSteps / 50);
}

TEST(Timeline, RecordsOnlyEveryNthStepAfterTheFirst) {
  TimelineRecorder recorder(0, "", {.first_steps = 3, .every = 10});
  for (int step = 0; step < 35; ++step) {
    recorder.record(Phase::kForward, step, step, step + 1);
  }
  std::vector<std::int64_t> steps;
  for (const Span& span : recorder.spans()) {
    steps.push_back(span.step);
  }
  EXPECT_THAT(steps, testing::ElementsAre(0, 1, 2, 10, 20, 30));
}

TEST(Timeline, MergesRanksIntoOneTraceWithoutOverlapOnAThread) {
  Folder folder;
  std::vector<TimelinePart> parts;
  Random random(3);
  std::size_t recorded = 0;
  double first = 1e300;
  for (int rank = 0; rank < 3; ++rank) {
    TimelineRecorder recorder(rank, rank == 0 ? "" : "worker \"<\" \xff");
    std::thread other([&] {
      for (int i = 0; i < 50; ++i) {
        const double begin = 1000 + i + 0.25 * rank;
        recorder.record(Phase::kGradientSync, i, begin, begin + 1.7);  // overlaps the next
      }
    });
    for (int i = 0; i < 50; ++i) {
      const double begin = 1000 + i + random.uniform();
      first = std::min(first, begin);
      recorder.record(static_cast<Phase>(random.below(9)), i, begin, begin + random.uniform());
    }
    other.join();
    recorded += recorder.spans().size();
    ASSERT_TRUE(recorder.write_part(folder.path));
    parts.push_back({timeline_part(folder.path, rank)});
  }
  first = std::min(first, 1000.0);
  ASSERT_TRUE(merge_timelines(parts, folder.path / "timeline.json"));

  const auto trace = nlohmann::json::parse(*read_file(folder.path / "timeline.json"));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  std::set<std::pair<int, int>> named;
  std::set<int> processes;
  double earliest = 1e300;
  std::size_t spans = 0;
  for (const auto& event : trace.at("traceEvents")) {
    const std::pair key{event.at("pid").get<int>(), event.at("tid").get<int>()};
    if (event.at("ph") == "X") {
      ++spans;
      threads[key].push_back({event.at("ts").get<double>(), event.at("dur").get<double>()});
      earliest = std::min(earliest, threads[key].back().first);
      EXPECT_TRUE(event.at("args").at("step").is_number_integer());
    } else if (event.at("name") == "thread_name") {
      named.insert(key);
    } else if (event.at("name") == "process_name") {
      processes.insert(key.first);
    }
  }
  EXPECT_EQ(spans, recorded);
  EXPECT_EQ(earliest, 0);
  EXPECT_EQ(processes.size(), 3u);
  for (auto& [key, list] : threads) {
    EXPECT_TRUE(named.count(key));
    std::sort(list.begin(), list.end());
    for (std::size_t i = 1; i < list.size(); ++i) {
      EXPECT_GE(list[i].first, list[i - 1].first + list[i - 1].second - 1e-3);
    }
  }
}

TEST(Timeline, IsDrawnByOneClock) {
  Folder folder;
  std::vector<TimelinePart> parts;
  for (const auto& [rank, ahead] : {std::pair(0, 0.0), {1, 5000.0}, {2, -70.0}}) {
    TimelineRecorder recorder(rank);
    recorder.record(Phase::kForward, 1, 100 + ahead + rank,
                    103 + ahead + rank);  // each begins a second after the other
    ASSERT_TRUE(recorder.write_part(folder.path));
    parts.push_back({timeline_part(folder.path, rank), ahead});
  }
  ASSERT_TRUE(merge_timelines(parts, folder.path / "timeline.json"));
  std::map<int, double> begins;
  const auto trace = nlohmann::json::parse(*read_file(folder.path / "timeline.json"));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") begins[event.at("pid").get<int>()] = event.at("ts").get<double>();
  }
  EXPECT_THAT(begins, testing::ElementsAre(std::pair(0, 0.0), std::pair(1, 1e6), std::pair(2, 2e6)));
}

TEST(Timeline, ShowsWhoWasLostAndWhatItHadDone) {
  Folder folder;
  TimelineRecorder lost(1), other(0);
  lost.keep_in(folder.path, true);  // there is nothing to go on with
  lost.record(Phase::kForward, 1, 100, 101);
  lost.keep();
  lost.record(Phase::kForward, 2, 101, 102);  // nobody knows of it
  other.record(Phase::kForward, 1, 100, 101);
  other.mark(2, 102, "rank 1 was lost");
  TimelineRecorder newcomer(1);
  newcomer.keep_in(folder.path, true);
  for (TimelineRecorder* recorder : {&other, &newcomer}) recorder->mark(3, 103, "rank 1 has joined");
  newcomer.record(Phase::kForward, 4, 104, 105);
  std::vector<TimelinePart> parts;
  for (const auto* recorder : {&other, &newcomer}) {
    ASSERT_TRUE(recorder->write_part(folder.path));
    parts.push_back({timeline_part(folder.path, recorder == &other ? 0 : 1)});
  }
  ASSERT_TRUE(merge_timelines(parts, folder.path / "timeline.json"));
  std::vector<std::string> marks;
  std::vector<std::int64_t> steps;  // of rank 1
  const auto trace = nlohmann::json::parse(*read_file(folder.path / "timeline.json"));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "i") {
      marks.push_back(fmt::format("{:.0f} {}", event.at("ts").get<double>(), event.at("name").get<std::string>()));
    }
    if (event.at("ph") == "X" && event.at("pid") == 1) steps.push_back(event.at("args").at("step"));
  }
  EXPECT_THAT(marks, testing::ElementsAre("2000000 rank 1 was lost", "3000000 rank 1 has joined"));
  EXPECT_THAT(steps, testing::ElementsAre(1, 4));
}

// As of a run that is resumed and has nothing left to do.
TEST(Timeline, WithoutSpansLeavesWhatIsThere) {
  Folder folder;
  const fs::path whole = folder.path / "timeline.json";
  ASSERT_TRUE(write_file(whole, "of the attempt before"));
  std::vector<TimelinePart> parts;
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(TimelineRecorder(rank).write_part(folder.path));
    parts.push_back({timeline_part(folder.path, rank)});
  }
  ASSERT_TRUE(merge_timelines(parts, whole));
  EXPECT_EQ(*read_file(whole), "of the attempt before");
}

TEST(Timeline, SaysWhichPartIsDamaged) {
  Folder folder;
  const fs::path part = timeline_part(folder.path, 4);
  for (const char* text :
       {"", "{}", R"({"rank":0,"name":"","spans":[["dreaming",0,1,2]]})", R"({"rank":0,"name":"","spans":[[]]})"}) {
    ASSERT_TRUE(write_file(part, text));
    const auto merged = merge_timelines({TimelinePart{.file = part}}, folder.path / "timeline.json");
    ASSERT_FALSE(merged) << text;
    EXPECT_THAT(merged.error().message, testing::HasSubstr("timeline-rank-4.json"));
    EXPECT_FALSE(fs::exists(folder.path / "timeline.json"));
  }
}

}  // namespace
}  // namespace motley::train
