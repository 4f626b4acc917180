// The loop's order and its decisions, of parts that are played.
#include "motley/train/loop/training_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"
#include "tests/train/loop/fakes.h"

namespace motley::train {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Two ranks, of which this process is one; three steps are an epoch.
struct FakeRun {
  explicit FakeRun(int rank = 0, BatchPlanOptions plan_options = {.mode = "equal"}, Checkpoints::Options saving = {})
      : group(rank, 2),
        context{rank, 2, session, group, timeline, 10},
        plan(*make_batch_plan(std::move(plan_options))),
        runner(journal, plan, audit, rank),
        checkpoints(context, folder.path / "checkpoint", saving),
        reporter({.steps = 9}),
        mover(context, follower, reporter, folder.path) {
    options.steps = 9;
    options.evaluate_every_epochs = -1;
    options.learning_rate = [](std::int64_t step) { return 0.1 / static_cast<double>(step); };
    options.is_asked_to_stop = [this] { return stops; };
    if (rank == 0) {
      EXPECT_TRUE(reporter.open(folder.path));
    }
  }

  Status go() {
    parts = {&plan, &runner, &queue, &sync, &evaluator, &model, &audit, &emulation, &reporter, &checkpoints, &mover};
    return TrainingLoop(options, context, parts, progress).run();
  }
  // Of metrics.jsonl.
  std::vector<nlohmann::json> lines(const std::string& key) const {
    std::vector<nlohmann::json> found;
    std::istringstream text(*read_file(folder.path / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      if (auto json = nlohmann::json::parse(line); json.contains(key)) found.push_back(std::move(json));
    }
    return found;
  }
  // What the loop asked for, without these.
  Journal without(const std::string& words) const {
    Journal left;
    for (const std::string& entry : journal) {
      if (words.find(entry.substr(0, entry.find(' '))) == std::string::npos) left.push_back(entry);
    }
    return left;
  }

  TemporaryFolder folder;
  Journal journal;
  FakeSession session;
  FakeGroup group;
  TimelineRecorder timeline{0};
  RankContext context;
  BatchPlan plan;
  SampleAudit audit{36};
  FakeRunner runner;
  FakeRunner queue{journal, plan, audit, 0};
  FakeSync sync{journal};
  FakeEvaluator evaluator{journal};
  FakeModel model{journal};
  FakeFollower follower{journal};
  EmulationWatch emulation{{"one", "two"}, 64, true};
  Checkpoints checkpoints;
  Reporter reporter;
  PlanMover mover;
  RunProgress progress;
  LoopOptions options;
  LoopParts parts;
  bool stops = false;
};

TEST(TrainingLoop, DoesEachStepInItsOrder) {
  FakeRun run;
  run.options.steps = 2;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.journal, ElementsAre("begin 1", "run 1", "wait 1", "update 1",  //
                                       "begin 2", "run 2", "wait 2", "update 2"));
  EXPECT_EQ(run.plan.ledger().cursor, 24U);
  EXPECT_THAT(run.sync.learning_rates, ElementsAre(0.1, 0.05));
  EXPECT_THAT(run.sync.waits, Each(10));
  EXPECT_EQ(run.group.gathered.back().sent_bytes, 100);
  EXPECT_EQ(run.lines("step_seconds").size(), 2U);
}

// Where the disk stalls then, nobody takes it for a step that is stuck.
TEST(TrainingLoop, SaysWhenItRecordsAStep) {
  FakeRun run;
  run.options.steps = 1;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.session.phases, ElementsAre("gathering times", "recording", "between steps"));
}

TEST(TrainingLoop, GoesOnAfterTheStepThatWasSaved) {
  FakeRun run;
  run.progress.step = 2;
  run.options.steps = 3;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.journal, ElementsAre("begin 3", "run 3", "wait 3", "update 3"));
}

