// REINFORCE on plans: what all planners with a policy network share. Draws assignments from the policy, provisions and
// evaluates them, and moves the policy towards those that are better than usual.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "motley/planning/learned/policy.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {

struct PolicyGradientOptions {
  int policies = 12;             // trained on the cost model one after the other, each from weights of its own
  int rounds = 600;              // of each of them, at most
  int tuning_rounds = 50;        // of the best of them on the request's evaluator, where it has one, and may
                                 // call it as often as it likes
  int samples = 256;             // plans drawn in a round
  double learning_rate = 0.003;  // of Adam
  double baseline_rate = 0.3;    // gamma: how fast the baseline follows the rewards
  double entropy_weight = 0.1;   // at the beginning; falls to 0 with the rounds
  int patience = 20;             // rounds without a plan not seen before, after which a policy has converged
  int workers = 1;               // threads that evaluate; one where evaluations are limited
};

// The scalar whose gradient is the policy gradient's estimate with the sign of a loss:
// - 1/N sum_n log P(plan n) advantage_n - entropy_weight * 1/N sum_n entropy_n.
torch::Tensor policy_gradient_loss(const Rollout& rollout, const torch::Tensor& advantages, double entropy_weight);

using MakePolicy = std::function<std::shared_ptr<Policy>(const planning::Problem&)>;

// Trains fresh policies for this request; the best plan that they have drawn, or that one of them finds most likely in
// the end.
Result<Answer> plan_by_policy_gradient(const Request& request, const MakePolicy& make_policy,
                                       const PolicyGradientOptions& options);

}  // namespace motley::planning
