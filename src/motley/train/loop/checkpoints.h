// When a run writes a checkpoint, what it puts together for one from all ranks, and how it goes on from one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>

#include "motley/base/result.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/reporter.h"
#include "motley/train/loop/samples.h"

namespace motley::train {

// Where the run stands, beside data and network.
struct RunProgress {
  std::int64_t step = 0;  // the last one that was done
  std::int64_t evaluated_step = 0;
  std::int64_t saved_step = 0;
  double next_evaluation = 0;  // epochs
};

// All that a run has learnt so far.
struct RunState {
  RunProgress& progress;
  BatchPlan& plan;
  SampleAudit& audit;
  ModelState& model;
};

class Checkpoints {
 public:
  struct Options {
    std::int64_t every_steps = 0;  // 0: not by steps
    double every_seconds = 0;      // 0: not by time
    int keep = 0;                  // checkpoints; 0: none is written
  };
  Checkpoints(const RankContext& context, std::filesystem::path folder, Options options)
      : context_(context), folder_(std::move(folder)), options_(options) {}

  bool keeps_any() const { return options_.keep > 0; }
  // Every rank comes to the same answer.
  bool is_due_after(std::int64_t step) const { return options_.every_steps > 0 && step % options_.every_steps == 0; }
  // Or by rank 0's clock, which runs from start_clock() and then from each save().
  bool is_due(std::int64_t step, double seconds) const {
    return is_due_after(step) || (options_.every_seconds > 0 && seconds >= next_);
  }
  void start_clock(double seconds) { next_ = seconds + options_.every_seconds; }

  // What a checkpoint holds; complete on rank 0 and nowhere else. Collective, as are save() and restore().
  Result<Checkpoint> gather(const RunState& state, bool with_optimizer = true) const;
  Status save(const RunState& state, Reporter& reporter);

  // Of what a checkpoint holds, state.json.
  std::string describe(const RunState& state) const;

  // What a checkpoint holds, but for the network's weights and the optimizer's state, from the rank that writes the
  // run's files, `root` of this group, to the others of it, which have just joined and go on from there. Returns those.
  Result<Checkpoint> hand_out(const RunState& state, collective::Group& group, int root) const;
  Status take_over(const RunState& state, collective::Group& group, int root) const;
  // Those, once they have come.
  static Status load_model(const Checkpoint& checkpoint, ModelState& model);

  // Every rank goes on from the writer's state; without a state.json it starts afresh, without weights from its own.
  // `explain` says more about a network's state that does not fit. False where the batch's split starts afresh although
  // there is a state.
  Result<bool> restore(Checkpoint start, const RunState& state, const std::function<Status(Status)>& explain) const;

 private:
  Status send(Checkpoint& checkpoint, std::initializer_list<const char*> files, collective::Group& group,
              int root) const;
  Result<bool> load_run(const Checkpoint& start, const RunState& state) const;

  const RankContext& context_;
  const std::filesystem::path folder_;
  const Options options_;
  double next_ = 0;  // monotonic seconds
};

}  // namespace motley::train
