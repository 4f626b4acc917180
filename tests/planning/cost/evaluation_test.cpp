// Both cost models against closed forms that are worked out by hand in each test, and what is said of broken limits.
#include "motley/planning/cost/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/random.h"

namespace motley::planning {
namespace {

using ::testing::HasSubstr;

// Two types and three layers in round numbers. The profile's batch is 10 and the job 3.6 million samples, so that cost
// is price per hour * 1,000 / throughput.
Problem three_layers(CostModel cost_model) {
  Problem problem;
  problem.model = "three";
  problem.cost_model = cost_model;
  problem.types = {{.name = "cpu",
                    .price_per_hour = 0.5,
                    .count = 4,
                    .gradient_sync = planning::GradientSync::kParameterServer,
                    .bytes_per_second = 1e6,
                    .latency_seconds = 0.001},
                   {.name = "gpu",
                    .price_per_hour = 2,
                    .count = 8,
                    .memory_bytes = 50000,
                    .gradient_sync = planning::GradientSync::kRing,
                    .bytes_per_second = 2e6,
                    .latency_seconds = 0.002}};
  // Rows of the kPipeline model have a test of their own.
  const double sparse_bytes = cost_model == CostModel::kHeterps ? 1000 : 0;
  problem.layers = {{.name = "embedding", .parameter_bytes = 0, .activation_bytes = 400, .sparse_bytes = sparse_bytes},
                    {.name = "hidden", .parameter_bytes = 8000, .activation_bytes = 800},
                    {.name = "loss", .parameter_bytes = 2000, .activation_bytes = 40}};
  const LayerOnType cpu{
      .forward = {0.01, 0.001}, .backward = {0.02, 0.002}, .compute_fraction = 0.9, .communication_fraction = 0.8};
  const LayerOnType gpu{
      .forward = {0.001, 0.0005}, .backward = {0.003, 0.0005}, .compute_fraction = 0.75, .communication_fraction = 0.5};
  problem.table = {cpu, gpu, cpu, gpu, cpu, gpu};
  problem.cut_bytes = {100, 400, 800, 0};
  problem.links = {{1e6, 0.001}, {4e5, 0.003}, {4e5, 0.003}, {2e6, 0.002}};
  problem.total_samples = 3.6e6;
  problem.profile_batch = 10;
  problem.batch = 40;
  problem.micro_batches = 4;
  return problem;
}

TEST(HeterpsModel, TwoStagesByHand) {
  const Problem problem = three_layers(CostModel::kHeterps);
  const Evaluation result = evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 3}}, {});

  // Stage 1, cpu, k = 2: OCT = 0.01 + 10 * 0.001 + 0.02 + 10 * 0.002 = 0.06 for 10 samples, 0.006 a sample.
  const double ct1 = 0.006 * (1 - 0.9 + 0.9 / 2);
  // ODT / B_o = 2 (1000 + 0 / 10) / 1e6 = 0.002.
  const double dt1 = 0.002 * (1 - 0.8 + 0.8 / 2);
  // Stage 2, gpu, k = 3, two layers: OCT = 2 * (0.001 + 0.005 + 0.003 + 0.005) = 0.028, 0.0028 a sample.
  const double ct2 = 0.0028 * (1 - 0.75 + 0.75 / 3);
  // ODT / B_o = 2 (8000 + 2000) / 10 / 2e6 = 0.001; incoming / B_o = 2 * 400 / 4e5 = 0.002.
  const double dt2 = 0.003 * (1 - 0.5 + 0.5 / 3);
  EXPECT_NEAR(result.stages[0].compute_seconds, ct1, 1e-15);
  EXPECT_NEAR(result.stages[0].communication_seconds, dt1, 1e-15);
  EXPECT_NEAR(result.stages[1].compute_seconds, ct2, 1e-15);
  EXPECT_NEAR(result.stages[1].communication_seconds, dt2, 1e-15);

  // ct1 = 0.0033 is the bottleneck: dt1 = 0.0012, ct2 = 0.0014, dt2 = 0.002.
  EXPECT_EQ(result.bottleneck, 0);
  EXPECT_NEAR(result.throughput, 1 / 0.0033, 1e-9);
  EXPECT_NEAR(result.step_seconds, 40 * 0.0033, 1e-12);
  EXPECT_NEAR(result.hourly_cost, 2 * 0.5 + 3 * 2, 1e-12);
  EXPECT_NEAR(result.cost, 7 * 1000 * 0.0033, 1e-9);
  EXPECT_EQ(result.used, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(result.feasible) << result.violation;
  EXPECT_NEAR(value(result, planning::Criterion::kMinCost), 23.1, 1e-9);
  EXPECT_NEAR(value(result, planning::Criterion::kMaxThroughput), 0.0033, 1e-12);
  EXPECT_NEAR(value(result, planning::Criterion::kMinStepTime), 0.132, 1e-12);
}

