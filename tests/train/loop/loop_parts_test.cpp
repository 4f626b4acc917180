// The parts of the training loop one by one: what is read ahead, counted, watched, reported and saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "motley/base/os/file.h"
#include "motley/train/loop/samples.h"
#include "tests/temporary_folder.h"
#include "tests/train/loop/fakes.h"

namespace motley::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct FakeRank {
  explicit FakeRank(int rank = 0) : group(rank, 2), context{rank, 2, session, group, timeline, 10} {}
  FakeSession session;
  FakeGroup group;
  TimelineRecorder timeline{0};
  RankContext context;
};

TEST(Reports, AreGatheredByStepAndRank) {
  FakeGroup group(1, 3);
  group.others = [](int rank, Report& report) { report.samples += 100 * rank; };
  std::vector<FinishedStep> steps(2);
  steps[0].report.samples = 1;
  steps[1].report.samples = 2;
  const auto reports = gather_reports(group, steps, Deadline::after(10));
  ASSERT_TRUE(reports);
  ASSERT_THAT(*reports, SizeIs(2));
  EXPECT_THAT((*reports)[0], SizeIs(3));
  EXPECT_EQ((*reports)[0][1].samples, 1);
  EXPECT_EQ((*reports)[0][2].samples, 201);
  EXPECT_EQ((*reports)[1][0].samples, 2);
}

TEST(Reports, TellHowLongEachRankWorkedAndWaited) {
  std::vector<Report> reports(2);
  reports[0].samples = 5;
  reports[0].compute = 4;
  reports[0].waited = 1;
  reports[0].total = 7;
  reports[1].compute = 6;
  reports[1].total = 7;
  const auto observed = observe(reports);
  EXPECT_EQ(last_compute(reports), 6);
  EXPECT_EQ(observed[0].samples, 5U);
  EXPECT_EQ(observed[0].seconds, 3);
  EXPECT_EQ(observed[0].wait, 4);  // for the other rank, for rows, and what follows
  EXPECT_EQ(observed[1].seconds, 6);
  EXPECT_EQ(observed[1].wait, 1);
}

