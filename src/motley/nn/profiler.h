// Measures what every layer of a network takes on one device, within whole training passes, so that caches and memory
// are as cold as in training.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/model/profile.h"
#include "motley/nn/loss.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/stage.h"

namespace motley::nn {

// What a step does besides the network's layers, and in which precision.
struct StepSpec {
  Loss loss = Loss::kCrossEntropy;
  OptimizerSpec optimizer;
  torch::Dtype dtype = torch::kFloat32;
  bool autocast = false;
  std::size_t bucket_bytes = 4'000'000;  // of gradients
  std::int64_t tokens = 0;               // inputs are token ids, integers below this; 0: any numbers
};

struct ProfilerOptions {
  std::vector<std::int64_t> batches = {1, 4, 16, 64};             // ascending
  double seconds = 20;                                            // about as long as it may take
  double memory_bytes = std::numeric_limits<double>::infinity();  // batches that need more are left out
  Clock& clock = SteadyClock::instance();
  std::function<void(const std::string&)> progress = {};  // may be empty
  std::stop_token stop = {};                              // after the pass under way
};

// A graph of the network (model_graph) and one more layer "step", of kind loss: what a step takes besides.
Result<model::Graph> step_graph(Network& network);

// The share of passes or steps that other processes have disturbed least: by these, what ran apart is compared.
inline constexpr double kQuietPasses = 0.2;

struct LayerTimes {
  std::vector<model::LayerTime> layers;  // one for each of step_graph's
  std::vector<std::int64_t> batches;     // those that were measured
  std::vector<double> quiet_seconds;     // of each: forward and backward in the quietest fifth of the passes
  int rounds = 0;
  double pass_spread = 0;  // median absolute deviation of whole passes, as a share of their median
  double drift = 0;        // by which the last third of them took longer than the first; below 0: shorter
};

// Runs forward and backward of whole batches, layer by layer, on random inputs, in rounds over the batch sizes. The
// first passes are not counted. The optimizer's update is measured as a whole and divided among layers by their
// parameters; the weights stay as they are. Of the layer "step", forward is the loss and the metric, and the rest is 0.
// Moves the network to the device.
//
// Batches that memory or time do not suffice for are left out, and 1 where the network refuses it (BatchNorm of a
// single value); one is measured in any case. Errors: what the network answers;
// kInterrupted where it was stopped.
Result<LayerTimes> profile_layers(Network& network, const model::Graph& graph, const StepSpec& step,
                                  torch::Device device, const ProfilerOptions& options);

// The line fixed + per_sample * batch nearest to (batch, seconds), both parts at least 0: least squares of relative
// deviations, in which a point that is off by more than a few percent counts for little (Huber's weights).
model::Affine fit_affine(std::span<const std::pair<double, double>> points);

}  // namespace motley::nn