TEST(TrainingLoop, ClaimsShardsWhereTheSplitSaysSo) {
  FakeRun run;
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kPull;
  split.batch = 12;
  split.limits.resize(2);
  run.plan = *BatchPlan::create({.mode = "work-queue"}, split, data::LedgerState{.size = 36});
  run.options.steps = 1;
  run.runner.loss = NAN;  // not asked
  ASSERT_TRUE(run.go());
  EXPECT_EQ(run.lines("mode").at(0).at("mode"), "work-queue");
}

TEST(TrainingLoop, EvaluatesWhenItIsDueAndAtTheEnd) {
  FakeRun run;
  run.options.evaluate_every_epochs = 0.5;
  run.progress.next_evaluation = 0.5;
  run.options.steps = 4;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.without("begin run wait update"), ElementsAre("evaluate 2", "evaluate 3", "evaluate 4"));
  EXPECT_EQ(run.progress.next_evaluation, 1.5);
  EXPECT_EQ(run.lines("evaluation").size(), 3U);
  EXPECT_EQ(run.lines("evaluation").at(0).at("evaluation").at("accuracy"), 0.75);
}

TEST(TrainingLoop, EvaluatesNeverOrOnlyAtTheEnd) {
  FakeRun never;
  ASSERT_TRUE(never.go());
  EXPECT_THAT(never.journal, Not(Contains(HasSubstr("evaluate"))));
  FakeRun end;
  end.options.evaluate_every_epochs = 0;
  ASSERT_TRUE(end.go());
  EXPECT_THAT(end.without("begin run wait update"), ElementsAre("evaluate 9"));
  FakeRun without_data;
  without_data.options.evaluate_every_epochs = 0;
  without_data.evaluator.has_data = false;
  ASSERT_TRUE(without_data.go());
  EXPECT_EQ(without_data.progress.evaluated_step, 0);
  EXPECT_TRUE(without_data.lines("evaluation").empty());
}

TEST(TrainingLoop, AuditsEveryEpochAndWhatIsLeftOfTheLast) {
  FakeRun run;
  run.options.steps = 5;
  run.runner.loses_step = 2;
  ASSERT_TRUE(run.go());
  const auto audits = run.lines("samples_lost_or_duplicated");
  ASSERT_EQ(audits.size(), 2U);
  EXPECT_EQ(audits[0].at("samples_lost_or_duplicated"), 12);
  EXPECT_EQ(audits[0].at("epoch"), 0);
  EXPECT_EQ(audits[1].at("samples_lost_or_duplicated"), 0);
  EXPECT_EQ(audits[1].at("epoch"), 1);
}

TEST(TrainingLoop, SavesWhenItIsDueAndAtTheEndButNotTwice) {
  FakeRun run(0, {.mode = "equal"}, {.every_steps = 2, .keep = 10});
  run.options.steps = 5;
  ASSERT_TRUE(run.go());
  std::vector<std::string> events;
  for (const auto& line : run.lines("event")) {
    if (line.at("event") == "checkpoint") events.push_back(line.at("text"));
  }
  EXPECT_THAT(events, ElementsAre("step 2", "step 4", "step 5"));
  EXPECT_EQ(run.progress.saved_step, 5);

  FakeRun even(0, {.mode = "equal"}, {.every_steps = 2, .keep = 10});
  even.options.steps = 2;
  ASSERT_TRUE(even.go());
  EXPECT_EQ(even.lines("event").size(), 2U);  // and the audit
}

TEST(TrainingLoop, StopsWhereAnotherRankWasAskedTo) {
  FakeRun run(0, {.mode = "equal"}, {.keep = 1});
  run.group.others = [&](int, Report& report) { report.stop = run.group.gathered.size() == 1 ? 1 : 0; };
  const Status done = run.go();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(done.error().message, "stopped after step 2; a checkpoint was written");
  EXPECT_EQ(run.progress.saved_step, 2);
  EXPECT_EQ(run.lines("event").back().at("event"), "interrupted");

  FakeRun asked;
  asked.stops = true;
  const Status stopped = asked.go();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().message, "stopped after step 1");
}

