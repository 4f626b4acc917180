// Random planning problems that the exact methods are checked on: both cost models, all goals, every limit on and off,
// small enough for brute force.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "motley/base/random.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {

struct Instance {
  planning::Problem problem;
  planning::Objective objective;
  std::string words;  // for messages
};

// Types of a random problem differ in speed by up to 500 times, so that the best plan is mostly on one of them. This
// makes them equal in sum, though not by layer, so that stages on several types pay.
inline void equalise(planning::Problem& problem) {
  double reference = 0;
  for (int type = 0; type < problem.type_count(); ++type) {
    double sum = 0;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      sum += problem.at(layer, type).forward.at(64) + problem.at(layer, type).backward.at(64);
    }
    reference = type == 0 ? sum / 100 : reference;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      planning::LayerOnType& times = problem.table[static_cast<std::size_t>(layer * problem.type_count() + type)];
      for (model::Affine* part : {&times.forward, &times.backward}) {
        part->fixed *= reference / sum;
        part->per_sample *= reference / sum;
      }
    }
    problem.types[static_cast<std::size_t>(type)].price_per_hour = 1 + 0.2 * type;
  }
}

inline Instance random_instance(std::uint64_t seed) {
  Random random(mix({seed, 0x6578616374ULL}));
  const auto chance = [&](int one_in) { return random.below(static_cast<std::uint64_t>(one_in)) == 0; };
  struct Size {
    int layers;
    int types;
    int max_count;
  };
  constexpr std::array<Size, 8> kHeterps{
      {{10, 4, 1}, {10, 3, 2}, {10, 2, 6}, {8, 2, 8}, {7, 3, 3}, {6, 4, 2}, {4, 4, 3}, {10, 1, 9}}};
  constexpr std::array<Size, 8> kPipeline{
      {{10, 3, 1}, {8, 4, 1}, {10, 2, 2}, {7, 2, 2}, {4, 3, 2}, {3, 4, 2}, {5, 1, 6}, {4, 2, 4}}};
  const bool heterps = chance(2);
  const Size& size = (heterps ? kHeterps : kPipeline)[random.below(8)];

  RandomProblemOptions options;
  options.cost_model = heterps ? planning::CostModel::kHeterps : planning::CostModel::kPipeline;
  options.layers = size.layers;
  options.types = size.types;
  options.max_count = size.max_count;
  options.memory = chance(2);
  options.links = chance(2);
  options.fractions = chance(2);
  options.allow_recompute = chance(2);
  options.updates = seed % 3 == 0;
  options.schedule =
      chance(2) ? planning::PipelineSchedule::kGPipe : planning::PipelineSchedule::kOneForwardOneBackward;
  RandomObjectiveOptions limits;
  limits.criterion = static_cast<planning::Criterion>(random.below(3));
  limits.min_throughput = chance(3);
  limits.max_cost = chance(4);
  limits.max_hourly_cost = chance(3);

  Instance instance;
  instance.problem = random_problem(options, seed);
  if (chance(2)) {
    equalise(instance.problem);
  }
  instance.objective = random_objective(instance.problem, limits, seed);
  instance.words =
      fmt::format("seed {}: {}, {} layers, {} types of up to {}, {} micro-batches, {}, {}", seed,
                  planning::to_string(options.cost_model), size.layers, size.types, size.max_count,
                  instance.problem.micro_batches, planning::to_string(options.schedule), describe(instance.objective));
  return instance;
}

inline double compute_value(const Answer& answer, planning::Criterion criterion) {
  return answer.best ? planning::value(answer.evaluation, criterion) : std::numeric_limits<double>::infinity();
}

// Bytes a second, at which replicas take long to agree.
constexpr double kSlowExchange = 2e6;

