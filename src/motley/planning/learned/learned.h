// The planners whose policy is a neural network: HeterPS's recurrent scheduler and TAPP's partition and allocation
// networks. They search by reinforcement alone and prove nothing: Answer::bound stays 0.
#pragma once

#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::planning {

// "rl-lstm", "rl-rnn", "rl-attention".
std::vector<Planner> learned_planners();

// A recurrent network reads the layers in order and chooses a type for each (under kPipeline also where to cut), after
// HeterPS. It is trained by policy gradient on the cost model; where the request has an evaluator, it is pre-trained on
// the cost model, and then tuned on the evaluator.
Result<Answer> plan_rl_lstm(const Request& request);
Result<Answer> plan_rl_rnn(const Request& request);

// A feed-forward network partitions the layers into groups, one with attention gives every group a type, after TAPP;
// both are trained together. Sampled plans are evaluated by several threads, whose number has no influence on the
// answer: Request::evaluator, where given without Request::max_evaluations, is called from several threads at once; it
// must not throw.
Result<Answer> plan_rl_attention(const Request& request);

}  // namespace motley::planning
