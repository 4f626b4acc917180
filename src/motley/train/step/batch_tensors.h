// Batches as the network reads them: tensors on its device, with the embedding rows that the samples look up, which
// servers may have.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "motley/data/local/loader.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/sample_reader.h"
#include "motley/train/step/local_network.h"
#include "motley/train/step/served_table.h"

namespace motley::train {

class BatchTensors {
 public:
  // All that is referred to must outlive this object.
  BatchTensors(const RankContext& context, const LocalNetwork& network, SampleReader& reader)
      : context_(context), network_(network), reader_(reader) {}

  // The rows are those of this table from now on.
  void look_up_in(std::unique_ptr<ServedTable> table) { table_ = std::move(table); }
  ServedTable* table() const { return table_.get(); }

  // [n, sample...], of a batch of the training data in this step, or of another dataset after it: of that the rows are
  // those after all finished steps.
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

}  // namespace motley::train
