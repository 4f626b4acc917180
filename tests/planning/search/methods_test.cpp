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
std::vector<std::unique_ptr<Planner>> methods() {
  std::vector<std::unique_ptr<Planner>> all = planners();
  std::erase_if(all,
                [](const auto& planner) { return planner->name() == "exact" || planner->name() == "brute-force"; });
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
  options.most_count = 3;
  options.links = seed % 2 == 0;
  options.memory = model == CostModel::kPipeline && seed % 3 == 0;
  options.allow_recompute = options.memory;
  Case made{random_problem(options, seed), {}};
  const planning::Goal goals[] = {planning::Goal::kLeastMoney, planning::Goal::kMostThroughput,
                                  planning::Goal::kLeastStepTime};
  made.objective = random_objective(
      made.problem, {.goal = goals[seed % 3], .min_throughput = seed % 2 == 0, .max_price_per_hour = seed % 4 == 1},
      seed);
  return made;
}

Request request_of(const Case& made, Clock& clock = SteadyClock::instance()) {
  return {.problem = made.problem, .objective = made.objective, .seed = 7, .seconds = 1e9, .clock = clock};
}

// The least value of all candidates: every stage ends at every later layer, is on every type, has every count.
void enumerate(const Case& made, planning::Candidate& stages, double& least) {
  const int first = stages.empty() ? 0 : stages.back().last + 1;
  if (first == made.problem.layer_count()) {
    least =
        std::min(least, planning::value(planning::evaluate(made.problem, stages, made.objective), made.objective.goal));
    return;
  }
  for (int last = first; last < made.problem.layer_count(); ++last) {
    for (int type = 0; type < made.problem.type_count(); ++type) {
      if (!stages.empty() && stages.back().type == type && made.problem.cost_model == CostModel::kHeterps) {
        continue;
      }
      for (std::int64_t count = 1; count <= made.problem.types[static_cast<std::size_t>(type)].count; ++count) {
        for (int recompute = 0; recompute <= (made.problem.allow_recompute ? 1 : 0); ++recompute) {
          stages.push_back({first, last, type, count, recompute == 1});
          enumerate(made, stages, least);
          stages.pop_back();
        }
      }
    }
  }
}

double least_value(const Case& made) {
  planning::Candidate stages;
  double least = INFINITY;
  enumerate(made, stages, least);
  return least;
}

class Methods : public testing::TestWithParam<CostModel> {};

INSTANTIATE_TEST_SUITE_P(CostModels, Methods, testing::Values(CostModel::kHeterps, CostModel::kPipeline),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(Methods, AnswerFeasibleCandidatesThatAreTrulyValued) {
  int answered = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Case made = random_case(seed, GetParam(), 6, 3);
    for (const auto& planner : methods()) {
      SCOPED_TRACE(fmt::format("{} on seed {}", planner->name(), seed));
      const auto answer = planner->plan(request_of(made));
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
      const planning::Evaluation again = planning::evaluate(made.problem, *answer->best, made.objective);
      EXPECT_TRUE(again.feasible) << again.violation;
      EXPECT_EQ(planning::value(again, made.objective.goal), planning::value(answer->evaluation, made.objective.goal));
    }
  }
  EXPECT_GT(answered, 20);
}

