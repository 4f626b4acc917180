// What policies are made of: slots, an order in which jobs are offered devices, and places for
// numbers of workers.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// For policies that know neither jobs with speeds by type of devices, nor failures, nor, where it says so,
// resources but devices. Errors: kInvalidInput where there are such.
Status check_alike(const State& state, const std::string& policy, bool knows_resources = false);

// A policy that decides by slots: anew at every multiple of some seconds, as long as there are jobs. Where it decides
// at events too, a slot is the time for which a decision is made: it begins with every arrival, completion and failure,
// and where nothing happens for a whole slot.
class SlotPolicy : public Policy {
 public:
  std::string name() const final { return name_; }
  Result<Decision> decide(const State& state) final;

 protected:
  SlotPolicy(std::string name, const PolicyOptions& options) : options_(options), name_(std::move(name)) {}

  // Sees every state, before anything is decided.
  virtual Status take_in(const State&) { return {}; }
  // What changes where a slot begins, and within one; there are jobs.
  virtual Result<std::vector<Change>> begin_slot(const State& state) = 0;
  virtual Result<std::vector<Change>> go_on(const State&) { return std::vector<Change>(); }

  double slot_end() const { return slot_end_; }

  const PolicyOptions options_;

 private:
  const std::string name_;
  double slot_end_ = 0;
};

// Offers jobs devices in an order of rank: each gets its workers from what those before it leave, or none.
class Ranking {
 public:
  explicit Ranking(PlacementStrategy strategy) : strategy_(strategy) {}

  // All devices are free to be given out. The state must outlive the calls up to end().
  void begin(const State& state);
  // Gives a job the workers that it asks for: where it runs now, if nobody before it took that, else where they fit.
  // False: it gets none. To be called until it got them, once for a type of devices at most; kAnyType: of whichever it
  // may have.
  bool offer(int number, int type = kAnyType);
  // Nothing is left: all who are not offered any more get none.
  bool is_full() const { return placer_->free() == 0; }
  bool got(int job) const { return got_[index(job)] != 0; }
  // What changes: jobs that run and got nothing stop.
  std::vector<Change> end();

 private:
  const PlacementStrategy strategy_;
  const State* state_ = nullptr;
  std::optional<Placer> placer_;
  std::vector<Change> changes_;
  std::vector<int> given_;  // jobs with workers
  std::vector<char> got_;   // by job
  std::vector<char> fits_;  // by workers: false once such a job was skipped, since devices only become fewer; not where
                            // uplinks, types of devices or other resources matter
};

// A preemptive policy that serves jobs by a number of each, least first, ties by arrival.
class RankedPolicy final : public Policy {
 public:
  // The number of a job. It may change only while it runs, so that those that wait are kept in order.
  using Rank = std::function<double(const State&, int job)>;
  // `next_step`: when the number of a job that runs will be another, where it moves in steps.
  RankedPolicy(std::string name, const PolicyOptions& options, Rank rank, Rank next_step = {})
      : name_(std::move(name)),
        strategy_(options.placement),
        rank_(std::move(rank)),
        next_step_(std::move(next_step)),
        ranking_(options.placement) {}

  std::string name() const override { return name_; }
  Result<Decision> decide(const State& state) override;

 private:
  using Ranked = std::pair<double, int>;  // its number, job

  const std::string name_;
  const PlacementStrategy strategy_;
  const Rank rank_, next_step_;
  Ranking ranking_;
  std::set<Ranked> waiting_;
  std::vector<Ranked> running_, started_;  // kept for their memory
};

// What changes so that all of these jobs, which do not run, start with the workers that they ask for, beside those that
// run; nothing where there is no room for all.
std::optional<std::vector<Change>> start_beside(const State& state, std::span<const int> jobs,
                                                PlacementStrategy strategy);

// What changes so that each of `jobs` has so many workers, 0 for none, as far as there is room: those that have them
// already stay where they are; the others take places in their order, of fewer workers where there is no room for all,
// or none where there is none for the least that they can run with. `types`: those of their devices; empty: any.
std::vector<Change> share(const State& state, std::span<const int> jobs, const std::vector<int>& workers,
                          PlacementStrategy strategy, const std::vector<int>& types = {});

}  // namespace motley::scheduling
