// Every micro-batch goes forward and backward once, each way in order, and no stage waits for what comes after it.
#include "motley/planning/plan/plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace motley::planning {
namespace {

class Orders : public ::testing::TestWithParam<PipelineSchedule> {};
INSTANTIATE_TEST_SUITE_P(Schedules, Orders,
                         ::testing::Values(PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kGPipe),
                         [](const auto& info) {
                           return info.param == PipelineSchedule::kGPipe ? "gpipe" : "one_forward_one_backward";
                         });

// Runs all stages' orders against each other: a forward needs that of the stage before, a backward that of the stage
// after and its own forward. All must come to their end, with no more kept than the schedule promises.
TEST_P(Orders, RunToTheirEnd) {
  for (std::int64_t stages = 1; stages <= 6; ++stages) {
    for (std::int64_t micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      const auto count = static_cast<std::size_t>(stages);
      std::vector<std::int64_t> position(count), forward(count), backward(count), max_kept(count);
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t stage = 0; stage < count; ++stage) {
          if (position[stage] == 2 * micro_batches) continue;
          const std::int64_t warm_up = count_warm_up(GetParam(), stage, count, micro_batches);
          const Task task = task_at(position[stage], warm_up, micro_batches);
          ASSERT_EQ(task.micro_batch, task.forward ? forward[stage] : backward[stage]);
          const bool ready = task.forward ? stage == 0 || forward[stage - 1] > task.micro_batch
                                          : forward[stage] > task.micro_batch &&
                                                (stage + 1 == count || backward[stage + 1] > task.micro_batch);
          if (!ready) continue;
          ++(task.forward ? forward : backward)[stage];
          ++position[stage];
          max_kept[stage] = std::max(max_kept[stage], forward[stage] - backward[stage]);
          moved = true;
        }
      }
      for (std::size_t stage = 0; stage < count; ++stage) {
        EXPECT_EQ(forward[stage], micro_batches);
        EXPECT_EQ(backward[stage], micro_batches);
        EXPECT_EQ(max_kept[stage], GetParam() == PipelineSchedule::kGPipe
                                       ? micro_batches
                                       : std::min<std::int64_t>(micro_batches, stages - static_cast<int>(stage)));
      }
    }
  }
}

}  // namespace
}  // namespace motley::planning
