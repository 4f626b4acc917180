#include "motley/planning/plan/task_order.h"

#include <algorithm>

namespace motley::planning {

std::int64_t warm_up_of(Schedule schedule, std::size_t stage, std::size_t stages, std::int64_t micro_batches) {
  return schedule == Schedule::kFillDrain ? micro_batches
                                          : std::min(micro_batches, static_cast<std::int64_t>(stages - stage));
}

Task task_at(std::int64_t position, std::int64_t warm_up, std::int64_t micro_batches) {
  const std::int64_t turn = position - warm_up;
  if (turn < 0) {
    return {true, position};
  }
  if (turn < 2 * (micro_batches - warm_up)) {
    return turn % 2 == 0 ? Task{false, turn / 2} : Task{true, warm_up + turn / 2};
  }
  return {false, position - micro_batches};
}

}  // namespace motley::planning
