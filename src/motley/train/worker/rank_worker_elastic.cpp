// How a rank of an elastic run with a plan goes on in a stage once ranks were lost or have joined: those who are there
// agree on a layout, each builds what it computes by it beside what it has, and takes the state out of that.
#include <utility>

#include "motley/base/os/file.h"
#include "motley/train/worker/rank_worker.h"

namespace motley::train {

static constexpr double kSearchSeconds = 5;  // for a plan

Result<bool> RankWorker::lay_out(bool has_state) {
  std::vector<std::string> types;
  for (const cluster::Worker& worker : cluster_.workers) types.push_back(worker.device);
  const auto improved = [this](StageLayout layout) { return improve(std::move(layout)); };
  MOTLEY_ASSIGN(next_stages_, agree_on_stages(*context_, *layout_, has_state, types, improved));
  return !next_stages_->givers.empty();
}

// Where the plan's profile is known, another layout may be faster; the others wait for it.
StageLayout RankWorker::improve(StageLayout layout) const {
  const auto speeds = read_speeds();
  if (replica_ == nullptr || !speeds || !*speeds) return layout;
  auto best = find_layout((*speeds)->profile, (*speeds)->devices, layout, kSearchSeconds);
  if (!best || !may_follow({best->plan(), best->places(), {}})) return layout;
  return std::move(*best);
}

Status RankWorker::rebuild(bool goes_back) {
  auto old_layout = std::exchange(layout_, std::make_unique<StageLayout>(next_stages_->layout));
  auto before = std::exchange(replica_, nullptr);
  ++plans_;
  if (Status done = take_state(before.get(), goes_back); !done) {
    replica_ = std::move(before);
    layout_ = std::move(old_layout);
    return done;
  }
  if (goes_back) {
    stage_news_.push_back(fmt::format("a stage has lost all of its ranks: all go back to {}",
                                      progress_.step > 0 ? fmt::format("the checkpoint of step {}", progress_.step)
                                                         : "the beginning, as there is no checkpoint"));
  }
  if (layout_->plan() != old_layout->plan()) {
    const std::string name = fmt::format("plan-after-step-{}.json", progress_.step);
    if (writes()) MOTLEY_TRY(write_file(run_.folder() / name, planning::to_json(layout_->plan())));
    stage_news_.push_back("the new plan is " + name);
  }
  connect_loop();
  reporter_->follow(*replica_->plan);
  return {};
}

std::string RankWorker::take_news() {
  const std::vector<std::string> news = std::exchange(stage_news_, {});
  return fmt::format("{}", fmt::join(news, "; "));
}

// Builds what this rank computes, with the state to go on from. Who has joined has none `before`.
Status RankWorker::take_state(Replica* before, bool goes_back) {
  MOTLEY_TRY(build());
  Replica& from = before != nullptr ? *before : *replica_;
  const std::int64_t saved_step = progress_.saved_step;
  Checkpoint start;
  if (goes_back) {
    if (writes() && (saved_step > 0 || holds_checkpoint(run_.checkpoint_folder()))) {
      MOTLEY_ASSIGN(start, read_newest_checkpoint(run_.checkpoint_folder()));
    }
    progress_ = {};
    data_.audit().clear();
  } else if (next_stages_->some_move(context_->present)) {
    std::vector<int> usual = from.state->collect_from(next_stages_->givers);
    MOTLEY_ASSIGN(start, checkpoints_->gather(run_state(from)));
    from.state->collect_from(std::move(usual));
  } else {
    if (writes()) start.files[kStateFile] = checkpoints_->describe(run_state(from));
    MOTLEY_TRY(before->state->hand_to(*replica_->state));
  }
  MOTLEY_TRY(restore(std::move(start), false));
  if (!goes_back) progress_.saved_step = saved_step;
  return group_->barrier(context_->step_deadline());
}

}  // namespace motley::train
