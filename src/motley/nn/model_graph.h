// Networks and what planners know of them (motley/model/graph.h): layers with their sizes, found by running one sample;
// and networks that are no more than such layers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/graph.h"
#include "motley/nn/stage.h"

namespace motley::nn {

// The network's chain; one layer of the network's name where it is none.
std::vector<ChainLayer> list_layers(Network& network);

// The layers with kinds, parameters, and what one sample of the network's sample_shape makes of them: bytes of their
// outputs, bytes that they keep inside for the backward pass, rows that they look up at servers, and floating-point
// operations, as libtorch counts them for its own profiler (matrix products and convolutions, and sums and products of
// whole tensors). `source` says where it is one layer because the network is no chain. Runs on the CPU without
// training; leaves the network in training mode. Errors: kInvalidInput where the sample's shape is not known or the
// network does not take it.
Result<model::Graph> model_graph(Network& network);

// A synthetic network: layers with the weights and the outputs of those in a profile, which compute nothing. A run with
// it sends what the real network would send, and takes as long as the devices in the profile when it is emulated; so
// plans can be tried for networks and devices that are not here.
//
// The layers of the profile's graph, joined to at most `max_layers` (model::coarsen; 0: as they are). Each has one
// parameter, "<layer>.weight", of as many values as it trains, and gives zeros of the size that is sent when the chain
// is cut after it; the last gives `outputs` values. It takes samples of any shape, said by `sample_shape`. Gradients of
// inputs are zeros, those of parameters stay undefined.
//
// Errors (kInvalidInput): those of model::read_profile, and layers that look up rows.
Result<std::unique_ptr<Network>> make_synthetic_model(const std::filesystem::path& profile, std::int64_t max_layers,
                                                      std::vector<std::int64_t> sample_shape, std::int64_t outputs);

}  // namespace motley::nn
