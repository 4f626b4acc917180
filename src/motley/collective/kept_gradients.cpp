#include "motley/collective/kept_gradients.h"

#include <algorithm>

#include "motley/base/guard.h"

namespace motley::collective {

Status KeptGradients::prepare(const Layout& layout, const Deadline& deadline) {
  layout_ = layout;
  offsets_ = value_offsets(layout.bucket_elements, byte_size(layout.type));
  MOTLEY_ASSIGN(layout_.gradients, net::Region::create(std::max<std::size_t>(offsets_.back(), 64)));
  return reducer_->prepare(layout_, deadline);
}

std::span<std::byte> KeptGradients::buffer(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  return {layout_.gradients->data() + offsets_[index], layout_.bucket_elements[index] * byte_size(layout_.type)};
}

Status KeptGradients::start(std::uint64_t step, int bucket, double weight) {
  const std::span<std::byte> from = buffer(bucket), to = reducer_->buffer(bucket);
  if (from.data() != to.data()) std::ranges::copy(from, to.begin());
  const Status started = reducer_->start(step, bucket, weight);
  const bool is_loss =
      !started && (started.error().code == ErrorCode::kPeerLost || started.error().code == ErrorCode::kServerLost);
  if (!is_loss) return started;
  if (start_) start_ = started;
  return {};
}

Result<Outcome> KeptGradients::wait(int bucket, const Deadline& deadline) {
  if (!start_) return fail(start_.error());
  return reducer_->wait(bucket, deadline);
}

Status KeptGradients::replace(std::unique_ptr<GradientReducer> reducer, const Deadline& deadline) {
  sent_before_ += reducer_->bytes_sent();
  if (MOTLEY_KEEPS("kept-start-error")) start_ = {};
  reducer_ = std::move(reducer);
  return reducer_->prepare(layout_, deadline);
}

}  // namespace motley::collective
