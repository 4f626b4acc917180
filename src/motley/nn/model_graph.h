// A network's layers with their sizes, as planners know it (motley/model/graph.h), found by running one sample.
#pragma once

#include <vector>

#include "motley/base/result.h"
#include "motley/model/graph.h"
#include "motley/nn/stage.h"

namespace motley::nn {

// The network's chain; one layer of the network's name where it is none.
std::vector<ChainLayer> layers_of(Network& network);

// The layers with kinds, parameters, and what one sample of the network's sample_shape makes of them: bytes of their
// outputs, bytes that they keep inside for the backward pass, rows that they look up at servers, and floating-point
// operations, as libtorch counts them for its own profiler (matrix products and convolutions, and sums and products of
// whole tensors). `source` says where it is one layer because the network is no chain. Runs on the CPU without
// training; leaves the network in training mode. Errors: kInvalidInput where the sample's shape is not known or the
// network does not take it.
Result<model::Graph> model_graph(Network& network);

}  // namespace motley::nn