TEST(HeterpsModel, FractionsAreOfEachLayer) {
  Problem problem = three_layers(CostModel::kHeterps);
  problem.table[2].compute_fraction = 0.5;  // hidden on cpu
  const Evaluation result = evaluate(problem, {{0, 2, 0, 3}}, {});
  const double expected = 2 * 0.006 * (0.1 + 0.9 / 3) + 0.006 * (0.5 + 0.5 / 3);
  EXPECT_NEAR(result.stages[0].compute_seconds, expected, 1e-15);
}

TEST(PipelineModel, UpdatesOfWeightsComeOnceAStepAfterEverything) {
  for (const int micro_batches : {1, 4}) {
    Problem problem = three_layers(CostModel::kPipeline);
    problem.micro_batches = micro_batches;
    const Candidate candidate = {{0, 1, 0, 1}, {2, 2, 1, 1}};
    const Evaluation before = evaluate(problem, candidate, {});
    for (LayerOnType& time : problem.table) time.update_seconds = 0.1;
    const Evaluation after = evaluate(problem, candidate, {});
    EXPECT_NEAR(after.stages[0].update_seconds, 0.2, 1e-15);
    EXPECT_NEAR(after.stages[1].update_seconds, 0.1, 1e-15);
    // The first stage is done last, and has two layers' weights to update.
    EXPECT_NEAR(after.step_seconds, before.step_seconds + 0.2, 1e-12);
  }
}

TEST(PipelineModel, OneForwardOneBackwardByHand) {
  const Problem problem = three_layers(CostModel::kPipeline);
  const Evaluation result = evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 4}}, {});

  // u = 10. Stage 1 on 2 cpus, 5 samples each: pulls 1000 * 5 / 1e6 = 0.005, hidden by computation.
  const double f1 = 0.01 + 5 * 0.001;
  const double g1 = 0.02 + 5 * 0.002;
  // Stage 2 on 4 gpus, 2.5 samples each, two layers.
  const double f2 = 2 * (0.001 + 2.5 * 0.0005);
  const double g2 = 2 * (0.003 + 2.5 * 0.0005);
  // 10 samples of 400 bytes over min(2, 4) pairs.
  const double c1 = 0.003 + 10 * 400 / (4e5 * 2);
  // Parameter server without parameters; ring of 4 with 10,000 bytes.
  const double x1 = 2 * (0 / 1e6 + 0.001);
  const double x2 = 2 * 3 * (10000 / (4 * 2e6) + 0.002);
  EXPECT_NEAR(result.stages[0].forward_seconds, f1, 1e-15);
  EXPECT_NEAR(result.stages[0].backward_seconds, g1, 1e-15);
  EXPECT_NEAR(result.stages[1].forward_seconds, f2, 1e-15);
  EXPECT_NEAR(result.stages[1].backward_seconds, g2, 1e-15);
  EXPECT_NEAR(result.stages[0].transfer_seconds, c1, 1e-15);
  EXPECT_EQ(result.stages[1].transfer_seconds, 0);
  EXPECT_NEAR(result.stages[0].gradient_sync_seconds, x1, 1e-15);
  EXPECT_NEAR(result.stages[1].gradient_sync_seconds, x2, 1e-15);

  // The first stage has nothing to exchange; the second's exchange, one bucket, comes after its backward as a whole.
  EXPECT_EQ(result.stages[0].exposed_sync_seconds, 0);
  EXPECT_NEAR(result.stages[1].exposed_sync_seconds, x2, 1e-15);

  // f1 + g1 = 0.045; f2 + g2 = 0.013; c1 = 0.008. The first stage does two forward passes, by 0.03, and has the first
  // gradient at 0.015 + 0.013 + 0.016 = 0.044; from there it is busy for 4 * 0.03 + 2 * 0.015.
  EXPECT_NEAR(result.step_seconds, 0.194, 1e-12);
  EXPECT_NEAR(result.throughput, 40 / 0.194, 1e-9);
  EXPECT_EQ(result.bottleneck, 0);
  EXPECT_NEAR(result.cost, (2 * 0.5 + 4 * 2) * 1000 * 0.194 / 40, 1e-9);

  // Memory of a gpu: 3 * 10,000 + 1 micro-batch in flight * 2.5 * 840 = 32,100. Of a cpu: 2 in flight * 5 * 400.
  EXPECT_NEAR(result.stages[1].memory_bytes, 32100, 1e-9);
  EXPECT_NEAR(result.stages[0].memory_bytes, 4000, 1e-9);
  EXPECT_TRUE(result.feasible) << result.violation;
}

