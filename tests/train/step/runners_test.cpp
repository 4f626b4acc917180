// The ways of computing a step, with a small real network: whatever the samples are split into, the same gradient goes
// out, and what follows it is clipped and applied once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "motley/nn/networks.h"
#include "motley/train/step/batch_runners.h"
#include "motley/train/step/bucketed_gradient_sync.h"
#include "motley/train/step/test_evaluation.h"
#include "tests/train/loop/fakes.h"

namespace motley::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Points final : public data::Dataset {
 public:
  std::uint32_t size() const override { return 36; }
  const std::vector<std::int64_t>& feature_shape() const override { return shape_; }
  data::TargetKind target_kind() const override { return data::TargetKind::kClass; }
  std::uint32_t class_count() const override { return 2; }
  std::uint32_t target_width() const override { return 1; }
  Status read(std::span<const std::uint32_t> samples, const data::ReadTarget& into) const override {
    if (fails) return fail(ErrorCode::kPeerLost, "given up");
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const double angle = samples[i];
      into.features[2 * i] = static_cast<float>(std::sin(angle));
      into.features[2 * i + 1] = static_cast<float>(std::cos(angle));
      into.classes[i] = samples[i] % 2;
    }
    return {};
  }

  std::atomic<bool> fails = false;

 private:
  std::vector<std::int64_t> shape_ = {2};
};

// One rank of two: what it gives is reduced with nothing of the other, or, where it breaks off, not any more.
class FakeReducer final : public collective::GradientReducer {
 public:
  Status prepare(const collective::Layout& layout, const Deadline&) override {
    for (const std::size_t elements : layout.bucket_elements) memory_.emplace_back(elements * sizeof(double));
    return {};
  }
  std::span<std::byte> buffer(int bucket) override {
    auto& memory = memory_[static_cast<std::size_t>(bucket)];
    return std::as_writable_bytes(std::span(memory));
  }
  Status start(std::uint64_t step, int bucket, double weight) override {
    started.push_back(fmt::format("step {} bucket {} weight {}", step, bucket, weight));
    return {};
  }
  Result<collective::Outcome> wait(int bucket, const Deadline&) override {
    if (breaks_off) {
      std::ranges::fill(buffer(bucket), std::byte{1});
      return fail(ErrorCode::kPeerLost, "given up");
    }
    collective::Outcome outcome;
    outcome.staleness = 3;
    return outcome;
  }
  void abort(const Error&) override {}
  std::string name() const override { return "fake"; }
  std::uint64_t bytes_sent() const override { return 17; }

  std::vector<std::string> started;
  bool breaks_off = false;

 private:
  std::vector<std::vector<std::byte>> memory_;
};

