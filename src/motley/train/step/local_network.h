// The layers that a rank computes: the whole network, or in a planned run those of its stage.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/ctr_models.h"
#include "motley/nn/loss.h"
#include "motley/nn/network_part.h"
#include "motley/nn/stage.h"
#include "motley/train/loop/step.h"

namespace motley::train {

struct LocalNetwork {
  torch::Device device = torch::kCPU;
  torch::Dtype dtype = torch::kFloat32;
  nn::Loss loss = nn::Loss::kCrossEntropy;
  nn::Metric metric = nn::Metric::kAccuracy;
  std::uint64_t seed = 1;
  bool is_synthetic = false;  // its gradients are zeros from the start, and its weights stay
  std::unique_ptr<nn::Stage> stage;
  std::optional<nn::LookupLayout> lookups;  // where these layers read what the samples look up
  std::vector<nn::SharedTensor> shared;     // of a planned run: tensors that several layers of the whole network read
  std::vector<std::int64_t> input_shape;    // the same: of one sample
  std::vector<std::int64_t> output_shape;

  // Before a micro-batch's forward: dropout depends on nothing else.
  void seed_randomness(const Step& step, int rank, std::int64_t micro_batch,
                       std::span<const std::uint32_t> samples) const;
  // Adds a micro-batch's loss and metric to the report.
  Status measure(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const;
};

}  // namespace motley::train
