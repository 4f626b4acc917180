// The layers that a rank computes, the whole network or in a planned run those of its stage, and batches as they read
// them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/loader.h"
#include "motley/nn/ctr_models.h"
#include "motley/nn/loss.h"
#include "motley/nn/network_part.h"
#include "motley/nn/stage.h"
#include "motley/train/loop/samples.h"
#include "motley/train/step/served_table.h"

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

  // Adds a micro-batch's loss and metric to the report.
  Status measure(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const;
};

// Tensors on the network's device, with the embedding rows that the samples look up, which servers may have.
class BatchTensors {
 public:
  // All that is referred to must outlive this object.
  BatchTensors(const RankContext& context, const LocalNetwork& network, SampleReader& reader)
      : context_(context), network_(network), reader_(reader) {}

  // The rows are those of this table from now on.
  void look_up_in(std::unique_ptr<ServedTable> table) { table_ = std::move(table); }
  ServedTable* table() const { return table_.get(); }

  // Features [n, sample...] and targets [n, target_width], of a batch of the training data in this step, or of another
  // dataset after it: of that the rows are those after all finished steps.
  Result<torch::Tensor> inputs(std::int64_t step, const data::Batch& batch, const data::Dataset& dataset);
  torch::Tensor targets(const data::Batch& batch, const data::Dataset& dataset) const;

  // A step of the served rows, in this order; nothing where servers have none.
  void begin_step();
  // Asks for the rows of the next batch once it is known which they are, unless it has.
  Status prefetch(const Deadline& patience);
  // The gradient of the network's input for samples [first, first + n) of a batch: of a mean over `weight` samples.
  Status push(const data::Batch& batch, std::int64_t first, const torch::Tensor& input_gradient, double weight);
  // Once, also by a rank without samples: report.samples is what this rank brings. Adds the counts to the report.
  Status finish_step(Report& report);

 private:
  const RankContext& context_;
  const LocalNetwork& network_;
  SampleReader& reader_;
  std::unique_ptr<ServedTable> table_;
  ServedTable::Counts before_;  // this step
};

// What every way of computing a step works with; all of it must outlive its runner.
struct RunnerParts {
  const RankContext& context;
  const LocalNetwork& network;
  BatchTensors& tensors;
  SampleReader& reader;
  const BatchPlan& plan;
  GradientSync& sync;
};

}  // namespace motley::train
