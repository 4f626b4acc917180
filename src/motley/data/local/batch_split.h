// Decides, step by step, how many samples each worker gets, so that heterogeneous workers finish together.
//
// Pure: no clock, no threads, no input or output. Every rank holds a Partition, feeds it the same all-gathered
// measurements in the same order, and therefore reaches bitwise the same decisions; nothing has to be sent around.
//
// Policies: `dynamic` fits each worker's cost a + c b (CostFit), solves the min-max problem (solve_min_max), and moves
// only where the predicted gain stands out of the noise; each move is an experiment that is undone when the measured
// step did not get shorter. Where times vary at random, so that no share suits every step, it lets workers pull shards
// instead, if that is predicted to be faster. `pull` always pulls; `fixed` keeps proportions that the user gave;
// `equal` splits evenly; `replay` repeats recorded shares. docs/explanation/batch-splitting.md explains model,
// thresholds and guarantees.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/worker_cost.h"

namespace motley::data {

enum class SplitPolicy { kDynamic, kFixed, kEqual, kReplay, kPull };
Result<SplitPolicy> parse_split_policy(std::string_view name);  // "dynamic", "fixed", "equal", "replay", "work-queue"
const char* to_string(SplitPolicy policy);

using BatchSplit = std::vector<std::uint32_t>;  // samples of each rank

struct BatchSplitOptions {
  SplitPolicy policy = SplitPolicy::kDynamic;
  std::uint32_t batch = 0;                       // global batch, samples
  std::vector<WorkerLimits> limits;              // one a worker; their number is the number of workers
  std::vector<double> proportions;               // one a worker, not negative, not all zero: fixed needs them, dynamic
                                                 // starts from them (none: equal shares)
  std::map<std::uint64_t, BatchSplit> recorded;  // replay: the shares of each step (read_splits)
  std::uint32_t shards = 0;                      // pull: shards a step; 0 chooses 8 a worker
  bool may_pull = true;                          // dynamic: whether it may choose to pull
};

// What one worker measured in a step.
struct Observation {
  std::uint32_t samples = 0;
  double seconds = 0;  // loading and computing them, without waiting for others and without the exchange
  double wait = 0;     // the rest of the step: exchange that was not hidden, waiting, optimizer
};

struct StepPlan {
  BatchSplit shares;         // of each rank; empty when the workers pull
  std::uint32_t shards = 0;  // > 0: the workers pull this many shards (PullPlan)
  bool pulls() const { return shards > 0; }
};

// For logs, reports and tests.
struct BatchSplitDiagnostics {
  std::vector<WorkerCost> costs;  // fitted; empty until every worker was observed
  double predicted = 0;           // seconds of a step under the present shares, by the fit
  double bound = 0;               // and of the best real-valued split
  double common = 0;              // seconds of a step that no split changes; part of neither of the two
  std::uint64_t moves = 0;        // changes of shares so far
  std::string reason;             // of the last decision, a sentence
};

class BatchSplitter {
 public:
  // Refuses limits that no split meets, proportions or records that do not fit the workers.
  static Result<BatchSplitter> create(BatchSplitOptions options);

  // The plan of a step whose window has `window` samples (the batch, or fewer at an epoch's end). Fails only for
  // replay, when the step was not recorded or recorded with another number of samples.
  Result<StepPlan> plan(std::uint64_t step, std::uint32_t window) const;

  // The measurements of a step, one a worker in rank order, the same on every rank. Steps ascend; gaps are fine.
  // Observations of zero samples say nothing of their worker. Refuses times that are negative or not finite.
  Status observe(std::uint64_t step, std::span<const Observation> observations);

  // Gives the workers other limits, one a worker: what one of them can hold has turned out to be less. Shares that
  // break them change at once; what was learnt of the workers' speed stays, but for those that could have none (maximum
  // 0) and now can: they are new, and with `dynamic` get a small share at first. Refuses limits that no split meets,
  // and replay, whose shares are given; then nothing changes.
  Status limit(std::uint64_t step, std::vector<WorkerLimits> limits);

  const BatchSplitOptions& options() const { return options_; }
  std::size_t workers() const { return options_.limits.size(); }
  const BatchSplit& shares() const { return shares_; }  // of a full batch
  bool pulling() const { return shards_ > 0; }
  BatchSplitDiagnostics diagnostics() const;

  // What was learnt, as JSON text, and back. With another number of workers or another batch the saved state says
  // nothing, nor does a state of pulling where this one may not pull: restore then starts afresh and returns false.
  // Refuses text that save did not write.
  std::string save() const;
  Result<bool> restore(std::string_view text);

 private:
  explicit BatchSplitter(BatchSplitOptions options) : options_(std::move(options)) {}

  struct Sample {  // a full-batch step, for what needs steps as a whole
    std::vector<std::uint32_t> samples;
    std::vector<double> seconds;
    double last = 0;  // seconds of the last worker
  };
  struct Measured {  // shares and how long their steps took
    BatchSplit shares;
    double seconds = 0;
  };

  BatchSplit proportional(std::span<const double> weights, std::uint32_t window) const;
  void decide(std::uint64_t step);
  void decide_while_pulling(std::uint64_t step);
  bool settle(std::uint64_t step);
  bool consider_pulling(std::uint64_t step);
  void consider_move(std::uint64_t step);
  void welcome(std::uint64_t step, std::span<const std::size_t> newcomers);
  void wake_idle_workers(std::uint64_t step);
  void move_to(std::uint64_t step, BatchSplit shares, std::uint32_t shards, std::string reason);
  std::vector<WorkerCost> costs() const;
  double median_step(std::size_t last_steps) const;
  double median_common() const;
  template <class Self, class Visit>
  static void visit_saved(Self& self, Visit visit);

  BatchSplitOptions options_;
  BatchSplit shares_;
  std::uint32_t shards_ = 0;
  std::vector<CostFit> fits_;
  std::vector<std::uint64_t> last_seen_;  // the step in which each worker last had samples
  std::deque<Sample> history_;            // full-batch steps since the last change or move to or from pulling
  std::deque<double> common_;             // of the last steps
  std::uint64_t observed_ = 0;            // steps
  std::uint32_t steps_here_ = 0;          // full-batch steps since the last move
  bool is_judged_ = false;                // the present shares, after a trial
  std::optional<Measured> best_;          // the fastest measured shares since the last change
  double mean_before_pulling_ = 0;        // seconds of a step, and the standard error of that
  double error_before_pulling_ = 0;
  std::uint64_t hold_until_ = 0;  // no moves before this step
  std::uint64_t hold_steps_ = 0;  // length of the next hold, doubled by each
  std::uint64_t no_pulling_until_ = 0;
  std::uint64_t pulling_pause_ = 0;
  std::uint64_t moves_ = 0;
  std::string reason_ = "nothing measured yet";
};

// Reads recorded shares from lines of JSON objects (a run's metrics.jsonl): those with "step" and "batch_split", the
// last one for a step counts. Errors name `name` and the line.
Result<std::map<std::uint64_t, BatchSplit>> read_splits(std::string_view text, const std::string& name);

}  // namespace motley::data
