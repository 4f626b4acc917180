// Takes a planned run to another plan: rank 0 watches the workers' speeds, and when a plan that suits them better has
// been found, all ranks move to it at the end of a step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/replanner.h"
#include "motley/train/loop/reporter.h"

namespace motley::train {

// Whoever can build what a rank computes anew.
class PlanFollower {
 public:
  virtual ~PlanFollower() = default;
  // Rank 0: whether the run could go on by this plan; says why not.
  virtual bool may_follow(const Replanner::Move& move) const = 0;
  // All ranks go on by this plan, from the state as it is; `ranks` are in its places. Collective.
  virtual Result<const StageLayout*> follow(planning::Plan plan, std::vector<int> ranks) = 0;
};

class PlanMover {
 public:
  // All that is referred to must outlive this object.
  PlanMover(const RankContext& context, PlanFollower& follower, Reporter& reporter, std::filesystem::path folder)
      : context_(context), follower_(follower), reporter_(reporter), folder_(std::move(folder)) {}

  // Rank 0, where the run may move: it does only if somebody watches.
  void watch(Replanner replanner) { replanner_.emplace(std::move(replanner)); }

  // What each rank did in a step.
  void observe(std::span<const data::Observation> ranks, std::int64_t steps_left);
  // Whether there is a plan to move to. Does not wait.
  bool has_found();
  // After a step, once all ranks know that rank 0 has found one. Collective.
  Status move(std::int64_t step);

 private:
  const RankContext& context_;
  PlanFollower& follower_;
  Reporter& reporter_;
  const std::filesystem::path folder_;
  std::optional<Replanner> replanner_;
  std::optional<Replanner::Move> found_;
};

}  // namespace motley::train
