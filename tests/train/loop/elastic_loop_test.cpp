// Ranks are lost at any operation that they do together, as threads of which a seed says who ends where, and who of the
// others still sees the operation through; and others take their places. Whatever happens, the run's result is that of
// one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "motley/base/log.h"
#include "motley/base/random.h"
#include "tests/temporary_folder.h"
#include "tests/train/loop/fakes.h"
#include "tests/train/loop/hub.h"
#include "tests/train/loop/plain_model.h"

namespace motley::train {
namespace {

// A model of one number: the gradient of a sample is its value, and a step mixes their sum in.
class HubSync final : public GradientSync {
 public:
  HubSync(Hub& hub, int rank) : hub_(hub), rank_(rank) {}
  void begin(const Step&) override { sum = 0; }
  void arm(const Step&, double, std::function<void(int)>) override {}
  Status flush() override { return {}; }
  void scale(double) override {}
  void resume() override {}
  Status wait(const Step&, double, Report&) override {
    MOTLEY_ASSIGN(const auto words, hub_.meet(rank_, {sum}));
    reduced_ = 0;
    for (const Word& word : words) reduced_ += word.empty() ? 0 : word[0];
    return {};
  }
  Status update(const Step& step) override {
    postponed_.emplace_back(step.number, reduced_);
    if (!postpones_) take_first_step();
    return {};
  }
  bool postpone_updates() override {
    postponed_.clear();
    postpones_ = true;
    return true;
  }
  Result<bool> catch_up() override {
    if (!postponed_.empty()) take_first_step();
    postpones_ = !postponed_.empty();
    return postpones_;
  }
  std::string parameter_name(std::size_t) const override { return "weights"; }
  bool is_async() const override { return false; }
  std::uint64_t bytes_sent() const override { return 0; }

  double sum = 0;
  std::uint64_t weights = 1;

 private:
  void take_first_step() {
    const auto [step, reduced] = postponed_.front();
    weights = mix({weights, static_cast<std::uint64_t>(reduced)});
    hub_.note_commit(rank_, step, weights);
    postponed_.pop_front();
  }

  Hub& hub_;
  const int rank_;
  double reduced_ = 0;
  std::deque<std::pair<std::int64_t, double>> postponed_;  // steps and what they take
  bool postpones_ = false;
};

class HubRunner final : public StepRunner {
 public:
  HubRunner(BatchPlan& plan, HubSync& sync, int rank) : plan_(plan), sync_(sync), rank_(rank) {}
  Status run(const Step& step, Report& report) override { return add(step, plan_.samples(step, rank_), report); }
  Status add(const Step& step, std::span<const std::uint32_t> samples, Report& report) override {
    for (const std::uint32_t sample : samples) {
      sync_.sum += gradient_at(sample);
      EXPECT_TRUE(computed_.emplace(step.number, sample).second) << "sample " << sample << " was computed again";
    }
    report.samples += static_cast<double>(samples.size());
    report.samples_hash = hash_samples(report.samples_hash, samples);
    report.compute = 1 + report.samples * (rank_ + 1);
    report.loss_count = report.metric_count = report.samples;
    return {};
  }

 private:
  BatchPlan& plan_;
  HubSync& sync_;
  const int rank_;
  std::set<std::pair<std::int64_t, std::uint32_t>> computed_;
};

// All do them together.
class HubEvaluator final : public Evaluator {
 public:
  HubEvaluator(HubGroup& group, HubSync& sync) : group_(group), sync_(sync) {}
  Result<std::optional<std::vector<Value>>> evaluate(std::int64_t) override {
    double sum[] = {static_cast<double>(sync_.weights >> 12)};
    MOTLEY_TRY(group_.all_reduce_sum(sum, Deadline::after(10)));
    return std::vector<Value>{{"loss", sum[0]}};
  }

 private:
  HubGroup& group_;
  HubSync& sync_;
};

class HubModel final : public PlainModel {
 public:
  explicit HubModel(HubSync& sync) : sync_(sync) {}
  Result<std::string> weights(std::int64_t) override { return std::to_string(sync_.weights); }
  Status load_weights(const std::string& text) override {
    sync_.weights = std::stoull(text);
    return {};
  }
  Result<WeightsHash> hash_weights() const override { return WeightsHash{1, 1, sync_.weights}; }

