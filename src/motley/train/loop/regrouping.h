// What ranks of an elastic run do once some were lost or have joined, until all that are there have one state again,
// and who computes what of a step meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/checkpoints.h"
#include "motley/train/loop/loop_state.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/state_transfer.h"

namespace motley::train {

struct LoopParts;

class Regrouping {
 public:
  // What of the loop it needs.
  struct Loop {
    LoopState& state;
    std::function<Status(AllReports)> commit;  // the step under way, of which all have the reduced gradients
    std::function<void()> end;                 // no more steps are done
    std::function<Status()> save;              // a checkpoint
    std::function<bool()> is_asked_to_stop;
  };
  // All that is referred to must outlive this object.
  Regrouping(const RankContext& context, const LoopParts& parts, RunProgress& progress, Loop loop);

  // Whether the error is a loss that the others go on after, once they have regrouped.
  bool survives(const Error& error) const;
  // Until those who are there have one state, whoever is lost or joins meanwhile. Of a newcomer: enters, and has the
  // others' state, but for the weights and the optimizer's state where these come later. kPeerLost, with a checkpoint
  // written, where fewer ranks are left than the run goes on with and nobody joins in time.
  Status run();

  // Between two steps of a newcomer: does what it has missed, a little of it where its weights have come, or all of it
  // once they have, where it `waits`.
  Status catch_up(bool waits);
  // Which positions of the window of this step, that is about to begin, each rank computes.
  WindowParts cut(const Step& step) const;
  // Whether who is there has changed since the step before this one.
  bool has_changed(std::int64_t step) const { return !epochs_.empty() && step == changed_step_; }
  // Whether a rank that is there has had the weights since the last committed step.
  bool knows_weights(int rank) const;
  // The step is committed, with these reports; from the next one on the window is split among who is there and has the
  // weights.
  Status commit(std::int64_t step, const std::vector<Report>& reports);

 private:
  // What a newcomer has to know beside a checkpoint.
  struct News;
  template <class Archive>
  friend void fields(Archive& archive, News& news);

  Status run_once();
  Status level();
  Status share_state(const std::vector<int>& newcomers);
  Status share_news(collective::Group& group, int root);
  Status hand_over_step();
  Status build_stages();
  Result<WindowParts> gather_kept() const;
  bool lacks_state() const;
  Status agree_on_duties();
  Status tell(double begin);
  Result<bool> wait_for_more();
  Status give_up(Error error);
  Status save_alone();

  const RankContext& context_;
  const LoopParts& parts_;
  RunProgress& progress_;
  const Loop loop_;
  std::vector<std::vector<int>> new_epochs_;  // ranks of each epoch, since all who are there have had one state
  std::vector<std::vector<int>> epochs_;      // and before, whose changes no committed step has seen
  std::int64_t changed_step_ = 0;             // the first that sees them
  std::vector<Report> last_reports_;          // of the step that was committed last
  std::vector<int> kept_;                     // to whom the batch's split keeps; empty: to all
  std::vector<int> joining_;                  // who is there beside them, without the weights
  std::optional<StateTransfer> transfer_;     // to or from this rank
  bool has_weights_ = false;                  // of a newcomer: those of the step that it entered after
  std::int64_t entered_after_ = 0;            // that step
  std::vector<int> told_;                     // ranks that were there when the events last said who is
  std::size_t told_epochs_ = 0;               // of `epochs_`, of whose changes this rank has written events
  bool knows_before_;                         // who was there before: a newcomer does not when it enters
  // Of a planned run: how often all have gone back to a checkpoint, and whether this rank has not got there.
  std::int64_t times_back_ = 0;
  bool goes_back_ = false;
};

}  // namespace motley::train
