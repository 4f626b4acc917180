// What the search for a plan has found: the plan, what its answer hangs on, and what other methods answered; or why
// there is no plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/planning/cost/evaluation.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/what_if.h"

namespace motley::planning {

// What one method answered. `refused` says why it has no answer at all (a problem that it cannot take).
struct MethodAnswer {
  std::string method;
  Answer answer;
  std::string refused;
};

// How the plan was chosen, where by steps of real runs.
struct Measuring {
  Measured best;           // of the plan
  std::int64_t plans = 0;  // that were run
  std::int64_t failed = 0;
};

// The plan with all that was asked beside it. Prices are in the currency of the cluster file.
struct FoundPlan {
  const Problem& problem;
  Objective objective;
  std::string method;
  Answer answer;  // with a best candidate; its evaluation is the cost model's
  std::optional<Measuring> measuring;
  std::vector<Marginal> marginals;
  std::vector<std::pair<WhatIf, std::vector<Regime>>> what_ifs;
  std::vector<MethodAnswer> methods;  // of a comparison; the answer's own method too
};

// A number in a text: to three digits, and an integer from 1000 on: "3.14", "14,210"; "–" where it is infinite.
std::string format_figure(double value);

// The layer that takes longest in a stage: what would have to shrink for the stage to become faster.
int heaviest_layer(const Problem& problem, const StageChoice& stage);

// "no plan reaches 20,000 samples/s: the best is 14,210 with all 8 gpu; layer fc2 is the bottleneck". `most` and
// `least` are the answers to highest throughput and to lowest cost on the same devices, without limits.
std::string explain_impossible(const Problem& problem, const Objective& objective, const Answer& most,
                               const Answer& least);

}  // namespace motley::planning
