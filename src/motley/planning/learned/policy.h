// A stochastic policy over plans: a network from which assignments of types to layers can be drawn, each with the
// probability that it had.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "motley/planning/search/assignment.h"

namespace motley::planning {

struct Rollout {
  std::vector<Assignment> assignments;
  torch::Tensor log_probability;  // of every assignment; carries the gradient
  torch::Tensor entropy;          // of the choices on the way to every assignment, summed; likewise
};

enum class Choice { kSampled, kMostLikely };

class Policy : public torch::nn::Module {
 public:
  virtual Rollout roll(std::int64_t count, Choice choice, at::Generator& generator) = 0;
};

enum class Recurrence { kLstm, kElman };

// One step of the recurrence for each layer, in order; its input are the layer's features and the action before.
std::shared_ptr<Policy> make_sequence_policy(const planning::Problem& problem, Recurrence recurrence);

// First the layers' groups, then the groups' types.
std::shared_ptr<Policy> make_attention_policy(const planning::Problem& problem);

}  // namespace motley::planning
