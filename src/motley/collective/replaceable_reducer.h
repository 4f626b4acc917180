// A reducer whose place another one takes where ranks are lost or join. A loss is said by wait() alone: who starts a
// bucket while it computes need not look.
#pragma once

#include <memory>

#include "motley/collective/gradient_reducer.h"

namespace motley::collective {

class ReplaceableReducer final : public GradientReducer {
 public:
  explicit ReplaceableReducer(std::unique_ptr<GradientReducer> reducer) : reducer_(std::move(reducer)) {}

  Status prepare(const Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override { return reducer_->buffer(bucket); }
  // An error that other ranks or servers are the cause of is wait()'s.
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override { reducer_->abort(error); }
  std::string name() const override { return reducer_->name(); }
  std::uint64_t bytes_sent() const override { return sent_before_ + reducer_->bytes_sent(); }

  // Another reducer takes the place of this one, whose ranks are lost; not yet prepared. The buffers are other ones
  // then, without the gradients.
  Status replace(std::unique_ptr<GradientReducer> reducer, const Deadline& deadline);

 private:
  std::unique_ptr<GradientReducer> reducer_;
  Layout layout_;
  Status start_;
  std::uint64_t sent_before_ = 0;  // bytes, by those that were replaced
};

}  // namespace motley::collective