class Numbers final : public data::Dataset {
 public:
  std::uint32_t size() const override { return 36; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  data::TargetKind target_kind() const override { return data::TargetKind::kReal; }
  std::uint32_t class_count() const override { return 0; }
  std::uint32_t target_width() const override { return 1; }
  Status read(std::span<const std::uint32_t> samples, const data::ReadTarget& into) const override {
    ++reads;
    for (std::size_t i = 0; i < into.features.size(); ++i) into.features[i] = static_cast<float>(samples[i]);
    for (std::size_t i = 0; i < into.values.size(); ++i) into.values[i] = static_cast<float>(samples[i]);
    return {};
  }
  mutable std::atomic<int> reads = 0;

 private:
  std::vector<std::int64_t> shape_ = {1};
};

TEST(SampleReader, TakesWhatItReadAhead) {
  FakeRank rank;
  const Numbers dataset;
  SampleAudit audit(36);
  auto plan = make_batch_plan();
  SampleReader reader(rank.context, dataset, audit, {.prefetch = 2});
  for (std::int64_t number = 1; number <= 3; ++number) {
    const auto step = plan->next(number);
    const auto samples = plan->samples(*step, 0);
    Report report;
    auto batch = reader.read(*step, samples, report);
    ASSERT_TRUE(batch) << batch.error().message;
    EXPECT_EQ(batch->samples, samples);
    EXPECT_EQ(batch->features[3], static_cast<float>(samples[3]));
    EXPECT_EQ(report.fetched, 0);
    reader.read_ahead(*plan, *step);
    ASSERT_TRUE(plan->commit(*step));
  }
  EXPECT_EQ(dataset.reads, 3);  // each batch once
  EXPECT_THAT(rank.session.phases, ElementsAre("loading", "loading", "loading"));
}

TEST(SampleReader, ReadsAfreshWhereTheSplitHasChanged) {
  FakeRank rank;
  const Numbers dataset;
  SampleAudit audit(36);
  auto plan = make_batch_plan();
  SampleReader reader(rank.context, dataset, audit, {.prefetch = 2, .remote = true});
  const auto step = plan->next(1);
  reader.read_ahead(*plan, *step);
  Report report;
  const std::vector<std::uint32_t> others = {7, 8};
  const auto batch = reader.read(*step, others, report);
  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_EQ(batch->samples, others);
  EXPECT_EQ(report.waited, report.fetched);  // reading at a data server is waiting
  EXPECT_EQ(report.load, 0);
}

TEST(SampleReader, ReadsThePartsThatItsStageNeedsAndCountsOnce) {
  FakeRank rank;
  const Numbers dataset;
  SampleAudit audit(36);
  SampleReader reader(rank.context, dataset, audit, {});
  reader.start({.inputs = false, .targets = true}, false);
  Report report;
  const auto batch = reader.read({.number = 1, .plan = {}}, std::vector<std::uint32_t>{3}, report);
  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_THAT(batch->features, IsEmpty());
  EXPECT_THAT(batch->values, ElementsAre(3));
  EXPECT_EQ(audit.merge(rank.context)->counts()[3], 0);
}

TEST(SampleAudit, AddsUpWhatAllRanksHaveUsed) {
  FakeRank rank;
  rank.group.reduces_by_size = true;  // the other rank has used the same
  SampleAudit audit(4);
  audit.record(std::vector<std::uint32_t>{0, 1, 1});
  const auto merged = audit.merge(rank.context);
  ASSERT_TRUE(merged);
  EXPECT_THAT(merged->counts(), ElementsAre(2, 4, 0, 0));
}

TEST(SampleAudit, FindsSamplesLostOrDuplicated) {
  FakeRank rank;
  SampleAudit audit(4);
  audit.record(std::vector<std::uint32_t>{0, 1, 1, 2});
  auto finding = audit.check(rank.context, {.epoch = 1, .size = 4});
  ASSERT_TRUE(finding) << finding.error().message;
  EXPECT_EQ(finding->epoch, 0U);
  EXPECT_EQ(finding->wrong, 2U);  // 1 twice, 3 never
  audit.record(std::vector<std::uint32_t>{0, 1, 2, 3});
  finding = audit.check(rank.context, {.epoch = 2, .size = 4});
  EXPECT_EQ(finding->epoch, 1U);
  EXPECT_EQ(finding->wrong, 0U);
  EXPECT_EQ(audit.not_used_once(), 2);
}

TEST(SampleAudit, OnlyTheFirstRankGoesOnFromTheCountsOfAll) {
  FakeRank rank;
  SampleAudit audit(4);
  audit.record(std::vector<std::uint32_t>{0, 1});
  const std::string counts = audit.merge(rank.context)->serialise();
  SampleAudit first(4), second(4);
  ASSERT_TRUE(first.restore(counts, 5, 0, true));
  ASSERT_TRUE(second.restore(counts, 5, 0, false));
  EXPECT_THAT(first.merge(rank.context)->counts(), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(second.merge(rank.context)->counts(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(second.not_used_once(), 5);
  EXPECT_FALSE(first.restore("rubbish", 0, 0, true));
}

TEST(EmulationWatch, NotesStepsThatWereLate) {
  EmulationWatch watch({"one", "two"}, 64, true);
  std::vector<Report> reports(2);
  for (int step = 1; step <= 10; ++step) {
    reports[0] = {.compute = 1.0, .total = 1.2, .target = 1};
    reports[1] = {.compute = step <= 2 ? 1.5 : 1.0, .total = 1.5, .target = 1};
    ASSERT_TRUE(watch.check({.number = step, .plan = {}}, reports));
  }
  EXPECT_THAT(watch.notes(), ElementsAre("", "20 % of its steps took 50 % longer than that, as this machine was busy"));
}

TEST(EmulationWatch, RefusesAMachineThatIsTooBusy) {
  for (const bool may_refuse : {true, false}) {
    EmulationWatch watch({"one"}, 1, may_refuse);
    const std::vector<Report> reports = {{.compute = 1, .total = 1, .cpu = 1, .target = 0.5}};
    Status last;
    for (int step = 1; step <= 20; ++step) {
      ASSERT_TRUE(last) << "before the load was averaged";
      ASSERT_TRUE(watch.check({.number = step, .plan = {}, .baseline = true}, reports));
      last = watch.check({.number = step, .plan = {}}, reports);
    }
    EXPECT_EQ(last.has_value(), !may_refuse);
    if (!last) {
      EXPECT_THAT(last.error().message, HasSubstr("one"));
    }
  }
}

TEST(EmulationWatch, DoesNotJudgeANewcomerByItsFirstStep) {
  const Report good = {.compute = 1, .total = 1, .cpu = 0.1, .target = 1};
  const Report away = {.compute = 0, .total = 1, .cpu = 0, .target = -1};
  const Report cold = {.compute = 1, .total = 1, .cpu = 1.5, .target = 1};
  for (const int cold_steps : {1, 2}) {
    EmulationWatch watch({"one", "two"}, 64, true);
    Status last;
    for (int step = 1; step <= 20; ++step) {
      const Report& second = step + cold_steps <= 20 ? away : cold;
      last = watch.check({.number = step, .plan = {}}, std::vector{good, second});
    }
    EXPECT_EQ(last.has_value(), cold_steps == 1) << cold_steps;
  }
}

nlohmann::json read_line(const std::filesystem::path& folder) {
  return nlohmann::json::parse(*read_file(folder / "metrics.jsonl"));
}

TEST(Reporter, WritesAStepAsItsRanksMeasuredIt) {
  TemporaryFolder folder;
  auto plan = make_batch_plan();
  Step step = *plan->next(7);
  step.learning_rate = 0.5;
  std::vector<Report> reports(2);
  reports[0] = {.samples = 8,
                .load = 0.25,
                .compute = 2,
                .total = 4,
                .memory = 100,
                .loss_sum = 3,
                .loss_count = 8,
                .metric_sum = 6,
                .metric_count = 8,
                .sent_bytes = 10};
  reports[1] = {.samples = 4,
                .compute = 3,
                .waited = 0.5,
                .total = 4,
                .memory = 200,
                .loss_sum = 3,
                .loss_count = 4,
                .metric_sum = 3,
                .metric_count = 4,
                .sent_bytes = 20,
                .rows = {.needed = 7},
                .fetched = 0.5};
  {
    Reporter reporter({.steps = 10, .has_remote_data = true, .has_served_table = true});
    ASSERT_TRUE(reporter.open(folder.path));
    ASSERT_TRUE(reporter.step(step, reports, *plan, 4.5));
  }
  const auto line = read_line(folder.path);
  EXPECT_EQ(line.at("step"), 7);
  EXPECT_EQ(line.at("epoch"), 0);
  EXPECT_EQ(line.at("loss"), 0.5);
  EXPECT_EQ(line.at("accuracy"), 0.75);
  EXPECT_EQ(line.at("learning_rate"), 0.5);
  EXPECT_EQ(line.at("step_seconds"), 4.5);
  EXPECT_EQ(line.at("mode"), "equal");
  EXPECT_EQ(line.at("baseline"), false);
  EXPECT_EQ(line.at("samples"), nlohmann::json({8, 4}));
  EXPECT_EQ(line.at("compute_seconds"), nlohmann::json({1.75, 2.5}));
  EXPECT_EQ(line.at("load_seconds"), nlohmann::json({0.25, 0.0}));
  EXPECT_EQ(line.at("wait_seconds"), nlohmann::json({1.0, 0.5}));
  EXPECT_EQ(line.at("gradient_sync_seconds"), nlohmann::json({1.0, 1.0}));
  EXPECT_EQ(line.at("sent_bytes"), nlohmann::json({10.0, 20.0}));
  EXPECT_EQ(line.at("data_wait_seconds"), nlohmann::json({0.0, 0.5}));
  EXPECT_EQ(line.at("embedding").at("needed"), nlohmann::json({0.0, 7.0}));
  EXPECT_FALSE(line.contains("staleness"));
  EXPECT_FALSE(line.contains("mean_absolute_error"));
  EXPECT_FALSE(line.contains("predicted_seconds"));
}

TEST(Reporter, OfRanksAtDifferentStepsTellsTheStaleness) {
  TemporaryFolder folder;
  auto plan = make_batch_plan();
  const std::vector<Report> reports = {{.samples = 1, .compute = 1, .total = 3, .staleness = 2}};
  {
    Reporter reporter({.steps = 10, .has_accuracy = false, .is_async = true});
    ASSERT_TRUE(reporter.open(folder.path));
    ASSERT_TRUE(reporter.step(*plan->next(1), reports, *plan, 3));
  }
  const auto line = read_line(folder.path);
  EXPECT_EQ(line.at("staleness"), nlohmann::json({2}));
  EXPECT_EQ(line.at("wait_seconds"), nlohmann::json({2.0}));
  EXPECT_TRUE(line.contains("mean_absolute_error"));
  EXPECT_FALSE(line.contains("accuracy"));
}

TEST(Reporter, IsSilentWhereItWasNotOpened) {
  auto plan = make_batch_plan();
  Reporter reporter({.steps = 10});
  EXPECT_TRUE(reporter.step(*plan->next(1), std::vector<Report>(2), *plan, 1));
  EXPECT_TRUE(reporter.evaluation(1, 0, {{"loss", 1}}));
  EXPECT_TRUE(reporter.audit(1, {}));
  EXPECT_TRUE(reporter.event(1, "warning", "text"));
  EXPECT_TRUE(reporter.flush());
}

TEST(Reporter, WritesWhatHappensBetweenSteps) {
  TemporaryFolder folder;
  {
    Reporter reporter({.steps = 10});
    ASSERT_TRUE(reporter.open(folder.path));
    ASSERT_TRUE(reporter.audit(3, {.epoch = 1, .wrong = 2}));
  }
  const auto line = read_line(folder.path);
  EXPECT_EQ(line.at("event"), "audit");
  EXPECT_EQ(line.at("text"), "epoch 1: 2 samples lost or duplicated");
  EXPECT_EQ(line.at("samples_lost_or_duplicated"), 2);
  EXPECT_EQ(line.at("step"), 3);
}

// A run of its own, to save and restore.
struct Saved : FakeRank {
  explicit Saved(const std::filesystem::path& folder, int rank = 0, Checkpoints::Options options = {.keep = 1})
      : FakeRank(rank), checkpoints(context, folder, options), plan(*make_batch_plan()) {}
  RunState state() { return {progress, plan, audit, model}; }
  static Status as_it_is(Status loaded) { return loaded; }

  Journal journal;
  Checkpoints checkpoints;
  RunProgress progress;
  BatchPlan plan;
  SampleAudit audit{36};
  FakeModel model{journal};
  Reporter reporter{{}};
};

// What a rank that has weights 1 finds out where each rank tells these, after step 5, with a checkpoint of step 4.
std::string compare_replicas(const std::vector<WeightsHash>& told, ReplicaCheck& check, std::vector<int> present = {}) {
  const int size = static_cast<int>(told.size());
  FakeSession session;
  FakeGroup group(0, size);
  group.other_numbers = [&](int rank, std::span<double> numbers) {
    const WeightsHash& its = told[static_cast<std::size_t>(rank)];
    const double values[] = {static_cast<double>(its.replicas), static_cast<double>(its.arithmetic),
                             static_cast<double>(its.hash >> 32), static_cast<double>(its.hash & 0xffffffff)};
    std::ranges::copy(values, numbers.begin());
  };
  TimelineRecorder timeline{0};
  RankContext context{0, size, session, group, timeline, 10};
  if (!present.empty()) context.present = std::move(present);
  const Status done = check.compare(context, {.step = 5, .saved_step = 4}, told.front());
  return done ? "" : done.error().message.substr(0, done.error().message.find(','));
}

TEST(ReplicaCheck, NamesThoseWhoseWeightsFewerHave) {
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 63;
  ReplicaCheck check;
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 1, 7}, {1, 1, 7}}, check), "");
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 1, 7}, {1, 1, 6}}, check),
            "after step 5 the weights of rank 2 differ from those of ranks 0");
  EXPECT_EQ(compare_replicas({{1, 1, 7 + kHigh}, {1, 1, 7}, {1, 1, 7}}, check),
            "after step 5 the weights of rank 0 differ from those of ranks 1");
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 1, 6}}, check),
            "after step 5 the weights of rank 1 differ from those of rank 0");
}

