#include "motley/train/step/test_evaluation.h"

#include <algorithm>
#include <numeric>

namespace motley::train {

Result<std::optional<std::vector<Evaluator::Value>>> TestEvaluation::evaluate(std::int64_t step) {
  if (data_ == nullptr) {
    return std::nullopt;
  }
  context_.set_phase(step, "evaluation");
  network_.stage->train(false);
  nn::Evaluation evaluation(network_.loss, nn::default_metrics(network_.loss, data_->class_count()));
  MOTLEY_TRY(stages_ ? add_through_stages(step, evaluation) : add_own_part(step, evaluation));
  network_.stage->train(true);
  MOTLEY_TRY(context_.group.all_reduce_sum(evaluation.totals(), context_.long_deadline()));
  std::vector<Value> values;
  for (const auto& [name, value] : evaluation.values()) values.push_back({name, value});
  return values;
}

// Each rank has the whole network, and computes its part of the data.
Status TestEvaluation::add_own_part(std::int64_t step, nn::Evaluation& evaluation) {
  const std::uint64_t size = data_->size();
  const auto ranks = static_cast<std::uint64_t>(context_.present.size());
  const auto rank = static_cast<std::uint64_t>(context_.index());
  const auto first = static_cast<std::uint32_t>(size * rank / ranks);
  const auto end = static_cast<std::uint32_t>(size * (rank + 1) / ranks);
  const std::uint32_t block = std::min(batch_, std::uint32_t{256});
  const auto block_at = [&](std::uint32_t at) {
    std::vector<std::uint32_t> samples(std::min(block, end - at));
    std::iota(samples.begin(), samples.end(), at);
    data_->expect(samples, {});
    return samples;
  };
  data::Batch batch;
  std::vector<std::uint32_t> next;
  for (std::uint32_t at = first; at < end; at += block) {
    batch.samples = at == first ? block_at(at) : std::move(next);
    if (end - at > block) next = block_at(at + block);
    MOTLEY_TRY(read_batch(*data_, batch));
    MOTLEY_ASSIGN(const torch::Tensor inputs, tensors_.inputs(step, batch, *data_));
    MOTLEY_ASSIGN(const nn::Tensors outputs, network_.stage->forward(0, {inputs}));
    MOTLEY_TRY(evaluation.add(outputs.front(), tensors_.targets(batch, *data_)));
  }
  return {};
}

// The test data go through the stages as training data do, a batch at a time.
Status TestEvaluation::add_through_stages(std::int64_t step, nn::Evaluation& evaluation) {
  const auto& [layout, pipeline] = *stages_;
  const std::uint32_t size = data_->size();
  const data::Parts parts{layout.is_first(context_.rank), layout.is_last(context_.rank)};
  data::Batch batch;
  for (std::uint32_t at = 0; at < size; at += std::min(batch_, size - at)) {
    const data::Range window{at, at + std::min(batch_, size - at)};
    batch.samples.clear();
    for (const data::Range& rows : layout.own_rows(context_.rank, window)) {
      for (std::uint32_t sample = rows.begin; sample < rows.end; ++sample) batch.samples.push_back(sample);
    }
    torch::Tensor inputs, targets;
    if (parts.inputs || parts.targets) {
      MOTLEY_TRY(read_batch(*data_, batch, parts));
      if (parts.inputs) {
        MOTLEY_ASSIGN(inputs, tensors_.inputs(step, batch, *data_));
      }
      if (parts.targets) {
        targets = tensors_.targets(batch, *data_);
      }
    }
    Pipeline::Hooks hooks;
    hooks.take_outputs = [&](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
      MOTLEY_TRY(evaluation.add(outputs, targets.narrow(0, rows.begin, rows.size())));
      return torch::Tensor();
    };
    MOTLEY_TRY(pipeline.evaluate(at, window, inputs, context_.step_deadline(), hooks));
  }
  return {};
}

}  // namespace motley::train
