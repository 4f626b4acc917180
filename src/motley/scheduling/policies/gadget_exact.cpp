// GADGET's online greedy, with the slot problem solved for what it is.
//
// Time is cut into slots. At the begin of each, every job that is there gives its utility of k workers until the end of
// the slot, for rings within a node, within a rack and over racks (motley/scheduling/policies/slot_utility.h).
// solve_slot then packs one configuration a job. Moving or resizing a job costs what it would have gained while it
// restarts. In a sequence of such greedy choices the sum of concave utilities is at least alpha / (alpha + 1) of the
// best that could have been done with all arrivals known, where alpha is the share that each slot's packing has of its
// bound (GADGET, theorem 6).
//
// Between slots whoever waits may have what is free, best paid for first, and nobody is moved. Only with the fairness
// objective are jobs preempted: one that comes and finds no room may be done long before the slot is, and have waited
// many times as long as it takes. Then the slot problem is posed once more, for it and those who run with most workers
// above their least, who lose something if they give some back.
#include <algorithm>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/slot_policy.h"
#include "motley/scheduling/policies/slot_utility.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMaxGivers = 8;    // jobs that are asked to shrink at a time
constexpr int kRoundsBetweenSlots = 20;  // of the solver's improvement

class GadgetExact final : public SlotPolicy {
 public:
  explicit GadgetExact(const PolicyOptions& options) : SlotPolicy("gadget-exact", options) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override {
    return solve(state, active_.jobs(), *state.topology);
  }

  Result<std::vector<Change>> go_on(const State& state) override {
    std::vector<Change> changes;
    if (state.capacity->devices().free() > 0) {
      std::vector<int> waiting;
      for (const int number : active_.jobs()) {
        if (state.placement(number).empty()) waiting.push_back(number);
      }
      if (!waiting.empty()) changes = solve(state, waiting, state.capacity->rest());
    }
    if (options_.objective == Objective::kFairness) preempt(state, changes);
    return changes;
  }

  void preempt(const State& state, std::vector<Change>& changes) {
    Capacity capacity = *state.capacity;
    for (const Change& change : changes) capacity.take(change.placement, state.job(change.job).reserve());
    std::vector<int> jobs;
    int missing = -capacity.devices().free();
    for (const int number : state.arrived) {
      if (!state.placement(number).empty() || std::ranges::find(changes, number, &Change::job) != changes.end()) {
        continue;
      }
      jobs.push_back(number);
      missing += state.job(number).min_workers();
    }
    if (jobs.empty()) return;
    std::vector<std::pair<int, int>> spare;  // workers above the least, job
    for (const int number : state.running) {
      const int more = count_workers(state.placement(number)) - state.job(number).min_workers();
      if (more > 0) spare.emplace_back(more, number);
    }
    std::ranges::sort(spare, std::greater());
    for (std::size_t i = 0; i < spare.size() && i < kMaxGivers && missing > 0; ++i) {
      const auto [more, number] = spare[i];
      capacity.release(state.placement(number), state.job(number).reserve());
      jobs.push_back(number);
      missing -= more;
    }
    for (Change& change : solve(state, jobs, capacity.rest(), {.rounds = kRoundsBetweenSlots})) {
      changes.push_back(std::move(change));
    }
  }

  std::vector<Change> solve(const State& state, const std::vector<int>& jobs, const ClusterTopology& topology,
                            const SlotOptions& slot_options = {}) {
    const SlotProblem problem =
        slot_problem(state, jobs, active_.jobs().size(), topology, slots_.next(), options_.objective);
    SlotAnswer answer = solve_slot(problem, slot_options);
    std::vector<Change> changes;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (answer.placements[i] != state.placement(jobs[i])) {
        changes.push_back({jobs[i], std::move(answer.placements[i])});
      }
    }
    return changes;
  }
};

}  // namespace

std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options) {
  return std::make_unique<GadgetExact>(options);
}

}  // namespace motley::scheduling