TEST(PipelineModel, GpipeByHand) {
  Problem problem = three_layers(CostModel::kPipeline);
  problem.schedule = planning::PipelineSchedule::kGPipe;
  const Evaluation result = evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 4}}, {});
  // As above: f = 0.015, 0.0045; g = 0.03, 0.0085; c1 = 0.008. T_pipe = 0.074 + 3 * (0.015 + 0.03) = 0.209.
  EXPECT_NEAR(result.step_seconds, 0.209, 1e-12);
  // All 4 micro-batches in flight on both stages.
  EXPECT_NEAR(result.stages[0].memory_bytes, 4 * 5 * 400, 1e-9);
  EXPECT_NEAR(result.stages[1].memory_bytes, 30000 + 4 * 2.5 * 840, 1e-9);

  // Forward bound by one stage, backward by the other: the maxima add up, where 1F1B takes the larger stage.
  problem.table[0].forward = {0.05, 0};
  problem.table[0].backward = {0.01, 0};
  problem.table[3].forward = problem.table[5].forward = {0.005, 0};
  problem.table[3].backward = problem.table[5].backward = {0.02, 0};
  const double fill = 0.05 + 0.01 + 0.01 + 0.04 + 2 * 0.008;
  EXPECT_NEAR(evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 4}}, {}).step_seconds,
              fill + 3 * (0.05 + 0.04) - 0.01 - 0.008 + 0.0195, 1e-12);
  problem.schedule = planning::PipelineSchedule::kOneForwardOneBackward;
  // The first stage's forward passes begin at 0, 0.05, 0.126 and 0.186: the third waits for the first gradient, at
  // 0.116. So the last activations are there at 0.244, and the second stage's exchange is over at
  // 0.244 + 0.01 + 0.04 + 0.0195, after the last backward of the first, at 0.312.
  EXPECT_NEAR(evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 4}}, {}).step_seconds, 0.3135, 1e-12);
}

TEST(PipelineModel, AnyRunOfStagesMaySetTheRate) {
  Problem problem = three_layers(CostModel::kPipeline);
  problem.micro_batches = 11;
  const auto interval = [&](const std::vector<StageCost>& stages) { return pipeline_time(problem, stages).interval; };
  const auto stage = [](double forward, double backward, double transfer) {
    return StageCost{.forward_seconds = forward, .backward_seconds = backward, .transfer_seconds = transfer};
  };
  // The slow link is in the middle: stages 1 and 2 take 6 + 2 * 1.4 there and back for two micro-batches. All four take
  // 12 + 2 * 1.6 for four, and the last three 9 + 2 * 1.5 for three.
  const std::vector<StageCost> middle = {stage(1, 2, 0.1), stage(1, 2, 1.4), stage(1, 2, 0.1), stage(1, 2, 0)};
  EXPECT_NEAR(interval(middle), 4.4, 1e-12);
  // The rate of a long step, but no longer than the first micro-batch and all others at that rate.
  EXPECT_LE(pipeline_time(problem, middle).step, 12 + 3.2 + 10 * 4.4);
  Problem longer = problem;
  longer.micro_batches = 1011;
  EXPECT_NEAR(pipeline_time(longer, middle).step - pipeline_time(problem, middle).step, 1000 * 4.4, 1e-9);
  longer.micro_batches = 1'000'011;
  EXPECT_NEAR(pipeline_time(longer, middle).step - pipeline_time(problem, middle).step, 1e6 * 4.4, 2 * 4.4);
  // At the front, and a transfer that takes longer than all runs.
  EXPECT_NEAR(interval({stage(2, 2, 1), stage(2, 3, 0.1), stage(0.5, 0.5, 0)}), (4 + 5 + 2) / 2.0, 1e-12);
  EXPECT_NEAR(interval({stage(0.1, 0.1, 7), stage(0.1, 0.1, 0.1), stage(0.1, 0.1, 0)}), 14.4 / 2, 1e-12);
  EXPECT_NEAR(interval({stage(0, 0, 7), stage(0, 0, 0)}), 7, 1e-12);

  Random random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<StageCost> stages(1 + random.below(12));
    double longest = 0;
    for (StageCost& one : stages) {
      const bool last = &one == &stages.back();
      one = stage(random.uniform(), random.uniform(), last ? 0 : std::pow(random.uniform(), 3));
      longest = std::max(longest, one.transfer_seconds);
    }
    for (std::size_t a = 0; a < stages.size(); ++a) {
      for (std::size_t b = a; b < stages.size(); ++b) {
        double there_and_back = 0;
        for (std::size_t s = a; s <= b; ++s) {
          there_and_back += stages[s].forward_seconds + stages[s].backward_seconds;
          there_and_back += s < b ? 2 * stages[s].transfer_seconds : 0;
        }
        longest = std::max(longest, there_and_back / static_cast<double>(b - a + 1));
      }
    }
    EXPECT_NEAR(interval(stages), longest, 1e-12);
  }
}