 private:
  HubSync& sync_;
};

BatchPlan make_plan() {
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kDynamic;
  split.may_pull = false;
  split.batch = kBatch;
  split.limits.resize(kRanks);
  return *BatchPlan::create({.mode = "dynamic"}, split, {7, 0, 0, kSamples});
}

// A rank and its loop; all files are in the folder.
class Rank final : public ElasticRanks {
 public:
  // `notice`: the step in which it is asked to leave; 0: it is not.
  Rank(Hub& hub, int rank, const std::filesystem::path& folder, int minimum, bool is_newcomer = false,
       std::int64_t notice = 0)
      : hub_(hub),
        notice_(notice),
        is_newcomer_(is_newcomer),
        folder_(folder),
        minimum_(minimum),
        group_(hub, rank),
        context_{rank, kRanks, session_, group_, timeline_, 10},
        plan_(make_plan()),
        sync_(hub, rank),
        runner_(plan_, sync_, rank),
        evaluator_(group_, sync_),
        model_(sync_),
        checkpoints_(context_, folder / "checkpoint", {.every_steps = 2, .keep = 2}),
        reporter_({.steps = kSteps, .is_elastic = true}),
        mover_(context_, follower_, reporter_, folder) {
    audit_.record_all();
  }

  Status run() {
    hub_.begin(context_.rank);
    if (is_newcomer_) context_.writer = -1;
    if (context_.writes()) MOTLEY_TRY(reporter_.open(folder_));
    LoopOptions options;
    options.steps = kSteps;
    options.evaluate_every_epochs = 1;
    options.learning_rate = [](std::int64_t) { return 0.1; };
    options.is_asked_to_stop = [] { return false; };
    options.is_asked_to_leave = [this] { return notice_ > 0 && progress_.step + 1 >= notice_; };
    const LoopParts parts = {&plan_,  &runner_,    nullptr,    &sync_,        &evaluator_, &model_,
                             &audit_, &emulation_, &reporter_, &checkpoints_, &mover_,     this};
    Status done = TrainingLoop(std::move(options), context_, parts, progress_).run();
    if (!done && done.error().code == ErrorCode::kLeft) {
      hub_.go(context_.rank);
    } else if (!hub_.is_dead(context_.rank)) {
      hub_.leave(context_.rank);
    }
    return done;
  }

  Result<std::vector<std::vector<int>>> regroup() override {
    MOTLEY_ASSIGN(auto epochs, hub_.regroup(context_.rank, is_newcomer_ && !has_entered_));
    has_entered_ = true;
    context_.present = epochs.back();
    return epochs;
  }
  Result<std::unique_ptr<collective::Group>> make_group(const std::vector<int>& ranks) override {
    return std::make_unique<HubGroup>(hub_, context_.rank, ranks);
  }
  Status synchronise() override { return group_.barrier(Deadline::after(10)); }
  Status take_over(std::int64_t) override { return reporter_.open(folder_); }
  Status stand_alone() override {
    group_.stand_alone();
    context_.present = {context_.rank};
    context_.writer = context_.rank;
    return reporter_.is_open() ? Status() : reporter_.open(folder_);
  }
  int minimum() const override { return minimum_; }
  double join_seconds() const override { return 0; }
  bool is_newcomer() const override { return is_newcomer_; }
  void enter() override { is_newcomer_ = false; }
  void follow_writer(int rank) override { context_.writer = rank; }

  std::int64_t steps() const { return progress_.step; }
  std::int64_t not_used_once() const { return audit_.not_used_once(); }

