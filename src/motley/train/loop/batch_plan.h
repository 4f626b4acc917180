// Which samples each rank computes in each step: the ledger of samples gives the step's window, and what splits the
// batch cuts it: among all ranks, or in a planned run each of its micro-batches among the ranks of each stage.
//
// Pure: every rank holds one, feeds it the same measurements, and comes to the same steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/batch_split.h"
#include "motley/data/local/ledger.h"
#include "motley/train/checkpoint/checkpoint.h"
#include "motley/train/loop/stage_layout.h"
#include "motley/train/loop/step.h"

namespace motley::train {

struct BatchPlanOptions {
  std::int64_t baseline_every = 0;  // of so many steps, past the first of them, ...
  std::int64_t baseline_steps = 0;  // ... so many are run with the equal split; 0 and 0: none
  std::string mode;                 // batch_split.mode, for metrics
};

// Which positions of a window each rank computes: at first its share.
WindowParts cut_window(const Step& step);

class BatchPlan {
 public:
  // Starts with an epoch of the dataset that `fresh` names. In a planned run the layout gets its stages' splits, and
  // must outlive this object. Errors (kInvalidInput): an empty dataset, limits that no split meets.
  static Result<BatchPlan> create(BatchPlanOptions options, const data::BatchSplitOptions& split,
                                  const data::LedgerState& fresh, StageLayout* layout = nullptr);

  // Window, split and kind of the step of this number, which follows those that were committed. `kept`: as in Step.
  Result<Step> next(std::int64_t number, WindowParts kept = {}) const;
  bool is_baseline(std::int64_t number) const;

  // A rank's samples of a step that is not committed, in the order in which it computes them; none where ranks claim
  // shards.
  std::vector<std::uint32_t> samples(const Step& step, int rank) const;
  // The same of the window that comes `windows` after that of the step, if the split stays as it is: none where the
  // epoch has no other whole one.
  std::vector<std::uint32_t> samples_ahead(const Step& step, int rank, std::uint32_t windows) const;
  // The positions of the step's window whose samples each rank counts as used: all that it computes, or in a planned
  // run those of the first stage's ranks. None where ranks claim shards.
  WindowParts cut(const Step& step) const;
  // Those at these positions of the epoch.
  std::span<const std::uint32_t> samples_at(data::Range positions) const { return ledger_.samples(positions); }

  // What each rank had to do and how long it took, of steps in ascending order.
  Status observe(std::int64_t step, std::span<const data::Observation> observations);
  // All ranks have done the step. Says whether it was the epoch's last.
  Result<bool> commit(const Step& step);

  // From this step on only these ranks get samples; those of them that got none before are new. Not of a planned run,
  // nor where the shares are given (replay). Errors (kInvalidInput): limits that no split of theirs meets; then nothing
  // changes.
  Status keep_to(std::int64_t step, std::span<const int> ranks);

  const data::LedgerState& ledger() const { return ledger_.state(); }
  bool is_last_of_epoch(data::Range window) const { return window.end == ledger().size; }
  // Epochs that are done when those positions of this one are.
  double epochs_at(std::uint32_t cursor) const;

  // Of the split: how often it has changed and why the last time, and the seconds that a step is expected to take.
  std::uint64_t moves() const;
  struct Figures {
    std::string reason;
    std::optional<double> predicted = {};
    std::optional<double> bound = {};  // of the best real-valued split
    std::optional<double> equal = {};  // with the equal split
  };
  Figures figures() const;
  std::string mode(const Step& step) const;

  void save(SavedState& state) const;
  // Goes on where the saved run stood. False where the split starts afresh, as what was saved is of other workers,
  // another batch or plan. Errors (kInvalidInput): the state of another dataset.
  Result<bool> restore(const SavedState& saved);

 private:
  using Split = std::variant<data::BatchSplitter, StageSplit>;
  BatchPlan(BatchPlanOptions options, Split split, data::Ledger ledger, const StageLayout* layout,
            const data::BatchSplitOptions& split_options)
      : options_(std::move(options)),
        batch_(split_options.batch),
        limits_(split_options.limits),
        layout_(layout),
        split_(std::move(split)),
        ledger_(std::move(ledger)) {}
  const data::BatchSplitter* splitter() const { return std::get_if<data::BatchSplitter>(&split_); }

  BatchPlanOptions options_;
  std::uint32_t batch_;
  std::vector<data::WorkerLimits> limits_;  // of all ranks
  const StageLayout* layout_;               // of a planned run
  Split split_;
  data::Ledger ledger_;
};

// The parts of ranks that are not among those who are left, ascending, go to these, in proportion to their shares.
void hand_over(WindowParts& parts, std::span<const int> left, std::span<const std::uint32_t> shares);

// The equal split of a window, within the workers' limits.
data::BatchSplit equal_split(std::uint32_t window, std::span<const data::WorkerLimits> limits);

}  // namespace motley::train
