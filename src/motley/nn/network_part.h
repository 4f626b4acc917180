// Some consecutive layers of a network as a network of their own: what one stage of a pipeline computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motley/nn/stage.h"

namespace motley::nn {

// A tensor that several layers of a network read.
struct SharedTensor {
  std::string name;
  std::vector<int> layers;  // ascending
  bool trained = false;     // a parameter; else a buffer
};

struct NetworkPart {
  std::unique_ptr<Network> network;
  std::vector<std::int64_t> input_shape;   // of one sample
  std::vector<std::int64_t> output_shape;  // the same, of the last layer's output
  std::vector<SharedTensor> shared;        // of the whole network
};

// The layers `first` to `last` of the network's chain (layers_of), both included; `names` are those of all layers. The
// part has the network's names for its tensors, so that the parts' states together are the network's; a tensor that
// layers of several parts share is in each of them, and those that no layer reads belong to the first part. Memory of
// the other layers' tensors is given back. Runs samples through the network to find the shapes, without training. Where
// several values go from one part to the next, they are one tensor there, with a row for each sample.
//
// Errors (kInvalidInput): names that differ, a network that is no chain or whose sample shape is not known. The part is
// on the CPU, in float32, or in float64 where any parameter is.
Result<NetworkPart> take_part(std::unique_ptr<Network> network, const std::vector<std::string>& names, int first,
                              int last);

}  // namespace motley::nn