 private:
  Hub& hub_;
  const std::int64_t notice_;
  bool is_newcomer_;
  bool has_entered_ = false;
  const std::filesystem::path folder_;
  const int minimum_;
  FakeSession session_;
  HubGroup group_;
  TimelineRecorder timeline_{0};
  RankContext context_;
  BatchPlan plan_;
  SampleAudit audit_{kSamples};
  HubSync sync_;
  HubRunner runner_;
  HubEvaluator evaluator_;
  HubModel model_;
  NoFollower follower_;
  EmulationWatch emulation_{{"a", "b", "c", "d"}, 64, false};
  Checkpoints checkpoints_;
  Reporter reporter_;
  PlanMover mover_;
  RunProgress progress_;
};

// The weights after the last step, without a loss: what a rank alone would compute.
std::uint64_t expected_weights() {
  auto ledger = *data::Ledger::open({7, 0, 0, kSamples});
  std::uint64_t weights = 1;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const data::Range window = ledger.next(kBatch);
    double sum = 0;
    for (const std::uint32_t sample : ledger.samples(window)) sum += gradient_at(sample);
    weights = mix({weights, static_cast<std::uint64_t>(sum)});
    EXPECT_TRUE(ledger.commit(window));
  }
  return weights;
}

struct Outcome {
  std::vector<Status> done;
  std::vector<int> alive;
};

// `replacements`: for each rank so many processes that take its place once it has ended. `notices`: for each rank the
// step in which it is asked to leave, or 0.
Outcome run_ranks(Hub& hub, const std::filesystem::path& folder, int minimum, std::uint32_t seed,
                  const std::vector<int>& replacements = std::vector<int>(kRanks),
                  const std::vector<std::int64_t>& notices = std::vector<std::int64_t>(kRanks)) {
  Outcome outcome;
  outcome.done.resize(kRanks);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::filesystem::path own = hub.is_cut_off(rank) ? folder / "apart" : folder;
    std::filesystem::create_directories(own);
    ranks.push_back(std::make_unique<Rank>(hub, rank, own, minimum, false, notices[static_cast<std::size_t>(rank)]));
  }
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto own = static_cast<std::size_t>(rank);
        outcome.done[own] = ranks[own]->run();
        for (int i = 0; i < replacements[own] && hub.is_dead(rank); ++i) {
          auto newcomer = std::make_unique<Rank>(hub, rank, folder, minimum, true);
          outcome.done[own] = newcomer->run();
          ranks[own] = std::move(newcomer);
        }
      });
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (hub.is_dead(rank)) continue;
    outcome.alive.push_back(rank);
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->not_used_once(), 0) << "seed " << seed;
  }
  return outcome;
}

class ElasticLoop : public ::testing::Test {
 protected:
  ElasticLoop() { spdlog::set_level(spdlog::level::off); }
  ~ElasticLoop() override { spdlog::set_level(spdlog::level::info); }
};

TEST_F(ElasticLoop, WhoeverEndsWhereverTheResultIsThatOfOneRank) {
  const std::uint64_t expected = expected_weights();
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Hub::End> ends;
    std::vector<int> ranks = {0, 1, 2, 3};
    std::ranges::shuffle(ranks, random);
    ranks.resize(1 + random() % 3);
    for (const int rank : ranks) ends.push_back({rank, static_cast<int>(random() % 32), random() % 2 == 0});
    Hub hub(seed, ends);
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed);
    for (const int rank : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(done) << done.error().message;
    }
    ASSERT_EQ(hub.weights_after(kSteps), expected);
  }
}

// Some of those who end are replaced, once or twice, and may end again, also while they join.
TEST_F(ElasticLoop, WhoeverJoinsWhereverTheResultIsThatOfOneRank) {
  const std::uint64_t expected = expected_weights();
  int joined = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto [ranks, replacements, ends] = draw_losses(random, kRanks, 24, 16);
    Hub hub(seed, ends);
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed, replacements);
    for (const int rank : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(done) << done.error().message;
      joined += std::ranges::find(ranks, rank) != ranks.end() ? 1 : 0;
    }
    ASSERT_EQ(hub.weights_after(kSteps), expected);
  }
  EXPECT_GT(joined, 10);
}

// The ranks that are there after each event in turn; whoever is lost was there, and who joins was not.
std::set<int> ranks_by_events(const std::filesystem::path& folder) {
  std::set<int> there = {0, 1, 2, 3};
  static const std::regex kChange(R"(ranks? ([\d, ]+) (?:was|were|has|have) (lost|joined))");
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const std::string text = nlohmann::json::parse(line).value("text", "");
    for (std::sregex_iterator change(text.begin(), text.end(), kChange); change != std::sregex_iterator(); ++change) {
      std::istringstream ranks(std::regex_replace((*change)[1].str(), std::regex(","), " "));
      for (int rank = 0; ranks >> rank;) {
        const bool is_new = (*change)[2] == "lost" ? there.erase(rank) == 1 : there.insert(rank).second;
        EXPECT_TRUE(is_new) << text;
      }
    }
  }
  return there;
}

