// The planning methods without policy networks: what they answer is feasible and truly valued, nothing of it beats an
// enumeration of all candidates, they repeat themselves for a seed, and they end when they are told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "motley/planning/methods.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

using planning::CostModel;
using testing::ElementsAre;
using testing::HasSubstr;

// Those that this file is about; the exact ones have tests of their own.
std::vector<Planner> methods() {
  std::vector<Planner> all = planners();
  std::erase_if(all, [](const auto& planner) { return planner.name == "exact" || planner.name == "brute-force"; });
  return all;
}

struct Case {
  planning::Problem problem;
  planning::Objective objective;
};

Case random_case(std::uint64_t seed, CostModel model, int layers, int types) {
  RandomProblemOptions options;
  options.layers = layers;
  options.types = types;
  options.cost_model = model;
  options.max_count = 3;
  options.links = seed % 2 == 0;
  options.memory = model == CostModel::kPipeline && seed % 3 == 0;
  options.allow_recompute = options.memory;
  Case created{random_problem(options, seed), {}};
  const planning::Criterion criteria[] = {planning::Criterion::kMinCost, planning::Criterion::kMaxThroughput,
                                          planning::Criterion::kMinStepTime};
  created.objective = random_objective(
      created.problem,
      {.criterion = criteria[seed % 3], .min_throughput = seed % 2 == 0, .max_hourly_cost = seed % 4 == 1}, seed);
  return created;
}

Request make_request(const Case& created, Clock& clock = SteadyClock::instance()) {
  return {.problem = created.problem, .objective = created.objective, .seed = 7, .seconds = 1e9, .clock = clock};
}

// The least value of all candidates: every stage ends at every later layer, is on every type, has every count.
void enumerate(const Case& created, planning::Candidate& stages, double& least) {
  const int first = stages.empty() ? 0 : stages.back().last + 1;
  if (first == created.problem.layer_count()) {
    least = std::min(least, planning::value(planning::evaluate(created.problem, stages, created.objective),
                                            created.objective.criterion));
    return;
  }
  for (int last = first; last < created.problem.layer_count(); ++last) {
    for (int type = 0; type < created.problem.type_count(); ++type) {
      if (!stages.empty() && stages.back().type == type && created.problem.cost_model == CostModel::kHeterps) {
        continue;
      }
      for (std::int64_t count = 1; count <= created.problem.types[static_cast<std::size_t>(type)].count; ++count) {
        for (int recompute = 0; recompute <= (created.problem.allow_recompute ? 1 : 0); ++recompute) {
          stages.push_back({first, last, type, count, recompute == 1});
          enumerate(created, stages, least);
          stages.pop_back();
        }
      }
    }
  }
}

double min_value(const Case& created) {
  planning::Candidate stages;
  double least = INFINITY;
  enumerate(created, stages, least);
  return least;
}

class Methods : public testing::TestWithParam<CostModel> {};

INSTANTIATE_TEST_SUITE_P(CostModels, Methods, testing::Values(CostModel::kHeterps, CostModel::kPipeline),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(Methods, AnswerFeasibleCandidatesThatAreTrulyValued) {
  int answered = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Case created = random_case(seed, GetParam(), 6, 3);
    for (const auto& planner : methods()) {
      SCOPED_TRACE(fmt::format("{} on seed {}", planner.name, seed));
      const auto answer = planner.plan(make_request(created));
      if (!answer) {  // only methods for a sort of types that the problem has not
        EXPECT_EQ(answer.error().code, ErrorCode::kInvalidInput);
        EXPECT_THAT(answer.error().message, HasSubstr("type is needed"));
        continue;
      }
      EXPECT_FALSE(answer->stopped);
      EXPECT_GT(answer->evaluations, 0);
      if (!answer->best) {
        continue;
      }
      ++answered;
      const planning::Evaluation again = planning::evaluate(created.problem, *answer->best, created.objective);
      EXPECT_TRUE(again.feasible) << again.violation;
      EXPECT_EQ(planning::value(again, created.objective.criterion),
                planning::value(answer->evaluation, created.objective.criterion));
    }
  }
  EXPECT_GT(answered, 20);
}

