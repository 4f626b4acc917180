// A core's part of an asynchronous job: each push updates the weights by itself, as soon as it is there, and is
// answered with weights that lack no more of the other ranks' pushes than it allows.
#pragma once

#include "motley/ps/dense/dense_job.h"

namespace motley::ps {

class AsyncShardTask final : public ShardTask {
 public:
  AsyncShardTask(std::shared_ptr<DenseJob> job, int core, std::vector<std::unique_ptr<net::TcpConnection>> channels,
                 std::function<void(Error)> lost);
  bool advance() override;

 private:
  // Where a rank is. Items are counted over all rounds.
  struct Progress {
    std::uint64_t taken = 0;     // items that have had their effect
    std::uint64_t answered = 0;  // items that need no answer any more
    Announcement announced;
    std::vector<std::uint64_t> ahead;  // items that it may be ahead, by bucket
  };

  bool has_work() const override;
  bool has_item(std::size_t rank) const;
  bool take(std::size_t rank);
  void count(std::size_t rank);
  void apply(std::size_t rank, const Item& item, bool answers);
  bool may_answer(std::size_t rank, std::uint64_t slowest) const;
  void answer(std::size_t rank, bool written);
  void write_copy(std::size_t rank, const Item& item);
  void answer_bucket(std::size_t rank, const Item& item, std::size_t at, std::uint32_t round);
  std::uint32_t round_number(std::uint64_t item) const { return static_cast<std::uint32_t>(item / items_.size()) + 1; }
  std::uint64_t slowest() const;
  std::byte* rank_copy(std::size_t rank, const Item& item) const;
  kernels::WireFormat format() const;

  std::vector<Progress> ranks_;
  std::vector<double> item_steps_;  // steps since the job began, by item
  std::size_t turn_ = 0;            // the rank that is looked at first
};

}  // namespace motley::ps
