// Provisioning against brute force over all counts on random small problems of both cost models, every goal, and
// limits that bind and that do not; and what the methods to compare with promise.
#include "motley/planning/cost/provisioning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/random.h"

namespace motley::planning {
namespace {

// A value between both, of an even spread of magnitudes.
double between(Random& random, double low, double high) {
  return low * std::pow(high / low, random.uniform());
}

Problem random_problem(Random& random, CostModel cost_model) {
  Problem problem;
  problem.model = "random";
  problem.cost_model = cost_model;
  const int types = static_cast<int>(1 + random.below(3));
  const int layers = static_cast<int>(1 + random.below(6));
  for (int t = 0; t < types; ++t) {
    const planning::GradientSync gradient_syncs[] = {planning::GradientSync::kNone, planning::GradientSync::kRing,
                                                     planning::GradientSync::kParameterServer};
    problem.types.push_back({.name = fmt::format("type{}", t),
                             .price_per_hour = random.below(10) == 0 ? 0 : between(random, 0.05, 3),
                             .count = static_cast<std::int64_t>(1 + random.below(7)),
                             .memory_bytes = random.below(2) == 0 ? 0 : between(random, 5e6, 1e8),
                             .gradient_sync = gradient_syncs[random.below(3)],
                             .bytes_per_second = random.below(4) == 0 ? kInfinity : between(random, 1e8, 1e10),
                             .latency_seconds = random.below(2) == 0 ? 0 : 1e-4});
  }
  for (int layer = 0; layer < layers; ++layer) {
    problem.layers.push_back({.name = fmt::format("layer{}", layer),
                              .parameter_bytes = between(random, 1e3, 1e7),
                              .activation_bytes = between(random, 1e4, 3e6),
                              .sparse_bytes = random.below(3) == 0 ? between(random, 1e3, 1e6) : 0});
    for (int t = 0; t < types; ++t) {
      const double speed = between(random, 0.2, 5);
      problem.table.push_back({.forward = {1e-4 * random.uniform(), speed * between(random, 1e-5, 1e-3)},
                               .backward = {1e-4 * random.uniform(), speed * between(random, 1e-5, 1e-3)},
                               .compute_fraction = random.below(4) == 0 ? 1 : 0.7 + 0.3 * random.uniform(),
                               .communication_fraction = random.below(4) == 0 ? 1 : 0.7 + 0.3 * random.uniform()});
    }
  }
  for (int cut = 0; cut <= layers; ++cut) {
    problem.cut_bytes.push_back(cut == layers ? 0 : between(random, 1e3, 1e5));
  }
  for (int link = 0; link < types * types; ++link) {
    problem.links.push_back({.bytes_per_second = random.below(4) == 0 ? kInfinity : between(random, 1e8, 1e10),
                             .latency_seconds = random.below(2) == 0 ? 0 : 1e-4});
  }
  problem.total_samples = 1e6;
  problem.profile_batch = 32;
  problem.batch = 64;
  problem.micro_batches = static_cast<std::int64_t>(1 + random.below(16));
  problem.schedule =
      random.below(3) == 0 ? planning::PipelineSchedule::kGPipe : planning::PipelineSchedule::kOneForwardOneBackward;
  problem.allow_recompute = random.below(4) != 0;
  return problem;
}

std::vector<Span> random_stages(Random& random, const Problem& problem) {
  std::vector<int> types;
  std::vector<bool> cuts;
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    const bool same = layer > 0 && random.below(2) == 0;
    types.push_back(same ? types.back()
                         : static_cast<int>(random.below(static_cast<std::uint64_t>(problem.type_count()))));
    cuts.push_back(random.below(3) == 0);
  }
  return list_stages(problem, types, cuts);
}

// The best value over all counts up to one more than each type's, and all choices of recomputation.
double brute_force(const Problem& problem, const std::vector<Span>& stages, const planning::Objective& objective) {
  Candidate candidate;
  for (const Span& span : stages) {
    candidate.push_back({.first = span.first, .last = span.last, .type = span.type});
  }
  double best = kInfinity;
  for (;;) {
    best = std::min(best, value(evaluate(problem, candidate, objective), objective.criterion));
    std::size_t s = 0;
    for (; s < candidate.size(); ++s) {
      StageChoice& choice = candidate[s];
      if (problem.allow_recompute && problem.cost_model == CostModel::kPipeline && !choice.recompute) {
        choice.recompute = true;
        break;
      }
      choice.recompute = false;
      if (choice.replicas <= problem.types[static_cast<std::size_t>(choice.type)].count) {
        ++choice.replicas;
        break;
      }
      choice.replicas = 1;
    }
    if (s == candidate.size()) {
      return best;
    }
  }
}

// Limits around what some random counts reach, so that they bind, do not, or forbid everything.
planning::Objective random_objective(Random& random, const Problem& problem, const std::vector<Span>& stages,
                                     planning::Criterion criterion) {
  Candidate some;
  for (const Span& span : stages) {
    const std::int64_t count = problem.types[static_cast<std::size_t>(span.type)].count;
    some.push_back({.first = span.first,
                    .last = span.last,
                    .type = span.type,
                    .replicas = static_cast<std::int64_t>(1 + random.below(static_cast<std::uint64_t>(count)))});
  }
  planning::Objective objective{.criterion = criterion};
  const Evaluation reached = evaluate(problem, some, {});
  if (random.below(2) == 0) {
    objective.min_throughput = reached.throughput * between(random, 0.5, 1.5);
  }
  if (random.below(3) == 0 && reached.cost > 0) {
    objective.max_cost = reached.cost * between(random, 0.7, 2);
  }
  if (random.below(3) == 0 && reached.hourly_cost > 0) {
    objective.max_hourly_cost = reached.hourly_cost * between(random, 0.7, 2);
  }
  return objective;
}

class ExactProvisioning : public ::testing::TestWithParam<std::tuple<CostModel, planning::Criterion>> {};

TEST_P(ExactProvisioning, EqualsBruteForceOverAllCounts) {
  const auto [cost_model, criterion] = GetParam();
  int feasible = 0;
  int infeasible = 0;
  int recomputed = 0;
  for (std::uint64_t seed = 0; feasible + infeasible < 600; ++seed) {
    Random random(mix({seed, static_cast<std::uint64_t>(cost_model), static_cast<std::uint64_t>(criterion)}));
    const Problem problem = random_problem(random, cost_model);
    ASSERT_TRUE(validate(problem));
    const std::vector<Span> stages = random_stages(random, problem);
    if (stages.size() > 4) {
      continue;  // too many counts to try
    }
    const planning::Objective objective = random_objective(random, problem, stages, criterion);
    const double expected = brute_force(problem, stages, objective);
    const std::optional<Candidate> found = provision(problem, stages, objective);
    ASSERT_EQ(found.has_value(), std::isfinite(expected)) << "seed " << seed;
    if (!found) {
      ++infeasible;
      continue;
    }
    ++feasible;
    recomputed += std::ranges::any_of(*found, &StageChoice::recompute) ? 1 : 0;
    const Evaluation evaluation = evaluate(problem, *found, objective);
    ASSERT_TRUE(evaluation.feasible) << "seed " << seed << ": " << evaluation.violation;
    ASSERT_NEAR(value(evaluation, criterion), expected, 1e-9 * expected) << "seed " << seed;
  }
  EXPECT_GT(feasible, 200);
  EXPECT_GT(infeasible, 50);
  if (cost_model == CostModel::kPipeline) {
    EXPECT_GT(recomputed, 10);
  }
}

std::string suite_name(const ::testing::TestParamInfo<ExactProvisioning::ParamType>& suite) {
  const char* criteria[] = {"LowestCost", "MostThroughput", "LeastStepTime"};
  return std::string(std::get<0>(suite.param) == CostModel::kHeterps ? "Heterps" : "Pipeline") +
         criteria[static_cast<int>(std::get<1>(suite.param))];
}

INSTANTIATE_TEST_SUITE_P(BothModels, ExactProvisioning,
                         ::testing::Combine(::testing::Values(CostModel::kHeterps, CostModel::kPipeline),
                                            ::testing::Values(planning::Criterion::kMinCost,
                                                              planning::Criterion::kMaxThroughput,
                                                              planning::Criterion::kMinStepTime)),
                         suite_name);

// Wide ranges of counts, which are shrunk from both sides before they are single counts.
TEST(Provisioning, EqualsBruteForceOverWideRanges) {
  int feasible = 0;
  for (std::uint64_t seed = 0; feasible < 150; ++seed) {
    Random random(mix({seed, 78}));
    Problem problem = random_problem(random, CostModel::kPipeline);
    problem.allow_recompute = false;
    problem.micro_batches = static_cast<std::int64_t>(1 + random.below(2));
    for (Type& type : problem.types) {
      type.count = static_cast<std::int64_t>(20 + random.below(25));
      type.memory_bytes = 0;
      type.bytes_per_second = between(random, 1e8, 1e9);
    }
    const std::vector<Span> stages = random_stages(random, problem);
    if (stages.size() != 2) continue;
    const planning::Objective objective =
        random_objective(random, problem, stages, static_cast<planning::Criterion>(random.below(3)));
    const double expected = brute_force(problem, stages, objective);
    const std::optional<Candidate> found = provision(problem, stages, objective);
    ASSERT_EQ(found.has_value(), std::isfinite(expected)) << "seed " << seed;
    if (!found) continue;
    ++feasible;
    ASSERT_NEAR(value(evaluate(problem, *found, objective), objective.criterion), expected, 1e-9 * expected)
        << "seed " << seed;
  }
}

// A stage with few devices computes longer, and hides more of an exchange that does not depend on how many there are.
// Counts by hand: with 16 and 27 devices a step takes 109.95 s at 75 an hour; with 20 of each 110 s at 80.
TEST(Provisioning, FewDevicesMayHideMoreOfASynchronisation) {
  Problem problem;
  problem.model = "two stages";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "a", .price_per_hour = 3, .count = 40, .gradient_sync = GradientSync::kParameterServer},
                   {.name = "b", .price_per_hour = 1, .count = 40, .gradient_sync = GradientSync::kNone}};
  problem.types[0].bytes_per_second = 1e6;
  problem.layers = {{.name = "long"}, {.name = "large", .parameter_bytes = 5e7}, {.name = "last"}};
  const LayerOnType none = {.compute_fraction = 1, .communication_fraction = 1};
  LayerOnType first = none, last = none;
  first.forward = {0, 100.0 / 64};
  first.backward = {0, 200.0 / 64};
  last.forward = {0, 50.0 / 64};
  last.backward = {0, 50.0 / 64};
  problem.table = {first, first, none, none, last, last};
  problem.cut_bytes = {0, 0, 0, 0};
  problem.links.assign(4, {.bytes_per_second = kInfinity});
  problem.total_samples = 64;
  problem.profile_batch = 64;
  problem.batch = 64;
  problem.micro_batches = 1;
  problem.allow_recompute = false;
  const std::vector<Span> stages = {{0, 1, 0}, {2, 2, 1}};
  const planning::Objective objective{.criterion = planning::Criterion::kMinCost, .min_throughput = 64.0 / 110};
  const double expected = brute_force(problem, stages, objective);
  const std::optional<Candidate> found = provision(problem, stages, objective);
  ASSERT_TRUE(found);
  EXPECT_NEAR(value(evaluate(problem, *found, objective), objective.criterion), expected, 1e-9 * expected);
}