TEST_P(Methods, NeverBeatEnumerationAndSearchesFindItWhereSpaceIsSmall) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Case created = random_case(seed, GetParam(), 3, 2);
    const double least = min_value(created);
    for (const auto& planner : methods()) {
      SCOPED_TRACE(fmt::format("{} on seed {}", planner.name, seed));
      const auto answer = planner.plan(make_request(created));
      if (!answer) {
        continue;
      }
      const double value = answer->best ? planning::value(answer->evaluation, created.objective.criterion) : INFINITY;
      EXPECT_GE(value, least * (1 - 1e-9));
      if (planner.name == "random" || planner.name == "genetic" ||
          planner.name == "bayesian") {  // which see every assignment
        EXPECT_LE(value, least * (1 + 1e-9));
        compared += std::isfinite(least) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(compared, 10);
}

TEST_P(Methods, AnswerTheSameForTheSameSeed) {
  const Case created = random_case(1, GetParam(), 8, 3);
  for (const auto& planner : methods()) {
    const auto first = planner.plan(make_request(created));
    const auto second = planner.plan(make_request(created));
    ASSERT_EQ(first.has_value(), second.has_value());
    if (first) {
      EXPECT_EQ(first->best, second->best) << planner.name;
      EXPECT_EQ(first->evaluations, second->evaluations) << planner.name;
    }
  }
}

TEST_P(Methods, EndAtTheTimeLimitAndReportAFewTimesASecond) {
  const Case created = random_case(2, GetParam(), 8, 3);
  std::set<std::string> stopped;
  for (const auto& planner : methods()) {
    ManualClock clock;
    Request request = make_request(created, clock);
    request.seconds = 2;
    std::vector<Progress> reports;
    request.progress = [&](const Progress& progress) { reports.push_back(progress); };
    request.evaluator = [&](const planning::Candidate& candidate) {
      clock.advance(0.1);
      return planning::evaluate(created.problem, candidate, created.objective);
    };
    const auto answer = planner.plan(request);
    if (!answer || !answer->stopped) {
      continue;  // done before
    }
    stopped.insert(planner.name);
    EXPECT_NEAR(answer->seconds, 2, 0.11) << planner.name;
    EXPECT_GE(reports.size(), 4U) << planner.name;
    for (std::size_t i = 1; i < reports.size(); ++i) {
      EXPECT_GE(reports[i].seconds - reports[i - 1].seconds, 0.25 - 1e-9);
      EXPECT_LE(reports[i].best, reports[i - 1].best);
      EXPECT_GE(reports[i].evaluations, reports[i - 1].evaluations);
    }
  }
  EXPECT_THAT(stopped, testing::IsSupersetOf({"genetic", "bayesian"}));
}

TEST_P(Methods, StopWhenAskedWithTheBestSoFar) {
  const Case created{random_case(0, GetParam(), 8, 3).problem, {}};  // without floors: every plan within counts will do
  std::set<std::string> stopped;
  for (const auto& planner : methods()) {
    std::stop_source source;
    Request request = make_request(created);
    request.stop = source.get_token();
    std::int64_t evaluated = 0;
    double least = INFINITY;
    request.evaluator = [&](const planning::Candidate& candidate) {
      if (++evaluated == 3) {
        source.request_stop();
      }
      planning::Evaluation evaluation = planning::evaluate(created.problem, candidate, created.objective);
      least = std::min(least, planning::value(evaluation, created.objective.criterion));
      return evaluation;
    };
    const auto answer = planner.plan(request);
    if (answer && answer->stopped) {
      stopped.insert(planner.name);
      EXPECT_EQ(evaluated, 3) << planner.name;
      EXPECT_EQ(planning::value(answer->evaluation, created.objective.criterion), least) << planner.name;
    }
  }
  EXPECT_THAT(stopped, testing::IsSupersetOf({"greedy", "genetic", "bayesian"}));
}

// A CPU type and a GPU type, unlimited links; layers as given: sparse bytes and parameter bytes.
planning::Problem two_types(const std::vector<std::pair<double, double>>& layers) {
  planning::Problem problem;
  problem.types = {
      {.name = "cpu", .price_per_hour = 1, .count = 4, .gradient_sync = planning::GradientSync::kParameterServer},
      {.name = "gpu", .price_per_hour = 10, .count = 4}};
  problem.links.resize(4);
  for (const auto& [sparse_bytes, parameter_bytes] : layers) {
    problem.layers.push_back({.name = fmt::format("layer{}", problem.layers.size()),
                              .parameter_bytes = parameter_bytes,
                              .sparse_bytes = sparse_bytes});
    problem.table.push_back({.forward = {0, 1}});
    problem.table.push_back({.forward = {0, 1}});
  }
  problem.cut_bytes.resize(layers.size() + 1);
  return problem;
}

// The types of all layers of every candidate that a method has evaluated, in order.
std::vector<std::vector<int>> evaluated_types(Result<Answer> (*plan)(const Request&), const Case& created) {
  std::vector<std::vector<int>> all;
  Request request = make_request(created);
  request.evaluator = [&](const planning::Candidate& candidate) {
    std::vector<int>& types = all.emplace_back();
    for (const planning::StageChoice& stage : candidate) {
      types.insert(types.end(), static_cast<std::size_t>(stage.last - stage.first + 1), stage.type);
    }
    return planning::evaluate(created.problem, candidate, created.objective);
  };
  EXPECT_TRUE(plan(request));
  return all;
}

TEST(SingleType, PutsAllLayersOnItsSortOfDevice) {
  const Case created{two_types({{1, 0}, {0, 1}}), {}};
  EXPECT_THAT(evaluated_types(plan_cpu_only, created), ElementsAre(std::vector{0, 0}));
  EXPECT_THAT(evaluated_types(plan_gpu_only, created), ElementsAre(std::vector{1, 1}));
}

TEST(SingleType, TakesTheBestOfSeveralTypes) {
  Case created{two_types({{1, 0}, {0, 1}}), {}};
  created.problem.types[0].gradient_sync = planning::GradientSync::kRing;  // both are GPUs now; the first is cheaper
  const auto answer = plan_gpu_only(make_request(created));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(answer->best->front().type, 0);
  const auto none = plan_cpu_only(make_request(created));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "cpu-only: a CPU type is needed; the device types are cpu, gpu");
}

