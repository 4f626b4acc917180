// What must hold of a job whatever happens, held against all that its ranks do. It stands outside of the cluster and
// sees everything at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/data/local/ledger.h"

namespace motley::simulation {

// The tiny linear model that is trained: y = w x, of which each sample has one pair; by SGD with momentum, if any.
struct LinearJob {
  std::uint32_t samples = 120;
  std::uint32_t batch = 24;
  std::int64_t steps = 20;
  std::int64_t steps_per_checkpoint = 4;
  int checkpoints = 2;  // that are kept
  double momentum = 0;
  double tolerance = 1e-9;  // between sums in different orders and with different rounding, relative
  std::vector<std::size_t> bucket_elements = {8, 16};

  std::size_t elements() const;
  data::LedgerState fresh_ledger() const { return {.seed = 11, .epoch = 0, .cursor = 0, .size = samples}; }
  std::vector<double> initial_weights() const;
  // Adds the sample's gradient at these weights.
  void add_gradient(std::uint32_t sample, std::span<const double> weights, std::span<double> gradient) const;
  static constexpr double kLearningRate = 0.02;
};

// The invariants, as docs/explanation/fault-simulation.md lists them.
inline constexpr const char* kOnce = "samples once";
inline constexpr const char* kSameWeights = "same weights";
inline constexpr const char* kOneEpoch = "one epoch";
inline constexpr const char* kServersKeep = "servers keep state";
inline constexpr const char* kWaitsEnd = "waits end";
inline constexpr const char* kRestored = "checkpoint restored";
inline constexpr const char* kJobsKept = "jobs kept";
inline constexpr const char* kLauncherTrue = "launcher tells the truth";
inline constexpr const char* kGoesOn = "job goes on";

class Observer {
 public:
  explicit Observer(const LinearJob& job);

  // Each start of the job is a generation, from 1 on.
  void begin_generation();
  int generation() const { return generation_; }

  // Another process has the rank from now on, whose predecessor has ended.
  void begin_life(int rank);
  void end_life(int rank) { ended_.emplace(rank, lives_[rank]); }
  int life(int rank) { return lives_[rank]; }  // how many processes had it before

  void install(std::uint64_t epoch, const std::vector<int>& members, int rank);
  // The rank has this one for the writer of the run's files in an epoch, or writes them itself.
  void follow_writer(std::uint64_t epoch, int rank, int writer);
  // Acts once the rank, or any one where it is negative, has installed this epoch or a later one in this generation, or
  // has committed this step or a later one.
  void at_epoch(std::uint64_t epoch, int rank, std::function<void()> act);
  void at_step(std::int64_t step, int rank, std::function<void()> act);
  // The samples that are in the gradient which a rank brings to a step in an epoch.
  void contribute(std::uint64_t epoch, std::int64_t step, int rank, std::vector<std::uint32_t> samples);
  void commit(std::uint64_t epoch, std::int64_t step, int rank, std::span<const double> weights);
  void save(std::int64_t step);  // a rank was told that the checkpoint is written
  void restore(int rank, std::int64_t step, std::span<const double> weights);
  void take_over(std::uint64_t epoch, std::int64_t step, int rank, std::span<const double> weights);  // of a newcomer
  // Parameter servers that had lost the optimizer's state after this step got that of a checkpoint; 0: of none.
  void replace_momentum(std::int64_t step, std::int64_t checkpoint, std::vector<double> momentum);
  // Of a file that is replaced again and again: what was written last, and what a later start reads.
  void note_progress(std::int64_t step) { noted_ = step; }
  void check_progress(std::int64_t step);
  // Its checkpoints may be damaged, by bits that the disk has lost: the last one may be of no use, not all.
  void expect_damage() { may_be_damaged_ = true; }
  // Where a rank's main function ends: done, or why not.
  void finish(int rank, const Status& done, std::int64_t step);
  void note_late(int rank, const Error& error);  // a newcomer has found nobody to join
  // The same of a worker of the job that has a server.
  void finish_worker(int rank, const Status& done);
  void violate(const char* invariant, const std::string& text);