TEST(ReplicaCheck, ComparesWithinAStageAndThoseWhoAreThereAndHaveWeights) {
  ReplicaCheck check;
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {2, 2, 6}, {1, 1, 7}, {2, 2, 6}}, check), "");
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {2, 2, 6}, {1, 1, 7}, {2, 2, 5}}, check),
            "after step 5 the weights of rank 3 differ from those of rank 1");
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {}, {1, 1, 6}, {1, 1, 7}}, check, {0, 1, 3}), "");
}

TEST(ReplicaCheck, ComparesNobodyWhereSomeRoundOtherwise) {
  ReplicaCheck check;
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 2, 6}, {2, 1, 3}, {2, 1, 3}}, check), "");
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 1, 6}}, check), "") << "one may have its weights from one that has gone";
  EXPECT_EQ(compare_replicas({{1, 1, 7}, {1, 1, 7}, {2, 1, 3}, {2, 1, 4}}, check),
            "after step 5 the weights of rank 3 differ from those of rank 2");
}

TEST(Checkpoints, ARunGoesOnFromWhatItSaved) {
  TemporaryFolder folder;
  Saved before(folder.path);
  const Step step = *before.plan.next(1);
  for (const int rank : {0, 1}) before.audit.record(before.plan.samples(step, rank));
  ASSERT_TRUE(before.plan.commit(step));
  before.progress = {.step = 1, .evaluated_step = 1, .next_evaluation = 2};
  before.model.servers = 3;
  before.model.weights_ = "learnt";
  ASSERT_TRUE(before.checkpoints.save(before.state(), before.reporter));
  EXPECT_EQ(before.progress.saved_step, 1);
  EXPECT_THAT(before.journal, ElementsAre("save embeddings"));

  Saved after(folder.path);
  auto newest = read_newest_checkpoint(folder.path);
  ASSERT_TRUE(newest) << newest.error().message;
  const auto restored = after.checkpoints.restore(std::move(*newest), after.state(), Saved::as_it_is);
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_TRUE(*restored);
  EXPECT_EQ(after.progress.step, 1);
  EXPECT_EQ(after.progress.evaluated_step, 1);
  EXPECT_EQ(after.progress.saved_step, 1);
  EXPECT_EQ(after.progress.next_evaluation, 2);
  EXPECT_EQ(after.model.weights_, "learnt");
  EXPECT_EQ(after.model.optimizer_, "momentum");
  EXPECT_EQ(after.plan.ledger(), before.plan.ledger());
  EXPECT_EQ(after.audit.merge(after.context)->counts()[0], before.audit.merge(before.context)->counts()[0]);
  EXPECT_THAT(after.journal, ElementsAre("start 1 3"));
}

