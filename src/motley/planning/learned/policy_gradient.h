// REINFORCE on plans, and the networks that it trains. Draws assignments from a policy, provisions and evaluates them,
// and moves the policy towards those that are better than usual.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "motley/planning/search/search.h"

namespace motley::planning {

struct Rollout {
  std::vector<Assignment> assignments;
  torch::Tensor log_probability;  // of every assignment; carries the gradient
  torch::Tensor entropy;          // of the choices on the way to every assignment, summed; likewise
};

enum class Choice { kSampled, kMaxLikely };

// A stochastic policy over plans: a network from which assignments of types to layers can be drawn, each with the
// probability that it had.
class Policy : public torch::nn::Module {
 public:
  virtual Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) = 0;
};

enum class Recurrence { kLstm, kElman };

// One step of the recurrence for each layer, in order; its input are the layer's features and the action before.
std::shared_ptr<Policy> make_sequence_policy(const Problem& problem, Recurrence recurrence);

// First the layers' groups, then the groups' types.
std::shared_ptr<Policy> make_attention_policy(const Problem& problem);

// What the networks see of a problem: layers x features, float32. Columns: which layer it is (one-hot), its kind
// (one-hot); then, each on a logarithmic scale with mean 0 and variance 1 over the layers: bytes of its input, of its
// dense and of its sparse parameters; and for every type the seconds that it computes, and that it communicates, in a
// (micro-)batch on one device.
torch::Tensor layer_features(const Problem& problem);

struct PolicyGradientOptions {
  int policies = 12;            // trained on the cost model one after the other, each from weights of its own
  int rounds = 200;             // of each of them, at most
  int tuning_rounds = 50;       // of the best of them on the request's evaluator, where it has one, and may
                                // call it as often as it likes
  int samples = 64;             // plans drawn in a round
  double learning_rate = 0.01;  // of Adam
  double entropy_weight = 0.1;  // at the beginning; falls to 0 with the rounds
  int patience = 20;            // rounds without a plan not seen before, after which a policy has converged
  int workers = 1;              // threads that evaluate; one where evaluations are limited
  bool pre_trains = true;       // on the cost model, before the request's evaluator (where it has one) is asked
};

// The scalar whose gradient is the policy gradient's estimate with the sign of a loss:
// - 1/N sum_n log P(plan n) advantage_n - entropy_weight * 1/N sum_n entropy_n.
torch::Tensor policy_gradient_loss(const Rollout& rollout, const torch::Tensor& advantages, double entropy_weight);

using MakePolicy = std::function<std::shared_ptr<Policy>(const Problem&)>;

// Trains fresh policies for this request; the best plan that they have drawn, or that one of them finds most likely in
// the end.
Result<Answer> plan_by_policy_gradient(const Request& request, const MakePolicy& make_policy,
                                       const PolicyGradientOptions& options);

}  // namespace motley::planning
