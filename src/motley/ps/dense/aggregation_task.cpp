#include "motley/ps/dense/aggregation_task.h"

namespace motley::ps {

std::optional<collective::Mean> AggregationTask::weigh(int bucket, std::span<const Announcement> announced,
                                                       std::span<const int> ranks) {
  const auto rank_at = [&](std::size_t at) { return ranks.empty() ? static_cast<int>(at) : ranks[at]; };
  const Announcement& first = announced[0];
  std::vector<double> weights;
  for (std::size_t at = 0; at < announced.size(); ++at) {
    const Announcement& it = announced[at];
    if (it.step != first.step || it.learning_rate != first.learning_rate || !(it.weight >= 0)) {
      give_up(Error{ErrorCode::kInvalidInput,
                    fmt::format("bucket {}: rank {} is at step {} with learning rate {} and weight {}, rank {} at step "
                                "{} with learning rate {}",
                                bucket, rank_at(at), it.step, it.learning_rate, it.weight, rank_at(0), first.step,
                                first.learning_rate),
                    rank_at(at)});
      return std::nullopt;
    }
    weights.push_back(it.weight);
  }
  return collective::weighted_mean(weights);
}

void AggregationTask::end_channel(std::size_t channel, Error error) {
  ended_[channel] = true;
  lost_(std::move(error));
}

void AggregationTask::give_up(Error error) {
  failed_ = true;
  lost_(std::move(error));
}

}  // namespace motley::ps