// Also where the others regroup several times in a step.
TEST_F(ElasticLoop, EachChangeIsToldOnce) {
  int changed = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto [ranks, replacements, ends] = draw_losses(random, kRanks, 24, 4);
    if (std::ranges::find(ranks, 0) != ranks.end()) continue;  // it writes the events
    Hub hub(seed, ends);
    const TemporaryFolder folder("/dev/shm");
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed, replacements);
    const std::set<int> there = ranks_by_events(folder.path);
    EXPECT_EQ(there, std::set<int>(outcome.alive.begin(), outcome.alive.end()));
    changed += there.size() < kRanks ? 1 : 0;
  }
  EXPECT_GT(changed, 10);
}

// A newcomer ends in one of its first steps, after some of the others have committed it and before the rest have: these
// know that it had no weights yet, although it is not there any more. Another one takes its place.
TEST_F(ElasticLoop, WhatACommittedStepSaidOfANewcomerHoldsForAll) {
  const std::uint64_t expected = expected_weights();
  for (std::uint32_t seed = 1; seed <= 320; ++seed) {
    SCOPED_TRACE(seed);
    const int later = 12 + static_cast<int>(seed % 16);
    Hub hub(seed, {{0, 3, true}, {0, 4 + later, true}});
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed, {2, 0, 0, 0});
    for (const int rank : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(done) << done.error().message;
    }
    ASSERT_EQ(hub.weights_after(kSteps), expected);
  }
}

// One rank stays; of the others some get notice, and some end.
TEST_F(ElasticLoop, WhoeverLeavesWheneverTheResultIsThatOfOneRank) {
  const std::uint64_t expected = expected_weights();
  int left = 0;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Hub::End> ends;
    std::vector<std::int64_t> notices(kRanks);
    std::vector<int> ranks = {0, 1, 2, 3};
    std::ranges::shuffle(ranks, random);
    ranks.resize(1 + random() % 3);
    for (const int rank : ranks) {
      if (random() % 4 == 0) {
        ends.push_back({rank, static_cast<int>(random() % 32), random() % 2 == 0});
      } else {
        notices[static_cast<std::size_t>(rank)] = 1 + static_cast<std::int64_t>(random() % (kSteps - 1));
      }
    }
    Hub hub(seed, ends);
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed, std::vector<int>(kRanks), notices);
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto own = static_cast<std::size_t>(rank);
      if (notices[own] == 0) continue;
      ASSERT_FALSE(outcome.done[own]);
      ASSERT_EQ(outcome.done[own].error().code, ErrorCode::kLeft) << outcome.done[own].error().message;
      ++left;
    }
    for (const int rank : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(done) << done.error().message;
    }
    ASSERT_EQ(hub.weights_after(kSteps), expected);
  }
  EXPECT_GT(left, 100);
}

TEST_F(ElasticLoop, WhereAllGetNoticeTheLastOnesWriteACheckpoint) {
  for (const std::vector<std::int64_t>& notices :
       {std::vector<std::int64_t>{3, 3, 3, 3}, {2, 4, 4, 1}, {5, 3, 1, 4}, {1, 1, 6, 1}}) {
    Hub hub(1, {});
    const TemporaryFolder folder("/dev/shm");
    const Outcome outcome = run_ranks(hub, folder.path, 1, 1, std::vector<int>(kRanks), notices);
    const std::int64_t last = std::ranges::max(notices);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_FALSE(outcome.done[rank]);
      EXPECT_EQ(outcome.done[rank].error().code, notices[rank] == last ? ErrorCode::kInterrupted : ErrorCode::kLeft)
          << outcome.done[rank].error().message;
    }
    const auto newest = read_newest_checkpoint(folder.path / "checkpoint");
    ASSERT_TRUE(newest) << newest.error().message;
    EXPECT_EQ(newest->step, last);
  }
}