TEST(TrainingLoop, EndsWhereALossIsNoNumber) {
  FakeRun run;
  run.group.others = [](int, Report& report) { report.loss_sum = NAN; };
  const Status done = run.go();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kDiverged);
  EXPECT_THAT(done.error().message, HasSubstr("in step 1 on rank 1"));
  EXPECT_THAT(done.error().message, HasSubstr("no checkpoint was written yet"));
  EXPECT_THAT(run.journal, Not(Contains("update 1")));
}

TEST(TrainingLoop, EndsBeforeTheUpdateWhereAGradientIsNotFinite) {
  struct Case {
    double loss, own, reduced;  // of rank 1
    const char* message;
  };
  for (const auto& [loss, own, reduced, message] : {
           Case{0, 3, 1, "the gradient of 'layer-3' is not finite in step 2 on rank 1; "},
           Case{0, 0, 3, "the gradient of 'layer-3' over all ranks is not finite in step 2, although each rank's is; "},
           Case{NAN, 3, 3, "the loss is nan in step 2 on rank 1; "},
       }) {
    FakeRun run;
    run.group.words = {"layer-3"};  // as rank 1 says
    run.group.others = [&, loss = loss, own = own, reduced = reduced](int, Report& report) {
      if (run.progress.step < 1) return;  // done before
      report.loss_sum += loss;
      report.own_not_finite = own;
      report.reduced_not_finite = reduced;
    };
    const Status done = run.go();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kDiverged);
    EXPECT_THAT(done.error().message, testing::StartsWith(message));
    EXPECT_THAT(run.journal, Contains("update 1"));
    EXPECT_THAT(run.journal, Not(Contains("update 2")));
  }
}

TEST(TrainingLoop, CallsNoCheckpointIntactThatTheFailedStepBeganWith) {
  for (const std::int64_t every : {1, 2}) {
    FakeRun run(0, {.mode = "equal"}, {.every_steps = every, .keep = 9});
    run.group.others = [&](int, Report& report) {
      if (run.progress.step == 3) report.loss_sum = NAN;
    };
    const Status done = run.go();
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, HasSubstr(every == 1 ? "the last checkpoint (step 3) is what this step began with"
                                                           : "the last checkpoint is intact (step 2)"));
  }
}

TEST(TrainingLoop, EndsWithoutACheckpointOfWeightsThatHaveExploded) {
  FakeRun run(0, {.mode = "equal"}, {.every_steps = 2, .keep = 9});
  run.options.steps = 4;
  run.group.others = [&](int, Report&) { run.model.has_exploded = run.progress.step == 3; };
  const Status done = run.go();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kDiverged);
  EXPECT_THAT(done.error().message, HasSubstr("after step 4 the weights are huge, so that no checkpoint is made of "
                                              "them; the last one is intact (step 2)"));
  EXPECT_EQ(read_newest_checkpoint(run.folder.path / "checkpoint")->step, 2);
}

// What rank 1 tells of its weights, after this step.
void alter_weights_after(FakeRun& run, std::int64_t step) {
  run.group.other_numbers = [&run, step](int, std::span<double> numbers) {
    if (run.progress.step >= step) numbers.back() += 1;
  };
}

TEST(TrainingLoop, EndsWithoutACheckpointOfReplicasThatDiffer) {
  FakeRun run(0, {.mode = "equal"}, {.every_steps = 2, .keep = 9});
  alter_weights_after(run, 3);
  const Status done = run.go();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(done.error().message,
              testing::StartsWith("after step 4 the weights of rank 1 differ from those of rank 0, "));
  EXPECT_THAT(done.error().message, HasSubstr("(step 2)"));
  EXPECT_EQ(read_newest_checkpoint(run.folder.path / "checkpoint")->step, 2);
}

TEST(TrainingLoop, ComparesReplicasBeforeAnEvaluationAndAtTheEnd) {
  FakeRun evaluated;
  evaluated.options.evaluate_every_epochs = 1;
  evaluated.progress.next_evaluation = 1;
  alter_weights_after(evaluated, 1);
  EXPECT_FALSE(evaluated.go());
  EXPECT_EQ(evaluated.progress.step, 3);
  EXPECT_THAT(evaluated.journal, Not(Contains("evaluate 3")));

  FakeRun without_checkpoints;
  alter_weights_after(without_checkpoints, 1);
  EXPECT_FALSE(without_checkpoints.go());
  EXPECT_EQ(without_checkpoints.progress.step, 9);
}

