// How a rank goes on by another plan: where the workers' speeds have changed, all move after a step; where ranks of an
// elastic run were lost or have joined, those who are there agree on a layout, and each builds what it computes by it
// beside what it has, and takes the state out of that.
#include <algorithm>
#include <utility>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/model/profile.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/worker/rank_worker.h"

namespace motley::train {

static constexpr double kSearchSeconds = 5;  // for a plan

// What the profile that the plan is from says of the workers; none: it is not known.
Result<std::optional<RankWorker::Speeds>> RankWorker::read_speeds() const {
  const std::string& file = job_.execution.profile.empty() ? job_.execution.emulation : job_.execution.profile;
  if (file.empty()) return std::nullopt;
  MOTLEY_ASSIGN(model::Profile profile, model::read_profile(file));
  cluster::Cluster devices = cluster_;
  const std::filesystem::path kept = run_.folder() / "cluster.yaml";  // what plan: auto has planned for
  if (devices.device_types.empty() && std::filesystem::exists(kept)) {
    MOTLEY_ASSIGN(devices, cluster::read_cluster(kept));
  }
  return Speeds{file, std::move(profile), std::move(devices)};
}

// Rank 0 watches whether the workers are as fast as the plan's profile says. Rows and weights that servers keep stay
// where they are: such runs keep their plan, as do those whose shares are fixed, and elastic ones.
Status RankWorker::watch_speeds() {
  const bool may_move =
      layout_ && !is_elastic() && job_.execution.replan && job_.batch_split.mode != "fixed" && role_.size > 1;
  if (!writes() || !may_move || job_.gradient_sync.method == "parameter-server" || has_served_table(job_)) {
    return {};
  }
  MOTLEY_ASSIGN(const auto speeds, read_speeds());
  if (!speeds) return {};
  auto replanner = Replanner::create(speeds->profile, speeds->devices, *layout_);
  if (!replanner && !job_.execution.profile.empty()) {
    return fail(replanner.error().within(speeds->file));
  }
  if (!replanner) {
    spdlog::warn("the run keeps its plan whatever its workers' speeds: {}: {}", speeds->file,
                 replanner.error().message);
    return {};
  }
  mover_->watch(std::move(*replanner));
  return {};
}

// Whether the plan gives every stage workers that may take its samples (min_samples, max_samples), and no tensor to
// several stages that must be in one.
bool RankWorker::may_follow(const Replanner::Move& move) const {
  auto partition = make_split_options(job_, cluster_, false);
  StageLayout layout(move.plan, move.ranks, role_.size);
  const auto shares = partition ? StageSplit::create(layout, *partition) : fail(partition.error());
  const auto tied = tied_parameters(layout, replica_->network.shared);
  if (!shares || !tied) {
    spdlog::info("the plan stays: of the best one for the workers as they are, {}",
                 (shares ? tied.error() : shares.error()).message);
  }
  return shares && tied;
}

// What a checkpoint would hold goes through rank 0 to everybody, as on a resume.
Result<const StageLayout*> RankWorker::follow(planning::Plan plan, std::vector<int> ranks) {
  MOTLEY_ASSIGN(Checkpoint now, checkpoints_->gather(run_state(*replica_)));
  const std::int64_t saved_step = progress_.saved_step;
  MOTLEY_TRY(group_->barrier(context_->step_deadline()));  // nobody needs the old stages any more
  replica_.reset();
  ++plans_;
  layout_ = std::make_unique<StageLayout>(std::move(plan), std::move(ranks));
  MOTLEY_TRY(build());
  MOTLEY_TRY(restore(std::move(now), true));
  progress_.saved_step = saved_step;
  connect_loop();
  reporter_->follow(*replica_->plan);
  return layout_.get();
}

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

Status RankWorker::give_all_layers() {
  if (layout_->stages() > 1) {
    return fail(ErrorCode::kUnavailable, "this rank alone has only the weights of stage {} of {}",
                layout_->find_stage(role_.rank) + 1, layout_->stages());
  }
  replica_->state->collect_from({role_.rank});
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
  // Who has audited the step has other counts than who has yet to.
  const SampleAudit audit = data_.audit();
  Checkpoint start;
  if (goes_back) {
    // Between machines the last one may be in the folder of a rank that was lost, where --resume goes on from it.
    if (writes()) MOTLEY_TRY(elastic_->claim_files());
    if (writes() && (saved_step > 0 || holds_checkpoint(run_.checkpoint_folder()))) {
      auto last = read_newest_checkpoint(run_.checkpoint_folder());
      if (!last) return fail(ErrorCode::kUnavailable, "a stage has lost all of its ranks; {}", last.error().message);
      start = std::move(*last);
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
  if (!goes_back && next_stages_->has_state(role_.rank)) data_.audit() = audit;
  if (!goes_back && before != nullptr && !next_stages_->moves(role_.rank)) {
    replica_->runner->go_on_from(before->runner->keep());
  }
  return group_->barrier(context_->step_deadline());
}

}  // namespace motley::train
