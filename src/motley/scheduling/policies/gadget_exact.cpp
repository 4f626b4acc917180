// GADGET's online greedy, with the slot problem solved for what it is.
//
// Time is cut into slots. At the begin of each, every job that is there says what k workers until the end of the slot
// are worth to it, for rings within a server, within a rack and over racks (motley/scheduling/policies/slot_worth.h).
// solve_slot then packs one configuration a job. Moving or resizing a job costs what it would have gained while it
// restarts. In a sequence of such greedy choices the sum of concave utilities is at least alpha / (alpha + 1) of the
// best that could have been done with all arrivals known, where alpha is the share that each slot's packing has of its
// bound (GADGET, theorem 6).
//
// Between slots whoever waits may have what is free, best paid for first, and nobody is moved. Only with the fairness
// objective do jobs give way: one that comes and finds no room may be done long before the slot is, and have waited
// many times as long as it takes. Then the slot problem is posed once more, for it and those who run with most workers
// above their least, who lose something if they give some back.
#include <algorithm>

#include "motley/scheduling/policies/active_jobs.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/slot_worth.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMostGivers = 8;   // jobs that are asked to give way at a time
constexpr int kRoundsBetweenSlots = 20;  // of the solver's improvement

class GadgetExact final : public Policy {
 public:
  explicit GadgetExact(const PolicyOptions& options) : options_(options), slots_(options.slot_seconds) {}

  std::string name() const override { return "gadget-exact"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    Decision decision;
    if (slots_.begins(state.now)) {
      decision.changes = solve(state, active_.jobs(), *state.machines);
      if (!active_.jobs().empty()) decision.wake = slots_.next();
      return decision;
    }
    if (state.capacity->devices().free() > 0) {
      std::vector<int> waiting;
      for (const int number : active_.jobs()) {
        if (state.placement(number).empty()) waiting.push_back(number);
      }
      if (!waiting.empty()) decision.changes = solve(state, waiting, state.capacity->rest());
    }
    if (options_.objective == Objective::kFairness) give_way(state, decision);
    if (!active_.jobs().empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  void give_way(const State& state, Decision& decision) {
    Capacity capacity = *state.capacity;
    for (const Change& change : decision.changes) capacity.take(change.placement, state.job(change.job).reserve());
    std::vector<int> jobs;
    int missing = -capacity.devices().free();
    for (const int number : state.arrived) {
      if (!state.placement(number).empty() ||
          std::ranges::find(decision.changes, number, &Change::job) != decision.changes.end()) {
        continue;
      }
      jobs.push_back(number);
      missing += state.job(number).least();
    }
    if (jobs.empty()) return;
    std::vector<std::pair<int, int>> spare;  // workers above the least, job
    for (const int number : state.running) {
      const int more = workers_of(state.placement(number)) - state.job(number).least();
      if (more > 0) spare.emplace_back(more, number);
    }
    std::ranges::sort(spare, std::greater());
    for (std::size_t i = 0; i < spare.size() && i < kMostGivers && missing > 0; ++i) {
      const auto [more, number] = spare[i];
      capacity.give_back(state.placement(number), state.job(number).reserve());
      jobs.push_back(number);
      missing -= more;
    }
    for (Change& change : solve(state, jobs, capacity.rest(), {.rounds = kRoundsBetweenSlots})) {
      decision.changes.push_back(std::move(change));
    }
  }

  std::vector<Change> solve(const State& state, const std::vector<int>& jobs, const Machines& machines,
                            const SlotOptions& slot_options = {}) {
    const SlotProblem problem =
        slot_problem(state, jobs, active_.jobs().size(), machines, slots_.next(), options_.objective);
    SlotAnswer answer = solve_slot(problem, slot_options);
    std::vector<Change> changes;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (answer.placements[i] != state.placement(jobs[i])) {
        changes.push_back({jobs[i], std::move(answer.placements[i])});
      }
    }
    return changes;
  }

  const PolicyOptions options_;
  ActiveJobs active_;
  Slots slots_;
};

}  // namespace

std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options) {
  return std::make_unique<GadgetExact>(options);
}

}  // namespace motley::scheduling
