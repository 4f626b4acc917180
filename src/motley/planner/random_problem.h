// Random planning problems of realistic magnitudes, for tests and benchmarks: faster device types are dearer, sparse
// layers suit slow types with much memory traffic, dense layers suit fast ones, and no two types rank all layers alike.
#pragma once

#include <cstdint>

#include "motley/cost/evaluation.h"
#include "motley/cost/problem.h"
#include "motley/plan/objective.h"

namespace motley::planner {

struct RandomProblemOptions {
  int layers = 8;
  int types = 3;
  cost::CostModel cost_model = cost::CostModel::kHeterps;
  std::int64_t least_count = 1;  // devices of every type: uniform in [least_count, most_count]
  std::int64_t most_count = 4;
  bool memory = false;           // devices too small for all layers at once (kPipeline)
  bool links = false;            // transfers between stages cost time; else links are unlimited
  bool fractions = true;         // alpha and beta below 1, of each layer and type; else 1 everywhere
  bool allow_recompute = false;  // kPipeline
  plan::Schedule schedule = plan::Schedule::kOneForwardOneBackward;
};

// Passes cost::validate. Equal for equal options and seed.
cost::Problem random_problem(const RandomProblemOptions& options, std::uint64_t seed);

// A candidate with random stages, each on 1 to all devices that its type has left; it may exceed counts only where
// there are more stages than devices.
cost::Candidate random_candidate(const cost::Problem& problem, std::uint64_t seed);

// An objective whose floor and caps are taken from what the best of some random candidates attains, each made looser or
// tighter by up to a half: mostly attainable, sometimes not. Throughput floor, cap of money and of price an hour are
// each present where asked for.
struct RandomObjectiveOptions {
  plan::Goal goal = plan::Goal::kLeastMoney;
  bool min_throughput = false;
  bool max_money = false;
  bool max_price_per_hour = false;
};
plan::Objective random_objective(const cost::Problem& problem, const RandomObjectiveOptions& options,
                                 std::uint64_t seed);

}  // namespace motley::planner
