#include "motley/collective/replaceable_reducer.h"

#include "motley/base/guard.h"

namespace motley::collective {

Status ReplaceableReducer::prepare(const Layout& layout, const Deadline& deadline) {
  layout_ = layout;
  return reducer_->prepare(layout_, deadline);
}

Status ReplaceableReducer::start(std::uint64_t step, int bucket, double weight) {
  Status started = reducer_->start(step, bucket, weight);
  const bool is_loss =
      !started && (started.error().code == ErrorCode::kPeerLost || started.error().code == ErrorCode::kServerLost);
  if (!is_loss) return started;
  if (start_) start_ = started;
  return {};
}

Result<Outcome> ReplaceableReducer::wait(int bucket, const Deadline& deadline) {
  if (!start_) return fail(start_.error());
  return reducer_->wait(bucket, deadline);
}

Status ReplaceableReducer::replace(std::unique_ptr<GradientReducer> reducer, const Deadline& deadline) {
  sent_before_ += reducer_->bytes_sent();
  if (MOTLEY_KEEPS("kept-start-error")) start_ = {};
  reducer_ = std::move(reducer);
  return reducer_->prepare(layout_, deadline);
}

}  // namespace motley::collective