// What was said to be written must not be away for a moment, not even to make room for the same again.
TEST(Checkpoints, AGoodOneOfAStepStaysAndADamagedOneIsReplaced) {
  TemporaryFolder folder;
  Saved run(folder.path);
  const Step step = *run.plan.next(1);
  ASSERT_TRUE(run.plan.commit(step));
  run.progress.step = 1;
  const auto save = [&](const char* weights) {
    run.model.weights_ = weights;
    run.progress.saved_step = 0;
    ASSERT_TRUE(run.checkpoints.save(run.state(), run.reporter));
  };
  const auto read = [&] { return read_newest_checkpoint(folder.path)->files.at(kWeightsFile); };
  save("first");
  save("again");
  EXPECT_EQ(read(), "first");
  std::ofstream(folder.path / "step-00000001" / kWeightsFile, std::ios::app) << "x";
  save("mended");
  EXPECT_EQ(read(), "mended");
}

// What others have left unfinished is told by the name of its folder, not by those of the folders around it.
TEST(Checkpoints, AreToldFromWhatIsUnfinished) {
  TemporaryFolder folder;
  const auto own = folder.path / "experiment.part-2" / "checkpoint";
  std::filesystem::create_directories(own / "step-00000001.part-0");
  Saved run(own, 0, {.keep = 2});
  for (const std::int64_t step : {2, 3}) {
    run.progress.step = step;
    run.progress.saved_step = 0;
    ASSERT_TRUE(run.checkpoints.save(run.state(), run.reporter));
  }
  EXPECT_TRUE(std::filesystem::exists(own / "step-00000002"));
  EXPECT_TRUE(std::filesystem::exists(own / "step-00000003"));
  EXPECT_FALSE(std::filesystem::exists(own / "step-00000001.part-0"));
}

