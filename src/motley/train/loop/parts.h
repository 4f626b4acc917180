// What every part of a rank's training may use, and what the training loop asks of those parts that compute: who does a
// step, what becomes of its gradients, how good the network is, and its state. They stand behind these interfaces, so
// that the loop needs no libtorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/os/injected_fault.h"
#include "motley/net/session.h"
#include "motley/train/loop/step.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Who the rank is, the other ranks, the timeline, and how long a wait may take.
struct RankContext {
  int rank = 0;
  int size = 1;
  net::Session& session;     // of all ranks
  collective::Group& group;  // the same
  TimelineRecorder& timeline;
  double step_seconds = 60;                    // that a step may take
  std::vector<int> present = all_ranks(size);  // ascending
  int writer = 0;                              // of the run's files

  bool writes() const { return rank == writer; }
  bool is_present(int other) const { return std::ranges::binary_search(present, other); }
  int index() const { return static_cast<int>(std::ranges::lower_bound(present, rank) - present.begin()); }
  Deadline step_deadline() const { return Deadline::after(step_seconds); }
  // Of what moves the whole state, or uses all test data.
  Deadline long_deadline() const { return Deadline::after(10 * step_seconds); }
  void set_phase(std::int64_t step, const char* phase) const {
    session.set_phase(static_cast<std::uint64_t>(step), phase);
    inject_fault(rank, phase);
  }
};

// A rank's part of a step's computation. There is one for each way of sharing the work: samples split beforehand, a
// queue of shards that ranks claim, and stages of a pipeline.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Loads this rank's samples, runs forward and backward, and starts the synchronisation of every bucket of gradients,
  // each as soon as it is complete. Adds what it measures to the report: samples, times, losses.
  virtual Status run(const Step& step, Report& report) = 0;
  // After a run whose synchronisation has failed: computes these samples as well, and starts all buckets again, with
  // the gradient of both. The report goes on.
  virtual Status add(const Step& step, std::span<const std::uint32_t> samples, Report& report) {
    (void)samples, (void)report;
    return fail(ErrorCode::kUnavailable, "step {} cannot go on with other samples", step.number);
  }
  // Of activations and their gradients, so far.
  virtual std::uint64_t bytes_sent() const { return 0; }

  // What a rank has of a planned step that was broken off, to go on with.
  struct Kept {
    std::int64_t step = 0;
    std::vector<data::Range> rows;                  // positions of its window whose gradient it has
    double samples = 0;                             // of whose mean loss that is a part
    std::vector<std::vector<std::byte>> gradients;  // as GradientSync::own_gradients() gives them
    Report report;                                  // loss, metric and hash of these rows
  };
  virtual Kept keep() { return {}; }
  // Of this step, where it was broken off; the rest of it is run() with Step::kept, here or after go_on_from(). None:
  // this rank's layers need all rows of a step in one go, so that no rank goes on with what it has.
  virtual std::optional<std::vector<data::Range>> kept_rows(std::int64_t step) const {
    (void)step;
    return std::vector<data::Range>();
  }
  // What another runner of the same layers has kept.
  virtual void go_on_from(Kept&& /*kept*/) {}
};

// What becomes of a step's gradients: reduced over the ranks, and followed by the weights.
//
// A step: begin(); the computation, with arm() before the backward of the last micro-batch and flush() after it;
// wait(); and, where all ranks meet after the step, update(). Where the number of samples is known only at the end,
// backward of the sum's gradient unarmed, scale(1 / samples), then arm() and flush().
class GradientSync {
 public:
  virtual ~GradientSync() = default;
  virtual void begin(const Step& step) = 0;

  // From now on each bucket of gradients that backward completes is reduced, with this rank's weight: its samples.
  // `on_bucket` is called before a bucket starts.
  virtual void arm(const Step& step, double weight, std::function<void(int bucket)> on_bucket) = 0;
  // Starts those that have not started; the first error of any.
  virtual Status flush() = 0;
  virtual void scale(double factor) = 0;
  // Gradients are this rank's own again, as they were before wait().
  virtual void resume() = 0;
  // The step that was begun is not to be: what it has changed is as before it.
  virtual void undo() {}
  // Whether a step that was broken off can go on with the gradients that its ranks have: nothing but these has come of
  // what they computed.
  virtual bool keeps_gradients() const { return false; }
  // This rank's own, by bucket; and, after begin(), such gradients times `factor` to add the others to.
  virtual std::vector<std::vector<std::byte>> own_gradients() { return {}; }
  virtual void go_on_with(const std::vector<std::vector<std::byte>>& gradients, double factor) {
    (void)gradients, (void)factor;
  }
  // Starts all buckets at once: of a rank without samples, or one that has computed unarmed.
  Status start(const Step& step, double weight) {
    arm(step, weight, [](int) {});
    return flush();
  }