  const std::vector<std::string>& violations() const { return violations_; }
  bool has_committed() const { return has_committed_; }                  // in this generation
  std::int64_t committed() const { return committed_step_; }             // the same: the last step
  int committed_workers() const { return committed_workers_; }           // the same: that it was done with
  std::int64_t saved() const { return saved_; }                          // the last checkpoint that counts as written
  bool has_replaced_momentum() const { return has_replaced_momentum_; }  // the same
  int finished_workers() const { return finished_workers_; }
  int finished() const { return finished_; }                            // ranks of this generation that have done all
  const std::vector<std::string>& endings() const { return endings_; }  // of ranks of this generation that have not

 private:
  // Until a rank has installed an epoch, or committed a step; the other one is 0.
  struct Awaited {
    std::uint64_t epoch = 0;
    std::int64_t step = 0;
    int rank = 0;
    std::function<void()> act;
    bool concerns(int other) const { return rank < 0 || rank == other; }
  };
  void act_on(const std::function<bool(const Awaited&)>& is_due);
  void check_ending(const std::string& who, const Error& error);

  // The ranks of an epoch, the lives of those that have installed it, and which of them writes the run's files.
  struct Members {
    std::vector<int> ranks;
    std::map<int, int> lives;
    std::optional<int> writer;
  };
  bool has_only_dead(const Members& members) const;
  // The weights after a step. A rank may be lost after it has committed one and before any other has: then the others
  // do the step again, in another order of sums.
  struct Commit {
    int rank = 0;
    int life = 0;
    std::uint64_t epoch = 0;  // whose gradients it is of
  };
  // What one rank alone would have. Segments of servers that have lost their state go on with another momentum, so that
  // there may be several that a value can have had: which one the next step shows.
  struct Reference {
    std::vector<double> weights;
    std::vector<double> momentum;
  };
  struct Version {
    std::uint64_t hash = 0;
    std::vector<Commit> commits;
    std::shared_ptr<const Reference> reference;
  };
  using Key = std::pair<int, std::int64_t>;  // generation and step
  bool goes_on(const Commit& commit, std::uint64_t epoch);
  bool is_close(double value, double expected) const;
  // The step after this reference that has led to these weights.
  std::shared_ptr<const Reference> follow(const Reference& before, std::int64_t step, std::span<const double> weights);

  const LinearJob job_;
  const std::shared_ptr<const Reference> initial_;
  std::vector<std::vector<std::uint32_t>> windows_;  // the samples of each step, ascending
  int generation_ = 0;
  int finished_ = 0;
  int finished_workers_ = 0;
  std::int64_t first_step_ = 1;  // of this generation
  std::int64_t committed_step_ = 0;
  int committed_workers_ = 0;
  std::int64_t saved_ = 0;  // acknowledged, in any generation
  std::int64_t noted_ = 0;
  bool may_be_damaged_ = false;
  bool has_committed_ = false;
  bool has_replaced_momentum_ = false;
  std::optional<std::uint64_t> restored_;  // the hash of what this generation began with
  std::shared_ptr<const Reference> began_with_;
  std::map<int, int> lives_;                 // by rank, of this generation
  std::set<std::pair<int, int>> ended_;      // of these: ranks and lives
  std::map<std::uint64_t, Members> epochs_;  // of this generation
  std::map<std::pair<std::uint64_t, std::int64_t>, std::map<int, std::vector<std::uint32_t>>> contributions_;
  std::map<Key, std::vector<Version>> committed_;
  std::map<std::int64_t, std::vector<std::vector<double>>> replaced_;  // momentum, by step; in any generation
  std::map<int, std::int64_t> steps_;                                  // by rank, of this generation: committed last
  std::map<int, std::shared_ptr<const Reference>> references_;         // the same: after that step
  std::vector<Awaited> awaited_;
  std::vector<std::string> endings_;
  std::vector<std::string> violations_;
};

}  // namespace motley::simulation