// A run that went back past a damaged one keeps as many good ones as it is to.
TEST(Checkpoints, ThoseOfLaterStepsAreNotCounted) {
  TemporaryFolder folder;
  Saved run(folder.path);
  const auto save = [&](std::int64_t step) {
    run.progress.step = step;
    run.progress.saved_step = 0;
    ASSERT_TRUE(run.checkpoints.save(run.state(), run.reporter));
  };
  save(100);
  std::ofstream(folder.path / "step-00000100" / kWeightsFile, std::ios::app) << "x";
  save(60);
  const auto newest = read_newest_checkpoint(folder.path);
  ASSERT_TRUE(newest) << newest.error().message;
  EXPECT_EQ(newest->step, 60);
  save(101);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "step-00000060"));
}

// state.json is read as it was written, and refused where any field says what no run can have said.
TEST(Checkpoints, RefuseAStateThatNoRunHas) {
  using Json = nlohmann::json;
  const SavedState good = {.step = 7,
                           .ledger = {.seed = ~std::uint64_t{0}, .epoch = 2, .cursor = 12, .size = 36},
                           .partition = R"({"batch_split":[6,6]})",
                           .table_servers = 2,
                           .evaluated_step = 6,
                           .next_evaluation = 2.5,
                           .not_used_once = 1};
  const auto same = parse_state(format_state(good));
  ASSERT_TRUE(same) << same.error().message;
  EXPECT_EQ(format_state(*same), format_state(good));
  EXPECT_EQ(same->ledger, good.ledger);
  EXPECT_EQ(same->partition, good.partition);
  struct Case {
    const char* field;
    Json value;
    const char* accepted;
  };
  const Case cases[] = {
      {"/step", -1, "'step' is -1"},
      {"/step", 1e300, "'step' is 1e+300"},
      {"/step", 1, "'ledger.epoch' is 2; accepted is 0 to 1"},
      {"/ledger/epoch", std::uint64_t{1} << 63, "'ledger.epoch' is 9223372036854775808; accepted is 0 to 7"},
      {"/ledger/epoch", -1, "'ledger.epoch' is -1"},
      {"/ledger/cursor", 36, "'ledger.cursor' is 36; accepted is 0 to 35"},
      {"/ledger/cursor", std::uint64_t{1} << 32, "'ledger.cursor' is 4294967296"},
      {"/ledger/size", 0, "'ledger.size' is 0"},
      {"/ledger/seed", 0.5, "'ledger.seed' is 0.5"},
      {"/ledger/colour", 1, "ledger.colour"},
      {"/evaluated_step", 8, "'evaluated_step' is 8; accepted is 0 to 7"},
      {"/next_evaluation", -1e300, "'next_evaluation' is -1e+300"},
      {"/next_evaluation", nullptr, "'next_evaluation' is null"},
      {"/samples_lost_or_duplicated", -1, "'samples_lost_or_duplicated' is -1"},
      {"/embedding_servers", 1e10, "'embedding_servers' is 1"},
      {"/version", 3, "'version' is 3"},
  };
  for (const auto& [field, value, accepted] : cases) {
    Json json = Json::parse(format_state(good));
    json[Json::json_pointer(field)] = value;
    const auto state = parse_state(json.dump());
    ASSERT_FALSE(state) << field << " " << value;
    EXPECT_THAT(state.error().message, testing::AllOf(HasSubstr("state.json"), HasSubstr(accepted)));
  }
}

