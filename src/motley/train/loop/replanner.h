// Whether a planned run should go on by another plan: holds what every worker takes against what the profile says, and
// where their speeds have drifted apart looks for the best plan of the same workers as they are now. Rank 0 has one.
//
// A worker's slowdown is the seconds that it computes over those that the profile gives for its layers and samples, the
// median over kSpeedSteps steps. The first search starts when a slowdown is off from 1 by more than kDrift, later ones
// when the slowdowns, relative to each other, differ by more than that from those of the last search. It runs in a
// thread of its own while training goes on. Its plan is taken where it makes the step shorter by kMinGain and wins back
// kMinReturn times what moving takes in the steps that are left.
#pragma once

#include <deque>
#include <filesystem>
#include <future>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/batch_split.h"
#include "motley/model/profile.h"
#include "motley/planning/replan/repartition.h"
#include "motley/train/loop/prediction_check.h"
#include "motley/train/loop/reporter.h"
#include "motley/train/loop/stage_layout.h"

namespace motley::train {

class Replanner {
 public:
  static constexpr std::size_t kSpeedSteps = 10;
  static constexpr double kDrift = 0.1;
  static constexpr double kMinGain = 0.05;
  static constexpr double kMinReturn = 2;

  // A plan to go on with, whose replicas are one worker each, and the rank in each of its places.
  struct Move {
    planning::Plan plan;
    std::vector<int> ranks;
    std::string reason;
  };

  // Errors (kInvalidInput): a profile that does not have the plan's layers and device types.
  static Result<Replanner> create(const model::Profile& profile, const cluster::Cluster& cluster,
                                  const StageLayout& layout);
  ~Replanner();
  Replanner(Replanner&&) = default;
  Replanner& operator=(Replanner&&) = delete;

  // After every step: what each rank had to do and how long it computed, waits left out.
  void observe(std::span<const data::Observation> ranks, std::int64_t steps_left);
  // A move that a search has found since; it is told of once. Does not wait.
  std::optional<Move> next_move();
  bool is_searching() const { return search_.valid(); }
  // The run follows this layout now, and moving has taken so long.
  void moved(const StageLayout& layout, double seconds);

 private:
  struct Found {
    planning::PlacedPlan running, best;
  };

  Replanner(planning::Problem problem, const StageLayout& layout) : problem_(std::move(problem)), layout_(layout) {}
  double predicted_seconds(int rank, double samples) const;
  std::vector<double> slowdowns() const;

  planning::Problem problem_;
  std::vector<int> types_;                  // of ranks, in the problem
  StageLayout layout_;                      // that the run follows
  std::vector<std::deque<double>> ratios_;  // by rank
  std::vector<double> searched_;            // the slowdowns of the last search
  bool has_searched_ = false;
  double moving_seconds_ = 0;
  std::int64_t steps_left_ = 0;
  std::stop_source stop_;
  std::future<Result<Found>> search_;
};

// The best layout that is found in so many seconds of the ranks that the given one has, each as fast as the profile
// says; every place of the given one is one of its ranks'. Errors (kInvalidInput): a profile that does not have the
// plan's layers and device types.
Result<StageLayout> find_layout(const model::Profile& profile, const cluster::Cluster& cluster,
                                const StageLayout& layout, double seconds);

// Whoever can build what a rank computes anew.
class PlanFollower {
 public:
  virtual ~PlanFollower() = default;
  // Rank 0: whether the run could go on by this plan; says why not.
  virtual bool may_follow(const Replanner::Move& move) const = 0;
  // All ranks go on by this plan, from the state as it is; `ranks` are in its places. Collective.
  virtual Result<const StageLayout*> follow(planning::Plan plan, std::vector<int> ranks) = 0;
};

// Takes a planned run to another plan: rank 0 watches the workers' speeds, and when a plan that suits them better has
// been found, all ranks move to it at the end of a step. Also says how right the plan's prediction was.
class PlanMover {
 public:
  // All that is referred to must outlive this object.
  PlanMover(const RankContext& context, PlanFollower& follower, Reporter& reporter, std::filesystem::path folder)
      : context_(context), follower_(follower), reporter_(reporter), folder_(std::move(folder)) {}

  // Rank 0, where the run may move: it does only if somebody watches.
  void watch(Replanner replanner) { replanner_.emplace(std::move(replanner)); }
  // Rank 0, where it is known what a step is to take: its first steps are held against that.
  void expect(const planning::Prediction& predicted) {
    if (predicted.step_seconds > 0) check_.emplace(predicted);
  }

  // What each rank did in a step, and how long it took.
  Status observe(std::span<const data::Observation> ranks, std::int64_t step, double seconds, std::int64_t steps_left);
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
  std::optional<PredictionCheck> check_;
  std::optional<Replanner::Move> found_;
};

}  // namespace motley::train