TEST(PipelineModel, RecomputationTakesTimeAndSavesMemory) {
  const Problem problem = three_layers(CostModel::kPipeline);
  const Evaluation result = evaluate(problem, {{0, 1, 0, 2, true}, {2, 2, 1, 1, false}}, {});
  // 5 samples of 10 each: two layers backward and forward again.
  EXPECT_NEAR(result.stages[0].backward_seconds, 2 * (0.02 + 0.01) + 2 * (0.01 + 0.005), 1e-15);
  // 3 * 8,000 + 5 * (2 in flight * 100 of input + 400 + 800).
  EXPECT_NEAR(result.stages[0].memory_bytes, 24000 + 5 * (2 * 100 + 1200), 1e-9);
  EXPECT_EQ(result.stages[1].gradient_sync_seconds, 0);  // one device
}

TEST(PipelineModel, SparseRowsAreMovedBesidesComputation) {
  Problem problem = three_layers(CostModel::kPipeline);
  const Candidate candidate = {{0, 0, 0, 1}, {1, 2, 1, 1}};
  const Evaluation without = evaluate(problem, candidate, {});
  problem.layers[0].sparse_bytes = 50000;
  const Evaluation with = evaluate(problem, candidate, {});
  EXPECT_NEAR(with.stages[0].forward_seconds, without.stages[0].forward_seconds + 10 * 50000 / 1e6, 1e-12);
  EXPECT_NEAR(with.stages[0].backward_seconds, without.stages[0].backward_seconds + 10 * 50000 / 1e6, 1e-12);

  problem.distinct_lookups = {{5, 0.8}, {10, 0.6}};  // the rows of 4 samples, and of 6
  const Evaluation alone = evaluate(problem, candidate, {});
  EXPECT_NEAR(alone.stages[0].forward_seconds, without.stages[0].forward_seconds + 6 * 50000 / 1e6, 1e-12);
  const Evaluation halved = evaluate(problem, {{0, 0, 0, 2}, {1, 2, 1, 1}}, {});
  EXPECT_NEAR(halved.stages[0].communication_seconds, 4 * 50000 / 1e6, 1e-12);
}