// A rank with a network of float64, and the parts that a step of it needs.
struct Rank {
  explicit Rank(double max_grad_norm = 0, double learning_rate = 0.1, int replica = 1, bool keeps_own = false) {
    nn::NetworkSpec spec;
    spec.name = "mlp";
    spec.input_shape = {2};
    spec.hidden = {{4}};
    spec.outputs = 2;
    spec.dtype = "float64";
    network.dtype = torch::kFloat64;
    network.stage = *nn::make_stage(spec, 5, {});
    BucketedGradientSync::Parts parts;
    auto owned = std::make_unique<FakeReducer>();
    reducer = owned.get();
    parts.method.reducer = std::move(owned);
    parts.optimizer = *nn::Optimizer::create({.learning_rate = learning_rate}, network.stage->parameters());
    parts.buckets = *nn::GradientBuckets::create(network.stage->parameters(), 1 << 20, {.keeps_own = keeps_own});
    collective::Layout layout;
    layout.bucket_elements = parts.buckets->bucket_elements();
    EXPECT_TRUE(reducer->prepare(layout, Deadline::after(10)));
    EXPECT_TRUE(parts.buckets->bind({reducer->buffer(0)}));
    sync.emplace(context, group, network, tensors, std::move(parts),
                 BucketedGradientSync::Options{.max_grad_norm = max_grad_norm, .replicas = 2, .replica = replica});
  }
  RunnerParts parts(const BatchPlan& plan) { return {context, network, tensors, reader, plan, *sync}; }
  std::vector<double> gradients() const {
    std::vector<double> values;
    for (const auto& parameter : network.stage->parameters()) {
      const torch::Tensor flat = parameter.tensor.grad().flatten();
      values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  }
  std::vector<double> weights() const {
    std::vector<double> values;
    for (const auto& parameter : network.stage->parameters()) {
      const torch::Tensor flat = parameter.tensor.detach().flatten();
      values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  }

  FakeSession session;
  FakeGroup group{0, 2};
  TimelineRecorder timeline{0};
  RankContext context{0, 2, session, group, timeline, 10};
  Points dataset;
  SampleAudit audit{36};
  SampleReader reader{context, dataset, audit, {.prefetch = 1}};
  LocalNetwork network;
  BatchTensors tensors{context, network, reader};
  FakeReducer* reducer = nullptr;
  std::optional<BucketedGradientSync> sync;
};

Result<BatchPlan> make_queue(std::uint32_t shards) {
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kPull;
  split.batch = 12;
  split.shards = shards;
  split.limits.resize(2);
  return BatchPlan::create({.mode = "work-queue"}, split, data::LedgerState{.seed = 3, .size = 36});
}

std::vector<double> run_shares(std::int64_t micro_batches, Report& report) {
  Rank rank;
  auto plan = make_batch_plan();
  BatchComputation computation(rank.parts(*plan), {.micro_batches = micro_batches}, 1);
  DataParallelRunner runner(rank.parts(*plan), computation);
  const Step step = *plan->next(1);
  rank.sync->begin(step);
  EXPECT_TRUE(runner.run(step, report));
  EXPECT_THAT(rank.reducer->started, ElementsAre("step 1 bucket 0 weight 6"));
  EXPECT_TRUE(rank.sync->wait(step, 10, report));
  return rank.gradients();
}

TEST(DataParallelRunner, MicroBatchesAddUpToTheBatch) {
  Report whole, parts;
  const std::vector<double> expected = run_shares(1, whole);
  const std::vector<double> found = run_shares(4, parts);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
  EXPECT_EQ(whole.samples, 6);
  EXPECT_EQ(parts.samples, 6);
  EXPECT_NEAR(whole.loss_sum, parts.loss_sum, 1e-12);
  EXPECT_EQ(whole.loss_count, 6);
  EXPECT_EQ(whole.metric_sum, parts.metric_sum);
  EXPECT_EQ(whole.staleness, 3);
  EXPECT_EQ(whole.target, -1);  // not emulated
}

// A rank is lost while gradients are reduced, and another one while what the first one left is read: it is all added
// once more, and nothing twice.
TEST(DataParallelRunner, WhatIsAddedAgainCountsOnce) {
  std::vector<std::vector<double>> gradients;
  for (const bool fails : {false, true}) {
    Rank rank(0, 0.1, 1, true);
    auto plan = make_batch_plan();
    BatchComputation computation(rank.parts(*plan), {}, 1);
    DataParallelRunner runner(rank.parts(*plan), computation);
    const Step step = *plan->next(1);
    Report report;
    rank.sync->begin(step);
    ASSERT_TRUE(runner.run(step, report));
    const std::vector<std::uint32_t> others = plan->samples(step, 1);
    ASSERT_EQ(others.size(), 6U);
    rank.dataset.fails = fails;
    if (fails) {
      rank.reducer->breaks_off = true;
      EXPECT_FALSE(rank.sync->wait(step, 10, report));
      EXPECT_FALSE(runner.add(step, others, report));
    }
    rank.dataset.fails = false;
    ASSERT_TRUE(runner.add(step, others, report));
    EXPECT_EQ(rank.reducer->started.back(), "step 1 bucket 0 weight 12");
    gradients.push_back(rank.gradients());
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) EXPECT_NEAR(gradients[1][i], gradients[0][i], 1e-12);
}

TEST(BucketedGradientSync, ReportsTheFirstGradientThatIsNotFinite) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const double weight : {6.0, 0.0}) {
      Rank rank;
      const Step step = *(*make_batch_plan()).next(1);
      rank.sync->begin(step);
      const nn::NamedTensor& last = rank.network.stage->parameters().back();
      last.tensor.mutable_grad() = torch::full_like(last.tensor, value);
      ASSERT_TRUE(rank.sync->start(step, weight));
      Report report;
      ASSERT_TRUE(rank.sync->wait(step, 10, report));
      if (weight == 0) {
        EXPECT_EQ(report.own_not_finite, 0) << "nobody uses it";
      } else {
        EXPECT_EQ(rank.sync->parameter_name(static_cast<std::size_t>(report.own_not_finite)), last.name);
      }
    }
  }
}

