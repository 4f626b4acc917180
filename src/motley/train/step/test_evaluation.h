// The network on the test data: each rank computes its part, sums and counts of all are added up, so the result is that
// of one worker.
#pragma once

#include <functional>

#include "motley/data/local/dataset.h"
#include "motley/nn/loss.h"
#include "motley/train/loop/evaluator.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/pipeline/pipeline.h"
#include "motley/train/step/batch_tensors.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

// What the ways of going through the test data have in common.
class TestEvaluation : public Evaluator {
 public:
  // All that is referred to must outlive this object; `data` is null where there is no test data.
  TestEvaluation(const RankContext& context, LocalNetwork& network, BatchTensors& tensors, const data::Dataset* data,
                 std::uint32_t batch)
      : context_(context), network_(network), tensors_(tensors), data_(data), batch_(batch) {}

  Result<std::optional<std::vector<Value>>> evaluate(std::int64_t step) final;

 protected:
  // Adds this rank's part.
  virtual Status add(std::int64_t step, nn::Evaluation& evaluation) = 0;

  const RankContext& context_;
  LocalNetwork& network_;
  BatchTensors& tensors_;
  const data::Dataset* const data_;
  const std::uint32_t batch_;  // samples at a time, at most
};

// Each rank has the whole network, and computes its part of the data.
class DataParallelEvaluation final : public TestEvaluation {
 public:
  using TestEvaluation::TestEvaluation;

 private:
  Status add(std::int64_t step, nn::Evaluation& evaluation) override;
};

// The test data go through the stages as training data do, a batch at a time.
class PipelineEvaluation final : public TestEvaluation {
 public:
  PipelineEvaluation(const RankContext& context, LocalNetwork& network, BatchTensors& tensors,
                     const data::Dataset* data, std::uint32_t batch, const StageLayout& layout, Pipeline& pipeline)
      : TestEvaluation(context, network, tensors, data, batch), layout_(layout), pipeline_(pipeline) {}

 private:
  Status add(std::int64_t step, nn::Evaluation& evaluation) override;

  const StageLayout& layout_;
  Pipeline& pipeline_;
};

}  // namespace motley::train