TEST(Checkpoints, StartAfreshWithWeightsOrWithout) {
  TemporaryFolder folder;
  Saved with(folder.path), without(folder.path);
  Checkpoint start;
  start.files["weights.safetensors"] = "first";
  ASSERT_TRUE(*with.checkpoints.restore(start, with.state(), Saved::as_it_is));
  EXPECT_EQ(with.model.weights_, "first");
  EXPECT_EQ(with.progress.step, 0);
  ASSERT_TRUE(*without.checkpoints.restore({}, without.state(), Saved::as_it_is));
  EXPECT_EQ(without.model.weights_, "weights");
  EXPECT_THAT(without.journal, ElementsAre("start 0 0"));
}

TEST(Checkpoints, SayWhyAStateDoesNotFit) {
  TemporaryFolder folder;
  Saved run(folder.path);
  run.model.fits = false;
  Checkpoint start;
  start.files["weights.safetensors"] = "other";
  const auto refused = run.checkpoints.restore(start, run.state(), [](Status loaded) -> Status {
    return fail(ErrorCode::kInvalidInput, "the job has changed ({})", loaded.error().message);
  });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the job has changed (the weights do not fit)");
}

TEST(Checkpoints, OtherRanksTakeWhatTheFirstOneHas) {
  TemporaryFolder folder;
  Saved run(folder.path, 1);
  run.group.words = {"its weights", "", "", ""};
  ASSERT_TRUE(run.checkpoints.restore({}, run.state(), Saved::as_it_is));
  EXPECT_EQ(run.model.weights_, "its weights");
}

TEST(Checkpoints, AreDueByStepsByTimeOrNever) {
  TemporaryFolder folder;
  Saved run(folder.path, 0, {.every_steps = 3, .every_seconds = 60, .keep = 1});
  run.checkpoints.start_clock(1000);
  EXPECT_TRUE(run.checkpoints.is_due_after(6));
  EXPECT_FALSE(run.checkpoints.is_due_after(7));
  EXPECT_TRUE(run.checkpoints.is_due(7, 1060));
  EXPECT_FALSE(run.checkpoints.is_due(7, 1059));
  Saved never(folder.path, 0, {});
  EXPECT_FALSE(never.checkpoints.is_due_after(6));
  EXPECT_FALSE(never.checkpoints.is_due(7, 1e9));
  ASSERT_TRUE(never.checkpoints.save(never.state(), never.reporter));
  EXPECT_FALSE(holds_checkpoint(folder.path));
}

}  // namespace
}  // namespace motley::train