// Each of two replicas looks at its half.
TEST(BucketedGradientSync, ReportsWhatIsNotFiniteOnceItIsReduced) {
  for (const int replica : {0, 1}) {
    Rank rank(0, 0.1, replica);
    const Step step = *(*make_batch_plan()).next(1);
    rank.sync->begin(step);
    ASSERT_TRUE(rank.sync->start(step, 6));
    const auto bytes = rank.reducer->buffer(0);
    auto* values = reinterpret_cast<double*>(bytes.data());
    values[bytes.size() / sizeof(double) - 1] = std::numeric_limits<double>::infinity();  // of the last parameter
    Report report;
    ASSERT_TRUE(rank.sync->wait(step, 10, report));
    EXPECT_EQ(report.own_not_finite, 0);
    EXPECT_EQ(report.reduced_not_finite != 0, replica == 1);
  }
}

TEST(DataParallelRunner, ARankWithoutSamplesTakesPartAllTheSame) {
  Rank rank;
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kFixed;
  split.batch = 12;
  split.limits.resize(2);
  split.limits[0].minimum = 0;
  split.proportions = {0, 1};
  auto plan = BatchPlan::create({.mode = "fixed"}, split, data::LedgerState{.seed = 3, .size = 36});
  ASSERT_TRUE(plan) << plan.error().message;
  BatchComputation computation(rank.parts(*plan), {}, 1);
  DataParallelRunner runner(rank.parts(*plan), computation);
  const Step step = *plan->next(1);
  Report report;
  rank.sync->begin(step);
  ASSERT_TRUE(runner.run(step, report));
  EXPECT_THAT(rank.reducer->started, ElementsAre("step 1 bucket 0 weight 0"));
  EXPECT_EQ(report.samples, 0);
}

TEST(WorkQueueRunner, TheMeanIsThatOfWhatWasClaimed) {
  Rank queue, shares;
  auto plan = make_queue(4);
  ASSERT_TRUE(plan) << plan.error().message;
  BatchComputation computation(queue.parts(*plan), {}, 1);
  WorkQueueRunner runner(queue.parts(*plan), computation);
  const Step step = *plan->next(1);
  Report report;
  queue.sync->begin(step);
  ASSERT_TRUE(runner.run(step, report));
  EXPECT_EQ(report.samples, 12);  // the other rank was too slow
  EXPECT_THAT(queue.reducer->started, ElementsAre("step 1 bucket 0 weight 12"));

  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kEqual;
  split.batch = 12;
  split.limits.resize(1);
  auto alone = BatchPlan::create({.mode = "equal"}, split, data::LedgerState{.seed = 3, .size = 36});
  BatchComputation whole(shares.parts(*alone), {}, 1);
  DataParallelRunner all(shares.parts(*alone), whole);
  const Step same = *alone->next(1);
  Report other;
  shares.sync->begin(same);
  ASSERT_TRUE(all.run(same, other));
  const std::vector<double> expected = shares.gradients();
  const std::vector<double> found = queue.gradients();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
}

