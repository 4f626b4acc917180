// A plan as a person would draw it: for the terminal, and as a page that opens offline.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "motley/cost/evaluation.h"
#include "motley/planner/planner.h"
#include "motley/planner/what_if.h"

namespace motley::report {

// What one method answered. `refused` says why it has no answer at all (a problem that it cannot take).
struct MethodAnswer {
  std::string method;
  planner::Answer answer;
  std::string refused;
};

// How the plan was chosen, where by steps of real runs.
struct Measuring {
  plan::Measured best;     // of the plan that is shown
  std::int64_t plans = 0;  // that were run
  std::int64_t failed = 0;
};

// All that is shown. Prices are in the money of the cluster file.
struct PlanView {
  const cost::Problem& problem;
  plan::Objective objective;
  std::string method;
  planner::Answer answer;  // with a best candidate; its evaluation is the cost model's
  std::optional<Measuring> measuring;
  std::vector<planner::Marginal> marginals;
  std::vector<std::pair<planner::WhatIf, std::vector<planner::Regime>>> what_ifs;
  std::vector<MethodAnswer> methods;  // of a comparison; the answer's own method too
};

// The layer that takes longest in a stage: what would have to shrink for the stage to become faster.
int heaviest_layer(const cost::Problem& problem, const cost::StageChoice& stage);

std::string plan_text(const PlanView& view);
std::string plan_page(const PlanView& view);

// "no plan reaches 20,000 samples/s: the best is 14,210 with all 8 gpu; layer fc2 binds". `most` and `least` are the
// answers to most throughput and to least money on the same devices, without floors and caps.
std::string explain_impossible(const cost::Problem& problem, const plan::Objective& objective,
                               const planner::Answer& most, const planner::Answer& least);

}  // namespace motley::report