TEST(TrainingLoop, EvaluationsThatAreFarBehindAreCaughtUpAtOnce) {
  FakeRun run;
  run.options.steps = 1;
  run.options.evaluate_every_epochs = 1e-15;
  run.progress.next_evaluation = -1;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.journal, Contains("evaluate 1"));
  EXPECT_NEAR(run.progress.next_evaluation, 1.0 / 3, 1e-8);
}

TEST(TrainingLoop, EndsWhereAnEmulationLies) {
  FakeRun run;
  run.emulation = EmulationWatch({"one", "two"}, 1, true);
  run.options.steps = 30;
  run.group.others = [](int, Report& report) {
    report.target = 1e-6;
    report.cpu = 1;
  };
  const Status done = run.go();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(done.error().message, HasSubstr("two"));
  EXPECT_EQ(run.progress.step, 19);
}

TEST(TrainingLoop, AsynchronousRanksSynchroniseWhereThereIsSomethingToDoTogether) {
  FakeRun run(0, {.mode = "equal"}, {.every_steps = 4, .keep = 1});
  run.sync.async = true;
  run.options.staleness = 1;
  run.options.steps = 8;
  ASSERT_TRUE(run.go());
  // At the ends of epochs, where checkpoints are due, and at the last step.
  EXPECT_THAT(run.without("begin run wait"), ElementsAre("update 3", "update 4", "update 6", "update 8"));
  // A rank may wait for one that is a step behind, and no more.
  EXPECT_THAT(run.sync.waits, ElementsAre(10, 10, 20, 10, 10, 20, 10, 20));
  EXPECT_EQ(run.lines("step_seconds").size(), 8U);  // each step is reported all the same
}

TEST(TrainingLoop, AsynchronousRanksSynchroniseAtLeastEveryTwentySteps) {
  FakeRun run;
  run.plan = *make_batch_plan({.mode = "equal"}, 36000);
  run.audit = SampleAudit(36000);
  run.sync.async = true;
  run.options.steps = 45;
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.without("begin run wait"), ElementsAre("update 20", "update 40", "update 45"));
}

TEST(TrainingLoop, BaselineStepsAreMeasuredByThemselves) {
  FakeRun run(0, {.baseline_every = 4, .baseline_steps = 2, .mode = "dynamic"});
  run.sync.async = true;
  run.options.steps = 8;
  run.plan = *make_batch_plan({.baseline_every = 4, .baseline_steps = 2, .mode = "dynamic"}, 36000);
  run.audit = SampleAudit(36000);
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.without("begin run wait"), ElementsAre("update 4", "update 6", "update 8"));
  std::vector<bool> baseline;
  for (const auto& line : run.lines("baseline")) baseline.push_back(line.at("baseline"));
  EXPECT_THAT(baseline, ElementsAre(false, false, false, false, true, true, false, false));
}

TEST(TrainingLoop, MovesToThePlanThatRankZeroHasFound) {
  FakeRun run(1);
  run.options.steps = 3;
  run.group.others = [&](int, Report& report) { report.moves = run.group.gathered.size() == 1 ? 1 : 0; };
  run.group.words = {nlohmann::json{{"plan", planning::to_json(make_two_stages())}, {"ranks", {1, 0}}}.dump()};
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.without("begin run wait"), ElementsAre("update 1", "update 2", "follow toy [1, 0]", "update 3"));
}

TEST(TrainingLoop, DoesNotMoveAfterTheLastStep) {
  FakeRun run(1);
  run.options.steps = 2;
  run.group.others = [&](int, Report& report) { report.moves = run.group.gathered.size() == 1 ? 1 : 0; };
  ASSERT_TRUE(run.go());
  EXPECT_THAT(run.without("begin run wait"), ElementsAre("update 1", "update 2"));
}

}  // namespace
}  // namespace motley::train
