// A plan as a person would draw it: for the terminal, and as a page that opens offline.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "motley/planning/cost/evaluation.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/what_if.h"

namespace motley::report {

// What one method answered. `refused` says why it has no answer at all (a problem that it cannot take).
struct MethodAnswer {
  std::string method;
  planning::Answer answer;
  std::string refused;
};

// How the plan was chosen, where by steps of real runs.
struct Measuring {
  planning::Measured best;  // of the plan that is shown
  std::int64_t plans = 0;   // that were run
  std::int64_t failed = 0;
};

// All that is shown. Prices are in the money of the cluster file.
struct PlanView {
  const planning::Problem& problem;
  planning::Objective objective;
  std::string method;
  planning::Answer answer;  // with a best candidate; its evaluation is the cost model's
  std::optional<Measuring> measuring;
  std::vector<planning::Marginal> marginals;
  std::vector<std::pair<planning::WhatIf, std::vector<planning::Regime>>> what_ifs;
  std::vector<MethodAnswer> methods;  // of a comparison; the answer's own method too
};

// The layer that takes longest in a stage: what would have to shrink for the stage to become faster.
int heaviest_layer(const planning::Problem& problem, const planning::StageChoice& stage);

std::string plan_text(const PlanView& view);
std::string plan_page(const PlanView& view);

// "no plan reaches 20,000 samples/s: the best is 14,210 with all 8 gpu; layer fc2 binds". `most` and `least` are the
// answers to most throughput and to least money on the same devices, without floors and caps.
std::string explain_impossible(const planning::Problem& problem, const planning::Objective& objective,
                               const planning::Answer& most, const planning::Answer& least);

}  // namespace motley::report