// 1F1B on stages that are nearly alike, with links so slow that round trips, and not computation, often set the rate.
inline Instance instance_of_slow_links(std::uint64_t seed) {
  Random random(mix({seed, 0x736c6f77ULL}));
  struct Size {
    int layers;
    int types;
    int max_count;
  };
  constexpr std::array<Size, 4> kSizes{{{8, 1, 8}, {7, 2, 3}, {5, 3, 2}, {5, 2, 4}}};
  const Size& size = kSizes[random.below(4)];
  RandomProblemOptions options{
      .layers = size.layers, .types = size.types, .cost_model = planning::CostModel::kPipeline};
  options.min_count = size.types == 1 ? size.max_count : 1;
  options.max_count = size.max_count;
  options.memory = random.below(3) == 0;
  options.allow_recompute = options.memory && size.layers <= 5;
  options.updates = seed % 2 == 0;
  Instance instance;
  planning::Problem& problem = instance.problem = random_problem(options, seed);
  equalise(problem);
  problem.micro_batches = 2 + static_cast<std::int64_t>(random.below(31));
  const double samples = static_cast<double>(problem.batch) / static_cast<double>(problem.micro_batches);
  for (std::size_t i = 0; i < problem.table.size(); ++i) {
    const double seconds = (0.5 + 0.3 * random.uniform()) / samples;
    problem.table[i].forward = {0, seconds};
    problem.table[i].backward = {0, seconds * (1 + random.uniform())};
  }
  for (std::size_t cut = 1; cut + 1 < problem.cut_bytes.size(); ++cut) {
    problem.cut_bytes[cut] = (0.05 + random.uniform() * random.uniform()) / samples;
  }
  for (int from = 0; from < size.types; ++from) {
    problem.types[static_cast<std::size_t>(from)].bytes_per_second = kSlowExchange;
    for (int to = from; to < size.types; ++to) {
      const planning::Link link{0.5 + random.uniform(), 0.1 * random.uniform()};
      problem.links[problem.place(from, to)] = problem.links[problem.place(to, from)] = link;
    }
  }
  const bool are_devices_slow = seed % 3 == 0;
  if (are_devices_slow) {  // a device takes long for a transfer, too, and as long as else for its gradients and rows
    for (planning::Type& type : problem.types) type.bytes_per_second = 0.2 + random.uniform();
    for (planning::LayerSize& layer : problem.layers) {
      layer.parameter_bytes /= kSlowExchange;
      layer.sparse_bytes /= kSlowExchange;
    }
  }
  const bool capped = random.below(3) == 0;
  instance.objective = random_objective(
      problem, {.criterion = static_cast<planning::Criterion>(random.below(3)), .max_hourly_cost = capped}, seed);
  instance.words = fmt::format("seed {}: slow links{}, {} layers, {} types of up to {}, {} micro-batches, {}", seed,
                               are_devices_slow ? " and devices" : "", size.layers, size.types, size.max_count,
                               problem.micro_batches, describe(instance.objective));
  return instance;
}

// Whether W under 1F1B is that of a run of at least two stages which does not end with the last, by its definition.
inline bool run_sets_the_rate(const std::vector<planning::StageCost>& stages) {
  double inner = 0;
  double others = 0;
  for (std::size_t first = 0; first < stages.size(); ++first) {
    double seconds = 0;
    for (std::size_t last = first; last < stages.size(); ++last) {
      seconds += stages[last].forward_seconds + stages[last].backward_seconds;
      double& longest = last > first && last + 1 < stages.size() ? inner : others;
      longest = std::max(longest, seconds / static_cast<double>(last - first + 1));
      seconds += 2 * stages[last].transfer_seconds;
      others = std::max(others, stages[last].transfer_seconds);
    }
  }
  return inner > others;
}

struct Tally {
  int instances = 0;
  int infeasible = 0;
  int of_several_stages = 0;
  int of_runs = 0;  // of several stages that do not end with the last, under 1F1B
};

// Both are proved, of one value, and agree on what cannot be met.
inline void expect_equal_to_brute_force(const Instance& instance, Tally& tally) {
  SCOPED_TRACE(instance.words);
  const Request request{.problem = instance.problem, .objective = instance.objective, .seconds = 1e6};
  const auto reference = plan_brute_force(request);
  const auto answer = plan_exact(request);
  ASSERT_TRUE(reference) << reference.error().message;
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_TRUE(reference->proved);
  EXPECT_TRUE(answer->proved);
  ++tally.instances;
  ASSERT_EQ(answer->best.has_value(), reference->best.has_value());
  if (!reference->best) {
    ++tally.infeasible;
    return;
  }
  const double optimum = compute_value(*reference, instance.objective.criterion);
  EXPECT_NEAR(compute_value(*answer, instance.objective.criterion), optimum, 1e-9 * optimum);
  EXPECT_NEAR(answer->bound, optimum, 1e-9 * optimum);
  EXPECT_TRUE(planning::evaluate(instance.problem, *answer->best, instance.objective).feasible);
  tally.of_several_stages += reference->best->size() > 1 ? 1 : 0;
  tally.of_runs += answer->evaluation.stages.size() > 1 && run_sets_the_rate(answer->evaluation.stages) ? 1 : 0;
}

}  // namespace motley::planning
