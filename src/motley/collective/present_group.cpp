#include "motley/collective/present_group.h"

#include <algorithm>

namespace motley::collective {

void PresentGroup::use(std::unique_ptr<Group> group, std::vector<int> ranks) {
  group_ = std::move(group);
  ranks_ = std::move(ranks);
}

Result<std::vector<double>> PresentGroup::all_gather(std::span<const double> values, const Deadline& deadline) {
  MOTLEY_ASSIGN(const std::vector<double> there, group_->all_gather(values, deadline));
  std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    std::copy_n(there.data() + i * values.size(), values.size(),
                all.data() + static_cast<std::size_t>(ranks_[i]) * values.size());
  }
  return all;
}

Status PresentGroup::all_reduce_sum(std::span<double> values, const Deadline& deadline) {
  return group_->all_reduce_sum(values, deadline);
}

Status PresentGroup::broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) {
  const auto found = std::ranges::find(ranks_, root);
  MOTLEY_INVARIANT(found != ranks_.end(), "rank {} is not there to broadcast", root);
  return group_->broadcast(bytes, static_cast<int>(found - ranks_.begin()), deadline);
}

Status PresentGroup::barrier(const Deadline& deadline) {
  return group_->barrier(deadline);
}

Result<std::int64_t> PresentGroup::fetch_add(int counter, std::int64_t amount, const Deadline& deadline) {
  return group_->fetch_add(counter, amount, deadline);
}

}  // namespace motley::collective