TEST_P(Methods, NeverBeatEnumerationAndSearchesFindItWhereSpaceIsSmall) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Case made = random_case(seed, GetParam(), 3, 2);
    const double least = least_value(made);
    for (const auto& planner : methods()) {
      SCOPED_TRACE(fmt::format("{} on seed {}", planner->name(), seed));
      const auto answer = planner->plan(request_of(made));
      if (!answer) {
        continue;
      }
      const double value = answer->best ? planning::value(answer->evaluation, made.objective.goal) : INFINITY;
      EXPECT_GE(value, least * (1 - 1e-9));
      if (planner->name() == "genetic" || planner->name() == "bayesian") {  // which see every assignment
        EXPECT_LE(value, least * (1 + 1e-9));
        compared += std::isfinite(least) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(compared, 10);
}

TEST_P(Methods, AnswerTheSameForTheSameSeed) {
  const Case made = random_case(1, GetParam(), 8, 3);
  for (const auto& planner : methods()) {
    const auto first = planner->plan(request_of(made));
    const auto second = planner->plan(request_of(made));
    ASSERT_EQ(first.has_value(), second.has_value());
    if (first) {
      EXPECT_EQ(first->best, second->best) << planner->name();
      EXPECT_EQ(first->evaluations, second->evaluations) << planner->name();
    }
  }
}

TEST_P(Methods, EndAtTheTimeLimitAndReportAFewTimesASecond) {
  const Case made = random_case(2, GetParam(), 8, 3);
  std::set<std::string> stopped;
  for (const auto& planner : methods()) {
    ManualClock clock;
    Request request = request_of(made, clock);
    request.seconds = 2;
    std::vector<Progress> reports;
    request.progress = [&](const Progress& progress) { reports.push_back(progress); };
    request.evaluator = [&](const planning::Candidate& candidate) {
      clock.advance(0.1);
      return planning::evaluate(made.problem, candidate, made.objective);
    };
    const auto answer = planner->plan(request);
    if (!answer || !answer->stopped) {
      continue;  // done before
    }
    stopped.insert(planner->name());
    EXPECT_NEAR(answer->seconds, 2, 0.11) << planner->name();
    EXPECT_GE(reports.size(), 4U) << planner->name();
    for (std::size_t i = 1; i < reports.size(); ++i) {
      EXPECT_GE(reports[i].seconds - reports[i - 1].seconds, 0.25 - 1e-9);
      EXPECT_LE(reports[i].best, reports[i - 1].best);
      EXPECT_GE(reports[i].evaluations, reports[i - 1].evaluations);
    }
  }
  EXPECT_THAT(stopped, testing::IsSupersetOf({"genetic", "bayesian"}));
}

TEST_P(Methods, StopWhenAskedWithTheBestSoFar) {
  const Case made{random_case(0, GetParam(), 8, 3).problem, {}};  // without floors: every plan within counts will do
  std::set<std::string> stopped;
  for (const auto& planner : methods()) {
    std::stop_source source;
    Request request = request_of(made);
    request.stop = source.get_token();
    std::int64_t evaluated = 0;
    double least = INFINITY;
    request.evaluator = [&](const planning::Candidate& candidate) {
      if (++evaluated == 3) {
        source.request_stop();
      }
      planning::Evaluation evaluation = planning::evaluate(made.problem, candidate, made.objective);
      least = std::min(least, planning::value(evaluation, made.objective.goal));
      return evaluation;
    };
    const auto answer = planner->plan(request);
    if (answer && answer->stopped) {
      stopped.insert(planner->name());
      EXPECT_EQ(evaluated, 3) << planner->name();
      EXPECT_EQ(planning::value(answer->evaluation, made.objective.goal), least) << planner->name();
    }
  }
  EXPECT_THAT(stopped, testing::IsSupersetOf({"greedy", "genetic", "bayesian"}));
}

// A CPU type and a GPU type, unlimited links; layers as given: sparse bytes and parameter bytes.
planning::Problem two_types(const std::vector<std::pair<double, double>>& layers) {
  planning::Problem problem;
  problem.types = {{.name = "cpu", .price_per_hour = 1, .count = 4, .exchange = planning::Exchange::kParameterServer},
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
std::vector<std::vector<int>> evaluated_types(const Planner& planner, const Case& made) {
  std::vector<std::vector<int>> all;
  Request request = request_of(made);
  request.evaluator = [&](const planning::Candidate& candidate) {
    std::vector<int>& types = all.emplace_back();
    for (const planning::StageChoice& stage : candidate) {
      types.insert(types.end(), static_cast<std::size_t>(stage.last - stage.first + 1), stage.type);
    }
    return planning::evaluate(made.problem, candidate, made.objective);
  };
  EXPECT_TRUE(planner.plan(request));
  return all;
}

TEST(SingleType, PutsAllLayersOnItsSortOfDevice) {
  const Case made{two_types({{1, 0}, {0, 1}}), {}};
  EXPECT_THAT(evaluated_types(*make_cpu_only(), made), ElementsAre(std::vector{0, 0}));
  EXPECT_THAT(evaluated_types(*make_gpu_only(), made), ElementsAre(std::vector{1, 1}));
}

TEST(SingleType, TakesTheBestOfSeveralTypes) {
  Case made{two_types({{1, 0}, {0, 1}}), {}};
  made.problem.types[0].exchange = planning::Exchange::kRing;  // both are GPUs now; the first is cheaper
  const auto answer = make_gpu_only()->plan(request_of(made));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(answer->best->front().type, 0);
  const auto none = make_cpu_only()->plan(request_of(made));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "cpu-only: a CPU type is needed; the device types are cpu, gpu");
}

TEST(Heuristic, PutsTheSparsePartOnCpus) {
  // embedding, concatenation | fully connected, activation, fully connected
  EXPECT_THAT(evaluated_types(*make_heuristic(), {two_types({{1, 0}, {0, 0}, {0, 1}, {0, 0}, {0, 1}}), {}}),
              ElementsAre(std::vector{0, 0, 1, 1, 1}, std::vector{0, 0, 1, 1, 1}));
}

TEST(Heuristic, ReadsItsRuleInTwoWaysWhereASparseLayerComesLate) {
  // input, embedding, concatenation, fully connected, activation, embedding, concatenation, fully connected
  const Case made{two_types({{0, 0}, {1, 0}, {0, 0}, {0, 1}, {0, 0}, {1, 0}, {0, 0}, {0, 1}}), {}};
  EXPECT_THAT(evaluated_types(*make_heuristic(), made),
              ElementsAre(std::vector{0, 0, 0, 1, 1, 0, 0, 1}, std::vector{0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST(Heuristic, PutsAModelWithoutSparseLayersOnGpus) {
  EXPECT_THAT(evaluated_types(*make_heuristic(), {two_types({{0, 0}, {0, 1}}), {}}), testing::Each(std::vector{1, 1}));
}

TEST(Greedy, DecidesFromFirstToLast) {
  // Layer 0 is far faster on the CPU, the others on the GPU; at four devices of each at most, only speed counts.
  Case made{two_types({{0, 1}, {0, 1}, {0, 1}}), {.goal = planning::Goal::kMostThroughput}};
  made.problem.table[1].forward.per_sample = 50;
  made.problem.table[2].forward.per_sample = 5;
  made.problem.table[4].forward.per_sample = 5;
  EXPECT_THAT(evaluated_types(*make_greedy(), made),
              ElementsAre(std::vector{0, 0, 0}, std::vector{1, 1, 1},  // 11 against 52 seconds of work: the CPU
                          std::vector{0, 1, 1},                        // better
                          std::vector{0, 1, 0}));                      // worse: it stays
}

TEST(Greedy, FindsItsWayToAFloorThatNoSingleTypeReaches) {
  Case made{two_types({{0, 1}, {0, 1}}), {.goal = planning::Goal::kLeastMoney, .min_throughput = 3.9}};
  made.problem.table[1].forward.per_sample = 10;  // layer 0 on the GPU
  made.problem.table[2].forward.per_sample = 10;  // layer 1 on the CPU
  EXPECT_FALSE((*make_cpu_only()->plan(request_of(made))).best);
  EXPECT_FALSE((*make_gpu_only()->plan(request_of(made))).best);
  const auto answer = make_greedy()->plan(request_of(made));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(*answer->best, (planning::Candidate{{0, 0, 0, 4, false}, {1, 1, 1, 4, false}}));
}

TEST(Pipedream, CutsAChainOnOneTypeUnderThePipelineModel) {
  // Two layers of equal work, with so many parameters that replicating either would not pay.
  Case made{two_types({{0, 1e9}, {0, 1e9}}), {.goal = planning::Goal::kMostThroughput}};
  made.problem.cost_model = CostModel::kPipeline;
  made.problem.batch = 8;
  made.problem.micro_batches = 8;
  for (planning::Type& type : made.problem.types) {
    type.count = 2;
    type.bytes_per_second = 1e6;
  }
  const auto answer = make_pipedream()->plan(request_of(made));
  ASSERT_TRUE(answer && answer->best);
  EXPECT_EQ(*answer->best, (planning::Candidate{{0, 0, 0, 1, false}, {1, 1, 0, 1, false}}));
  EXPECT_EQ(answer->evaluations, 4);  // one and two machines of either type
}

TEST(Answer, TellsItsGap) {
  Answer answer;
  EXPECT_EQ(answer.gap(planning::Goal::kLeastMoney), INFINITY);
  answer.best = planning::Candidate{};
  answer.evaluation.feasible = true;
  answer.evaluation.money = 12;
  EXPECT_EQ(answer.gap(planning::Goal::kLeastMoney), INFINITY);  // nothing is proved
  answer.bound = 10;
  EXPECT_DOUBLE_EQ(answer.gap(planning::Goal::kLeastMoney), 0.2);
  answer.proved = true;
  EXPECT_EQ(answer.gap(planning::Goal::kLeastMoney), 0);
}

TEST(Planners, HaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const auto& planner : planners()) {
    names.push_back(planner->name());
  }
  EXPECT_THAT(names, testing::IsSupersetOf(
                         {"cpu-only", "gpu-only", "heuristic", "greedy", "genetic", "bayesian", "pipedream"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

}  // namespace
}  // namespace motley::planning