TEST(Violations, AreSaidWithNumbers) {
  Problem problem = three_layers(CostModel::kPipeline);
  const Candidate most = {{0, 0, 0, 1}, {1, 2, 1, 9}};
  EXPECT_EQ(evaluate(problem, most, {}).violation, "uses 9 of 8 gpu");
  EXPECT_TRUE(std::isinf(value(evaluate(problem, most, {}), planning::Criterion::kMinCost)));

  problem.types[1].memory_bytes = 31000;
  EXPECT_EQ(evaluate(problem, {{0, 0, 0, 1}, {1, 2, 1, 4}}, {}).violation,
            "stage 1 needs 32.1 KB a device, gpu has 31 KB");
  problem.types[1].memory_bytes = 32100;  // exactly enough
  EXPECT_TRUE(evaluate(problem, {{0, 0, 0, 1}, {1, 2, 1, 4}}, {}).feasible);

  problem = three_layers(CostModel::kHeterps);
  const Candidate heterps = {{0, 0, 0, 2}, {1, 2, 1, 3}};  // 303.03 samples/s, 7 an hour, 23.1 in all
  EXPECT_EQ(evaluate(problem, heterps, {.min_throughput = 20000}).violation,
            "throughput 303 is below the minimum throughput of 20,000 samples/s");
  EXPECT_EQ(evaluate(problem, heterps, {.max_cost = 20}).violation, "cost 23.1 is above the cap of 20");
  EXPECT_EQ(evaluate(problem, heterps, {.max_hourly_cost = 6.5}).violation,
            "the price 7 is above the cap of 6.5 an hour");
  EXPECT_TRUE(
      evaluate(problem, heterps, {.min_throughput = 1 / 0.0033, .max_cost = 23.1, .max_hourly_cost = 7}).feasible);
  EXPECT_THAT(evaluate(problem, heterps, {.min_throughput = 303.0306}).violation, HasSubstr("303.0303"));
}

TEST(DataParallel, EqualSharesWaitForTheSlowest) {
  Problem problem = three_layers(CostModel::kPipeline);
  problem.types[1].memory_bytes = 0;
  const Evaluation result = evaluate_data_parallel(problem, {1, 3}, BatchSplit::kEqual);
  // 10 samples each. The cpu: 3 * (0.01 + 0.01 + 0.02 + 0.02) = 0.18; ring of 4 over the slowest link (4e5 B/s, 3 ms).
  const double gradient_sync = 2 * 3 * (10000 / (4 * 4e5) + 0.003);
  EXPECT_NEAR(result.stages[0].compute_seconds, 0.18, 1e-12);
  EXPECT_NEAR(result.stages[0].gradient_sync_seconds, gradient_sync, 1e-12);
  EXPECT_NEAR(result.step_seconds, 0.18 + gradient_sync, 1e-12);
  EXPECT_NEAR(result.hourly_cost, 0.5 + 3 * 2, 1e-12);
  // 3 * 10,000 + 10 * 1,240.
  EXPECT_NEAR(result.stages[0].memory_bytes, 42400, 1e-9);
}

TEST(DataParallel, BalancedSharesEndTogether) {
  Problem problem = three_layers(CostModel::kPipeline);
  problem.types[1].memory_bytes = 0;
  problem.batch = 400;
  // cpu: 0.09 + 0.009 b; gpu: 0.012 + 0.003 b. b_cpu + 3 b_gpu = 400 with equal times T:
  // (T - 0.09) / 0.009 + 3 (T - 0.012) / 0.003 = 400, so T (1 / 0.009 + 1,000) = 400 + 10 + 12.
  const double together = 422 / (1 / 0.009 + 1000);
  EXPECT_NEAR(evaluate_data_parallel(problem, {1, 3}, BatchSplit::kBalanced).stages[0].compute_seconds, together,
              1e-12);

  // With 40 samples the gpus are done before the cpu has begun: it gets none.
  problem.batch = 40;
  EXPECT_NEAR(evaluate_data_parallel(problem, {1, 3}, BatchSplit::kBalanced).stages[0].compute_seconds,
              0.012 + 0.003 * 40 / 3, 1e-12);
}

TEST(DataParallel, LimitsOfCountsAndMemory) {
  const Problem problem = three_layers(CostModel::kPipeline);
  const Evaluation result = evaluate_data_parallel(problem, {0, 9}, BatchSplit::kEqual);
  EXPECT_FALSE(result.feasible);
  EXPECT_THAT(result.violation, HasSubstr("uses 9 of 8 gpu"));
  EXPECT_THAT(evaluate_data_parallel(problem, {0, 1}, BatchSplit::kEqual).violation,
              HasSubstr("a share of 40 samples needs 79.6 KB a device, gpu has 50 KB"));
}

