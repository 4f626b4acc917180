#include "motley/train/step/local_network.h"

#include "motley/nn/runtime.h"

namespace motley::train {

void LocalNetwork::seed_randomness(const Step& step, int rank, std::int64_t micro_batch,
                                   std::span<const std::uint32_t> samples) const {
  nn::seed_randomness(seed, static_cast<std::uint64_t>(step.number), rank, micro_batch, samples);
}

Status LocalNetwork::measure(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const {
  nn::Evaluation seen(loss, {metric});
  MOTLEY_TRY(seen.add(outputs, targets));
  report.loss_sum += seen.totals()[0];
  report.loss_count += seen.totals()[1];
  report.metric_sum += seen.totals()[2];
  report.metric_count += seen.totals()[3];
  return {};
}

}  // namespace motley::train
