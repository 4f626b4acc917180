// The network on the test data: each rank computes its part, sums and counts of all are added up, so the result is that
// of one worker.
#pragma once

#include "motley/data/local/dataset.h"
#include "motley/nn/loss.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/pipeline/pipeline.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

class TestEvaluation final : public Evaluator {
 public:
  // Of a planned run.
  struct Stages {
    const StageLayout& layout;
    Pipeline& pipeline;
  };
  // All that is referred to must outlive this object; `data` is null where there is no test data. `batch`: samples at a
  // time, at most.
  TestEvaluation(const RankContext& context, LocalNetwork& network, BatchTensors& tensors, const data::Dataset* data,
                 std::uint32_t batch, std::optional<Stages> stages = {})
      : context_(context), network_(network), tensors_(tensors), data_(data), batch_(batch), stages_(stages) {}

  Result<std::optional<std::vector<Value>>> evaluate(std::int64_t step) override;

 private:
  Status add_own_part(std::int64_t step, nn::Evaluation& evaluation);
  Status add_through_stages(std::int64_t step, nn::Evaluation& evaluation);

  const RankContext& context_;
  LocalNetwork& network_;
  BatchTensors& tensors_;
  const data::Dataset* const data_;
  const std::uint32_t batch_;
  const std::optional<Stages> stages_;
};

}  // namespace motley::train
