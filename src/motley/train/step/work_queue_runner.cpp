#include "motley/train/step/work_queue_runner.h"

namespace motley::train {

Status WorkQueueRunner::run(const Step& step, Report& report) {
  const data::PullPlan shards(step.window, step.plan.shards);
  const Deadline deadline = context_.step_deadline();
  for (;;) {
    MOTLEY_ASSIGN(const std::int64_t claimed, context_.group.fetch_add(0, 1, deadline));
    const std::int64_t index = claimed - claimed_;
    if (index >= shards.shards()) {
      break;
    }
    const data::Range shard = shards.shard(static_cast<std::uint32_t>(index));
    MOTLEY_ASSIGN(data::Batch batch, reader_.read(step, plan_.samples_at(shard), report));
    MOTLEY_TRY(computation_.run(step, batch, 1, false, report));
    reader_.recycle(std::move(batch));
  }
  // Every rank claims once in vain, so all know where the next step's shards begin.
  claimed_ += shards.shards() + context_.size;
  if (report.samples > 0) {
    sync_.scale(1 / report.samples);
  }
  return sync_.start(step, report.samples);
}

}  // namespace motley::train
