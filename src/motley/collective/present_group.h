// The group of a job whose ranks come and go: ranks keep their numbers, and those that are not there give zeros.
#pragma once

#include <memory>
#include <vector>

#include "motley/collective/gradient_reducer.h"

namespace motley::collective {

class PresentGroup final : public Group {
 public:
  // `size`: of all ranks, whether they are there or not.
  explicit PresentGroup(int size) : size_(size) {}

  // From now on these ranks, ascending, of which this group is; the one before is forgotten.
  void use(std::unique_ptr<Group> group, std::vector<int> ranks);

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override;
  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override;
  // `root`: a rank of the job that is there.
  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override;
  Status barrier(const Deadline& deadline) override;
  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) override;
  bool may_spin() const override { return group_->may_spin(); }

 private:
  const int size_;
  std::unique_ptr<Group> group_;
  std::vector<int> ranks_;
};

}  // namespace motley::collective
