// What a policy network sees of a planning problem: one row of numbers for each layer.
#pragma once

#include <torch/torch.h>

#include "motley/planning/cost/problem.h"

namespace motley::planning {

// Layers x features, float32. Columns: which layer it is (one-hot), its kind (one-hot); then, each on a logarithmic
// scale with mean 0 and variance 1 over the layers: bytes of its input, of its dense and of its sparse parameters; and
// for every type the seconds that it computes, and that it communicates, in a (micro-)batch on one device.
torch::Tensor layer_features(const planning::Problem& problem);

}  // namespace motley::planning
