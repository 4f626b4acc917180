// Random planning problems of realistic magnitudes, for tests and benchmarks: faster device types are dearer, sparse
// layers suit slow types with much memory traffic, dense layers suit fast ones, and no two types rank all layers alike.
#pragma once

#include <cstdint>

#include "motley/planning/cost/evaluation.h"
#include "motley/planning/cost/problem.h"

namespace motley::planning {

struct RandomProblemOptions {
  int layers = 8;
  int types = 3;
  CostModel cost_model = CostModel::kHeterps;
  std::int64_t min_count = 1;  // devices of every type: uniform in [min_count, max_count]
  std::int64_t max_count = 4;
  bool memory = false;           // devices too small for all layers at once (kPipeline)
  bool links = false;            // transfers between stages cost time; else links are unlimited
  bool fractions = true;         // alpha and beta below 1, of each layer and type; else 1 everywhere
  bool allow_recompute = false;  // kPipeline
  bool updates = false;          // weights take time to update, and a step what it takes once (kPipeline)
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
};

// Passes planning::validate. Equal for equal options and seed.
Problem random_problem(const RandomProblemOptions& options, std::uint64_t seed);

// A candidate with random stages, each on 1 to all devices that its type has left; it may exceed counts only where
// there are more stages than devices.
Candidate random_candidate(const Problem& problem, std::uint64_t seed);

// An objective whose limits are taken from what the best of some random candidates attains, each made looser or
// tighter by up to a half: mostly attainable, sometimes not. Throughput floor, cap of cost and of price an hour are
// each present where asked for.
struct RandomObjectiveOptions {
  Criterion criterion = Criterion::kMinCost;
  bool min_throughput = false;
  bool max_cost = false;
  bool max_hourly_cost = false;
};
Objective random_objective(const Problem& problem, const RandomObjectiveOptions& options, std::uint64_t seed);

}  // namespace motley::planning