TEST(Plans, StandForCandidates) {
  const Problem problem = three_layers(CostModel::kPipeline);
  const Candidate candidate = {{0, 0, 0, 2, true}, {1, 1, 1, 1, false}, {2, 2, 1, 3, false}};
  const Evaluation evaluation = evaluate(problem, candidate, {});
  const planning::Plan plan = to_plan(problem, candidate, evaluation, {.min_throughput = 20000}, "exact");
  EXPECT_TRUE(planning::validate(plan, "plan"));
  EXPECT_EQ(plan.stages[0].gradient_sync, planning::GradientSync::kParameterServer);
  EXPECT_EQ(plan.stages[1].gradient_sync, planning::GradientSync::kNone);
  EXPECT_EQ(plan.stages[2].gradient_sync, planning::GradientSync::kRing);
  EXPECT_EQ(plan.objective, "lowest cost with at least 20,000 samples/s");
  EXPECT_EQ(plan.predicted.step_seconds, evaluation.step_seconds);
  EXPECT_EQ(plan.stages[0], (planning::Stage{0, 0, {{"cpu", 2, 0.5}}, planning::GradientSync::kParameterServer, true}));
}

TEST(Plans, AreEvaluatedAsTheCandidatesTheyStandFor) {
  for (const CostModel model : {CostModel::kPipeline, CostModel::kHeterps}) {
    Problem problem = three_layers(model);
    problem.types[0].step_seconds = 0.002;
    const Candidate candidate = {{0, 0, 0, 2, model == CostModel::kPipeline}, {1, 2, 1, 3, false}};
    const Evaluation expected = evaluate(problem, candidate, {.min_throughput = 20000});
    const planning::Plan plan = to_plan(problem, candidate, expected, {}, "exact");
    problem.micro_batches = 2;  // the plan's number counts
    const auto found = evaluate_plan(problem, plan, {.min_throughput = 20000});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->step_seconds, expected.step_seconds);
    EXPECT_EQ(found->cost, expected.cost);
    EXPECT_EQ(found->used, expected.used);
    EXPECT_EQ(found->violation, expected.violation);
  }
}

// Devices of two types that are alike are as good as those of one.
TEST(Plans, ThatMixTypesTakeWhatTheirSlowestDeviceTakes) {
  Problem problem = three_layers(CostModel::kPipeline);
  problem.types[0] = problem.types[1];
  problem.types[0].name = "cpu";
  for (std::size_t layer = 0; layer < 3; ++layer) problem.table[2 * layer] = problem.table[2 * layer + 1];
  problem.links.assign(4, {2e6, 0.002});
  const Candidate candidate = {{0, 1, 1, 2, false}, {2, 2, 1, 1, false}};
  const Evaluation expected = evaluate(problem, candidate, {});
  planning::Plan plan = to_plan(problem, candidate, expected, {}, "exact");
  plan.stages[0].replicas = {{"gpu", 1, 0.5}, {"cpu", 1, 0.5}};
  const auto mixed = evaluate_plan(problem, plan, {});
  ASSERT_TRUE(mixed) << mixed.error().message;
  EXPECT_DOUBLE_EQ(mixed->step_seconds, expected.step_seconds);
  EXPECT_DOUBLE_EQ(mixed->stages[0].gradient_sync_seconds, expected.stages[0].gradient_sync_seconds);
  EXPECT_DOUBLE_EQ(mixed->stages[0].transfer_seconds, expected.stages[0].transfer_seconds);
  EXPECT_DOUBLE_EQ(mixed->hourly_cost, expected.hourly_cost);
  EXPECT_EQ(mixed->used, (std::vector<std::int64_t>{1, 2}));
  // Twice as slow, and with twice the samples of the other: of 10, 20 / 3.
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (Affine* part : {&problem.table[2 * layer].forward, &problem.table[2 * layer].backward}) {
      *part = {2 * part->fixed, 2 * part->per_sample};
    }
  }
  plan.stages[0].replicas = {{"gpu", 1, 1.0 / 3}, {"cpu", 1, 2.0 / 3}};
  const auto slower = evaluate_plan(problem, plan, {});
  ASSERT_TRUE(slower);
  EXPECT_DOUBLE_EQ(slower->stages[0].compute_seconds, 2 * 2 * (0.004 + 0.001 * 20 / 3));
  plan.stages[0].replicas[0].type = "tpu";
  EXPECT_THAT(evaluate_plan(problem, plan, {}).error().message, HasSubstr("'tpu'"));
}

}  // namespace
}  // namespace motley::planning