  // Until all gradients are reduced over all ranks; `seconds` is how long that may take. Where servers take the
  // optimizer's step, the weights are new afterwards. Adds what it measures to the report. Collective.
  virtual Status wait(const Step& step, double seconds, Report& report) = 0;
  // The optimizer's step, of clipped gradients where they are to be; nothing where servers take it. Collective.
  virtual Status update(const Step& step) = 0;

  // Of a rank whose weights are on their way: from now on update() keeps what the optimizer's step takes, and
  // catch_up() takes the first of the steps that were kept, until it is false: none is left, and update() takes them
  // again. Where postpone_updates() is false, this cannot be.
  virtual bool postpone_updates() { return false; }
  virtual Result<bool> catch_up() { return false; }
  virtual std::uint64_t postponed_bytes() const { return 0; }  // that are kept

  // Of the number that a report has for it.
  virtual std::string parameter_name(std::size_t number) const = 0;

  // Whether ranks may be at different steps.
  virtual bool is_async() const = 0;
  virtual std::uint64_t bytes_sent() const = 0;  // so far
};

// The ranks of a run that goes on where some are lost, or join.
class ElasticRanks {
 public:
  virtual ~ElasticRanks() = default;
  // After an operation has failed as the ranks have changed: those who are there agree who they are, and the context
  // and its group are theirs. Returns the ranks of each epoch since, in order. Collective among those who are there, as
  // are synchronise() and make_group(). A newcomer enters by it. kUnavailable where this rank does not go on.
  virtual Result<std::vector<std::vector<int>>> regroup() = 0;
  // Gradients are synchronised among those who are there; what wait() has left behind is gone.
  virtual Status synchronise() = 0;
  // A parameter server was lost: all have another epoch, so that regroup() is next.
  virtual void renew() {}
  // What the last synchronise() has found out: which server was lost, and where its state is from. Empty: none was.
  virtual std::string lost_servers() const { return {}; }
  // Some of them, ascending, this one among them.
  virtual Result<std::unique_ptr<collective::Group>> make_group(const std::vector<int>& ranks) = 0;
  // The run's files are this rank's from now on; this step was the last one that it has done.
  virtual Status take_over(std::int64_t step) = 0;
  // Of a rank that goes on with nobody: the context and its group are its own.
  virtual Status stand_alone() = 0;
  virtual int minimum() const = 0;          // ranks, with which the run goes on
  virtual double join_seconds() const = 0;  // that it waits for more where there are fewer

  // Whether this rank has not got all of the others' state yet; enter(): it has now.
  virtual bool is_newcomer() const = 0;
  virtual void enter() = 0;
  // This one writes the run's files from now on.
  virtual void follow_writer(int rank) = 0;
};

// How well the network does on the test data.
class Evaluator {
 public:
  struct Value {
    std::string name;  // "loss", "accuracy", "mean_absolute_error", "auc": as in metrics.jsonl
    double value = 0;
  };
  virtual ~Evaluator() = default;
  // Over all test data, as one worker would find it; none where there is no test data. Collective.
  virtual Result<std::optional<std::vector<Value>>> evaluate(std::int64_t step) = 0;
};

// What ranks compare of their weights (replica_check.h).
struct WeightsHash {
  std::uint32_t replicas = 0;    // the same number on ranks that hold the same weights; 0: to be compared with nobody's
  std::uint32_t arithmetic = 0;  // ranks with the same number round alike as they take the optimizer's step
  std::uint64_t hash = 0;
};

// The state of the network that is trained, as files of a checkpoint. Every operation is collective, but for
// hash_weights() and save_embeddings().
class ModelState {
 public:
  virtual ~ModelState() = default;
  // Of all ranks together, as safetensors: complete on rank 0, empty elsewhere.
  virtual Result<std::string> weights(std::int64_t step) = 0;
  virtual Result<std::string> optimizer(std::int64_t step) = 0;
  // The same, of which each rank takes what it has; the same text on all ranks. Errors (kInvalidInput) name a tensor
  // that does not fit.
  virtual Status load_weights(const std::string& text) = 0;
  virtual Status load_optimizer(const std::string& text) = 0;
  // After the loads: servers get what is theirs. `step` and `embedding_servers` are of the checkpoint that the run goes
  // on from; 0: it starts afresh.
  virtual Status start(std::int64_t step, int embedding_servers) = 0;
  // Rank 0: servers write the embedding rows that they have.
  virtual Status save_embeddings() = 0;
  virtual int embedding_servers() const = 0;  // that have rows; 0: none does
  // Of the parameters that this rank has.
  virtual Result<WeightsHash> hash_weights() const { return WeightsHash(); }
  // Whether each rank has the optimizer's state; else servers have it, for whoever is there.
  virtual bool has_optimizer() const { return true; }
};

}  // namespace motley::train
