// A reducer that leaves each worker's own gradient as it is: the reduced one is elsewhere. Where a rank is lost, those
// who are left still have what they computed, and reduce it again among themselves.
#pragma once

#include <memory>
#include <vector>

#include "motley/collective/gradient_reducer.h"

namespace motley::collective {

class KeptGradients final : public GradientReducer {
 public:
  explicit KeptGradients(std::unique_ptr<GradientReducer> reducer) : reducer_(std::move(reducer)) {}

  Status prepare(const Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  std::span<std::byte> result(int bucket) override { return reducer_->result(bucket); }
  // Copies the gradient where the reducer works in place; an error that other ranks or servers are the cause of is
  // wait()'s.
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override { reducer_->abort(error); }
  std::string name() const override { return reducer_->name(); }
  std::uint64_t bytes_sent() const override { return sent_before_ + reducer_->bytes_sent(); }

  // Another reducer takes the place of this one, whose ranks are lost; not yet prepared. Gradients stay.
  Status replace(std::unique_ptr<GradientReducer> reducer, const Deadline& deadline);

 private:
  std::unique_ptr<GradientReducer> reducer_;
  Layout layout_;  // with the memory of the gradients
  std::vector<std::size_t> offsets_;
  Status start_;
  std::uint64_t sent_before_ = 0;  // bytes, by those that were replaced
};

}  // namespace motley::collective