// Hundreds of devices a type: no brute force, but no single device added, taken away or moved may help, and no method
// to compare with may be better.
TEST(Provisioning, NothingBeatsExactOnLargeCounts) {
  int better = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(mix({seed, 77}));
    const CostModel cost_model = seed % 2 == 0 ? CostModel::kHeterps : CostModel::kPipeline;
    Problem problem = random_problem(random, cost_model);
    for (Type& type : problem.types) {
      type.count = static_cast<std::int64_t>(20 + random.below(300));
      type.memory_bytes = 0;
    }
    const std::vector<Span> stages = random_stages(random, problem);
    const planning::Criterion criterion = static_cast<planning::Criterion>(random.below(3));
    const planning::Objective objective = random_objective(random, problem, stages, criterion);
    const std::optional<Candidate> exact = provision(problem, stages, objective);
    const double best = exact ? value(evaluate(problem, *exact, objective), criterion) : kInfinity;
    for (const Provisioning method : {Provisioning::kNewton, Provisioning::kStaRatio, Provisioning::kStaPsRatio}) {
      const std::optional<Candidate> other = provision(problem, stages, objective, {.method = method});
      if (other) {
        const Evaluation evaluation = evaluate(problem, *other, objective);
        EXPECT_TRUE(evaluation.feasible) << evaluation.violation;
        EXPECT_GE(value(evaluation, criterion), best * (1 - 1e-9)) << "seed " << seed;
        better += value(evaluation, criterion) > best * (1 + 1e-9) ? 1 : 0;
      }
    }
    if (!exact) {
      continue;
    }
    for (std::size_t more = 0; more <= exact->size(); ++more) {
      for (std::size_t fewer = 0; fewer <= exact->size(); ++fewer) {
        Candidate moved = *exact;
        if (more < moved.size()) {
          ++moved[more].replicas;
        }
        if (fewer < moved.size() && --moved[fewer].replicas == 0) {
          continue;
        }
        ASSERT_GE(value(evaluate(problem, moved, objective), criterion), best * (1 - 1e-9)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(better, 100);  // the comparison says something
}

// One stage of 1 ms a sample, all of it divided, at 1 an hour, and a minimum throughput of 3,500 samples/s: four
// devices.
Problem one_stage() {
  Problem problem;
  problem.model = "one";
  problem.types = {{.name = "gpu", .price_per_hour = 1, .count = 8}};
  problem.layers = {{.name = "only"}};
  problem.table = {{.forward = {0, 0.0004}, .backward = {0, 0.0006}}};
  problem.cut_bytes = {0, 0};
  problem.links = {{}};
  return problem;
}

TEST(Provisioning, LeastCountForAFloor) {
  const Problem problem = one_stage();
  for (const Provisioning method : {Provisioning::kExact, Provisioning::kNewton}) {
    const auto found = provision(problem, {{0, 0, 0}}, {.min_throughput = 3500}, {.method = method});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->front().replicas, 4);
    // Exactly on the minimum throughput: 4 devices make 4,000 samples/s.
    const auto exactly = provision(problem, {{0, 0, 0}}, {.min_throughput = 4000}, {.method = method});
    ASSERT_TRUE(exactly);
    EXPECT_EQ(exactly->front().replicas, 4);
    EXPECT_FALSE(provision(problem, {{0, 0, 0}}, {.min_throughput = 8001}, {.method = method}));
  }
}

TEST(Provisioning, MostThroughputUnderAPriceTakesAllThatItBuys) {
  const auto found =
      provision(one_stage(), {{0, 0, 0}}, {.criterion = planning::Criterion::kMaxThroughput, .max_hourly_cost = 5.5});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->front().replicas, 5);
}

TEST(Provisioning, RatioKeepsCpusToGpus) {
  Problem problem = one_stage();
  problem.types.push_back(
      {.name = "cpu", .price_per_hour = 0.04, .count = 100, .gradient_sync = planning::GradientSync::kParameterServer});
  problem.layers.push_back({.name = "second"});
  problem.table = {problem.table[0], problem.table[0], problem.table[0], problem.table[0]};
  problem.cut_bytes = {0, 0, 0};
  problem.links = {{}, {}, {}, {}};
  // The GPU's stage is the bottleneck: 3 devices for 3,000 samples/s; 6 CPUs a GPU, and a third more as servers. A
  // second such unit is too dear.
  const std::vector<Span> stages = {{0, 0, 1}, {1, 1, 0}};
  const planning::Objective objective{.min_throughput = 3000, .max_hourly_cost = 4.5};
  const auto plain = provision(problem, stages, objective, {.method = Provisioning::kStaRatio});
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->at(0).replicas, 18);
  EXPECT_EQ(plain->at(1).replicas, 3);
  const auto servers =
      provision(problem, stages, objective, {.method = Provisioning::kStaPsRatio, .servers_per_cpu = 1.0 / 3});
  ASSERT_TRUE(servers);
  EXPECT_EQ(servers->at(0).replicas, 24);
  EXPECT_EQ(servers->at(1).replicas, 3);
}

TEST(Provisioning, StagesAreLongestRunsAndCutsCountInPipelinesOnly) {
  Problem problem = one_stage();
  const std::vector<int> types = {0, 0, 1, 1, 0};
  const std::vector<bool> cuts = {false, true, true, false, false};
  EXPECT_EQ(list_stages(problem, types, cuts), (std::vector<Span>{{0, 1, 0}, {2, 3, 1}, {4, 4, 0}}));
  problem.cost_model = CostModel::kPipeline;
  EXPECT_EQ(list_stages(problem, types), (std::vector<Span>{{0, 1, 0}, {2, 3, 1}, {4, 4, 0}}));
  EXPECT_EQ(list_stages(problem, types, cuts), (std::vector<Span>{{0, 0, 0}, {1, 1, 0}, {2, 3, 1}, {4, 4, 0}}));
}

}  // namespace
}  // namespace motley::planning