// All others end just then, at the same operation whichever it is, and one is replaced by a rank without the weights.
TEST_F(ElasticLoop, WhoIsToLeaveStaysUntilANewcomerHasTheWeights) {
  const std::uint64_t expected = expected_weights();
  bool has_left = false;  // before it could know of the others' end
  for (int operation = 0; operation < 100 && !has_left; ++operation) {
    SCOPED_TRACE(operation);
    Hub hub(1, {{0, operation, false}, {2, operation, false}, {3, operation, false}});
    hub.await_newcomer(3);
    const TemporaryFolder folder("/dev/shm");
    const Outcome outcome = run_ranks(hub, folder.path, 1, 1, {0, 0, 0, 1}, {0, 3, 0, 0});
    has_left = hub.first_to_end() == 1 || !hub.has_regrouped();
    if (has_left) continue;
    const Status &left = outcome.done[1], &newcomer = outcome.done[3];
    ASSERT_FALSE(left);
    if (newcomer) {
      EXPECT_EQ(left.error().code, ErrorCode::kLeft) << left.error().message;
      EXPECT_EQ(hub.weights_after(kSteps), expected);
    } else {  // which had not made up for what it missed, when all stopped
      EXPECT_EQ(left.error().code, ErrorCode::kInterrupted) << left.error().message;
      EXPECT_EQ(newcomer.error().code, ErrorCode::kInterrupted) << newcomer.error().message;
      EXPECT_TRUE(holds_checkpoint(folder.path / "checkpoint"));
    }
  }
  EXPECT_TRUE(has_left);
}

TEST_F(ElasticLoop, WhoIsCutOffWritesACheckpointOfTheStepThatItHasDone) {
  const std::uint64_t expected = expected_weights();
  int checkpoints = 0;
  for (std::uint32_t seed = 1; seed <= 128; ++seed) {
    SCOPED_TRACE(seed);
    const int rank = static_cast<int>(seed % kRanks);
    Hub hub(seed, {{rank, static_cast<int>(seed / kRanks), seed % 8 < 4}});
    hub.cut_off(rank);
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, 1, seed);
    for (const int other : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(other)];
      ASSERT_TRUE(done) << done.error().message;
    }
    ASSERT_EQ(hub.weights_after(kSteps), expected);
    const Status& done = outcome.done[static_cast<std::size_t>(rank)];
    if (done) continue;  // all was done before
    ASSERT_EQ(done.error().code, ErrorCode::kRefused) << done.error().message;
    const auto newest = read_newest_checkpoint(folder.path / "apart" / "checkpoint");
    if (!newest) {
      EXPECT_EQ(done.error().message, "the others go on without this rank") << newest.error().message;
      continue;
    }
    ++checkpoints;
    EXPECT_EQ(done.error().message,
              fmt::format("the others go on without this rank; a checkpoint was written (step {})", newest->step));
    EXPECT_EQ(newest->files.at(kWeightsFile), std::to_string(hub.weights_after(newest->step)));
    EXPECT_EQ(parse_state(newest->files.at(kStateFile))->step, newest->step);
  }
  EXPECT_GT(checkpoints, 50);
}

TEST_F(ElasticLoop, TooFewEndWithACheckpoint) {
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const auto seed = static_cast<std::uint32_t>(round);
    const int first = round % 30;
    const bool is_one =
        round >= 30;  // of two, or one as soon as it has brought its word, which some see and some do not
    Hub hub(seed, is_one ? std::vector<Hub::End>{{0, first, true}}
                         : std::vector<Hub::End>{{0, first, false}, {1, first, true}});
    const TemporaryFolder folder("/dev/shm");  // hundreds of them
    const Outcome outcome = run_ranks(hub, folder.path, is_one ? 4 : 3, seed);
    for (const int rank : outcome.alive) {
      const Status& done = outcome.done[static_cast<std::size_t>(rank)];
      if (done) continue;  // they had ended before
      EXPECT_EQ(done.error().code, ErrorCode::kPeerLost) << done.error().message;
      const bool none_done = done.error().message.ends_with("after step 0");
      EXPECT_EQ(holds_checkpoint(folder.path / "checkpoint"), !none_done) << done.error().message;
    }
    if (!holds_checkpoint(folder.path / "checkpoint")) continue;
    // What has been used is counted in the epoch at which the next run begins.
    const auto newest = read_newest_checkpoint(folder.path / "checkpoint");
    ASSERT_TRUE(newest) << newest.error().message;
    const auto counts = data::UseCounts::parse(newest->files.at(kAuditFile));
    ASSERT_TRUE(counts) << counts.error().message;
    EXPECT_EQ(counts->epoch(), parse_state(newest->files.at(kStateFile))->ledger.epoch) << newest->step;
  }
}

}  // namespace
}  // namespace motley::train