TEST(Heuristic, PutsTheSparsePartOnCpus) {
  // embedding, concatenation | fully connected, activation, fully connected
  EXPECT_THAT(evaluated_types(plan_heuristic, {two_types({{1, 0}, {0, 0}, {0, 1}, {0, 0}, {0, 1}}), {}}),
              ElementsAre(std::vector{0, 0, 1, 1, 1}, std::vector{0, 0, 1, 1, 1}));
}

TEST(Heuristic, ReadsItsRuleInTwoWaysWhereASparseLayerComesLate) {
  // input, embedding, concatenation, fully connected, activation, embedding, concatenation, fully connected
  const Case created{two_types({{0, 0}, {1, 0}, {0, 0}, {0, 1}, {0, 0}, {1, 0}, {0, 0}, {0, 1}}), {}};
  EXPECT_THAT(evaluated_types(plan_heuristic, created),
              ElementsAre(std::vector{0, 0, 0, 1, 1, 0, 0, 1}, std::vector{0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST(Heuristic, PutsAModelWithoutSparseLayersOnGpus) {
  EXPECT_THAT(evaluated_types(plan_heuristic, {two_types({{0, 0}, {0, 1}}), {}}), testing::Each(std::vector{1, 1}));
}

TEST(Greedy, DecidesFromFirstToLast) {
  // Layer 0 is far faster on the CPU, the others on the GPU; at four devices of each at most, only speed counts.
  Case created{two_types({{0, 1}, {0, 1}, {0, 1}}), {.criterion = planning::Criterion::kMaxThroughput}};
  created.problem.table[1].forward.per_sample = 50;
  created.problem.table[2].forward.per_sample = 5;
  created.problem.table[4].forward.per_sample = 5;
  EXPECT_THAT(evaluated_types(plan_greedy, created),
              ElementsAre(std::vector{0, 0, 0}, std::vector{1, 1, 1},  // 11 against 52 seconds of work: the CPU
                          std::vector{0, 1, 1},                        // better
                          std::vector{0, 1, 0}));                      // worse: it stays
}

TEST(Greedy, FindsItsWayToAFloorThatNoSingleTypeReaches) {
  Case created{two_types({{0, 1}, {0, 1}}), {.criterion = planning::Criterion::kMinCost, .min_throughput = 3.9}};
  created.problem.table[1].forward.per_sample = 10;  // layer 0 on the GPU
  created.problem.table[2].forward.per_sample = 10;  // layer 1 on the CPU
  EXPECT_FALSE((*plan_cpu_only(make_request(created))).best);
  EXPECT_FALSE((*plan_gpu_only(make_request(created))).best);
  const auto answer = plan_greedy(make_request(created));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(*answer->best, (planning::Candidate{{0, 0, 0, 4, false}, {1, 1, 1, 4, false}}));
}

TEST(Pipedream, CutsAChainOnOneTypeUnderThePipelineModel) {
  // Two layers of equal work, with so many parameters that replicating either would not pay.
  Case created{two_types({{0, 1e9}, {0, 1e9}}), {.criterion = planning::Criterion::kMaxThroughput}};
  created.problem.cost_model = CostModel::kPipeline;
  created.problem.batch = 8;
  created.problem.micro_batches = 8;
  for (planning::Type& type : created.problem.types) {
    type.count = 2;
    type.bytes_per_second = 1e6;
  }
  const auto answer = plan_pipedream(make_request(created));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(*answer->best, (planning::Candidate{{0, 0, 0, 1, false}, {1, 1, 0, 1, false}}));
  EXPECT_EQ(answer->evaluations, 4);  // one and two machines of either type
}

TEST(Answer, TellsItsGap) {
  Answer answer;
  EXPECT_EQ(answer.gap(planning::Criterion::kMinCost), INFINITY);
  answer.best = planning::Candidate{};
  answer.evaluation.feasible = true;
  answer.evaluation.cost = 12;
  EXPECT_EQ(answer.gap(planning::Criterion::kMinCost), INFINITY);  // nothing is proved
  answer.bound = 10;
  EXPECT_DOUBLE_EQ(answer.gap(planning::Criterion::kMinCost), 0.2);
  answer.proved = true;
  EXPECT_EQ(answer.gap(planning::Criterion::kMinCost), 0);
}

TEST(Planners, HaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const auto& planner : planners()) {
    names.push_back(planner.name);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"cpu-only", "gpu-only", "heuristic", "greedy", "random", "genetic",
                                            "bayesian", "pipedream"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

}  // namespace
}  // namespace motley::planning