TEST(WorkQueueRunner, KnowsWhereTheNextStepBegins) {
  Rank rank;
  auto plan = make_queue(4);
  BatchComputation computation(rank.parts(*plan), {}, 1);
  WorkQueueRunner runner(rank.parts(*plan), computation);
  rank.group.claims_of_others = 1;  // the other rank claims every second shard, and once in vain
  for (std::int64_t number = 1; number <= 2; ++number) {
    const Step step = *plan->next(number);
    Report report;
    rank.group.counter = (number - 1) * (4 + 2);
    rank.sync->begin(step);
    ASSERT_TRUE(runner.run(step, report));
    EXPECT_EQ(report.samples, 6);
    ASSERT_TRUE(rank.sync->wait(step, 10, report));
    ASSERT_TRUE(plan->commit(step));
  }
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

TEST(BucketedGradientSync, UpdatesTheWeightsByTheClippedGradient) {
  Rank rank(0.01, 1);
  auto plan = make_batch_plan();
  BatchComputation computation(rank.parts(*plan), {}, 1);
  DataParallelRunner runner(rank.parts(*plan), computation);
  Step step = *plan->next(1);
  step.learning_rate = 0.5;
  Report report;
  rank.sync->begin(step);
  ASSERT_TRUE(runner.run(step, report));
  ASSERT_TRUE(rank.sync->wait(step, 10, report));
  ASSERT_GT(norm(rank.gradients()), 0.01);
  const std::vector<double> before = rank.weights();
  ASSERT_TRUE(rank.sync->update(step));
  EXPECT_NEAR(norm(rank.gradients()), 0.01, 1e-9);
  std::vector<double> moved = rank.weights();
  for (std::size_t i = 0; i < moved.size(); ++i) moved[i] -= before[i];
  EXPECT_NEAR(norm(moved), 0.5 * 0.01, 1e-9);
  EXPECT_EQ(rank.sync->bytes_sent(), 17U);
  EXPECT_FALSE(rank.sync->is_async());
  EXPECT_THAT(rank.session.phases,
              ElementsAre("loading", "forward", "backward", "gradient synchronisation", "optimizer"));
}

TEST(BucketedGradientSync, LeavesTheWeightsOfASyntheticNetwork) {
  Rank rank;
  rank.network.is_synthetic = true;
  const std::vector<double> before = rank.weights();
  const Step step{.number = 1, .plan = {}, .learning_rate = 1};
  rank.sync->begin(step);
  ASSERT_TRUE(rank.sync->start(step, 1));
  ASSERT_TRUE(rank.sync->update(step));
  EXPECT_EQ(rank.weights(), before);
}

TEST(TestEvaluation, RanksAddUpToTheWholeTestData) {
  Rank rank;
  const Points test;
  FakeGroup group(0, 1);
  RankContext alone{0, 1, rank.session, group, rank.timeline, 10};
  TestEvaluation whole(alone, rank.network, rank.tensors, &test, 5);
  TestEvaluation half(rank.context, rank.network, rank.tensors, &test, 5);
  const auto all = whole.evaluate(3);
  ASSERT_TRUE(all && *all);
  EXPECT_EQ((**all)[0].name, "loss");
  EXPECT_TRUE(std::isfinite((**all)[0].value));
  const auto first = half.evaluate(3);
  ASSERT_TRUE(first && *first);
  EXPECT_NE((**first)[0].value, (**all)[0].value);
  EXPECT_TRUE(rank.network.stage->is_training());
  TestEvaluation none(rank.context, rank.network, rank.tensors, nullptr, 5);
  EXPECT_FALSE(*none.evaluate(3));
}

}  // namespace
}  // namespace motley::train
