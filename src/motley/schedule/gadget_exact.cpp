// GADGET's online greedy, with the slot problem solved for what it is.
//
// Time is cut into slots. At the begin of each, every job that is there says what k workers until the end of the slot
// are worth to it, for rings within a server, within a rack and over racks (motley/schedule/slot_worth.h). solve_slot
// then packs one configuration a job. Moving or resizing a job costs what it would have gained while it restarts. In a
// sequence of such greedy choices the sum of concave utilities is at least alpha / (alpha + 1) of the best that could
// have been done with all arrivals known, where alpha is the share that each slot's packing has of its bound (GADGET,
// theorem 6).
//
// Between slots nobody is moved. Whoever waits then may have what is free, best paid for first.
#include "motley/schedule/active_jobs.h"
#include "motley/schedule/policies.h"
#include "motley/schedule/slot_worth.h"

namespace motley::schedule {
namespace {

class GadgetExact final : public Policy {
 public:
  explicit GadgetExact(const PolicyOptions& options) : options_(options), slots_(options.slot_seconds) {}

  std::string name() const override { return "gadget-exact"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    Decision decision;
    if (slots_.begins(state.now)) {
      decision.changes = solve(state, active_.jobs(), *state.machines);
    } else if (state.capacity->devices().free() > 0) {
      std::vector<int> waiting;
      for (const int number : active_.jobs()) {
        if (state.placement(number).empty()) waiting.push_back(number);
      }
      if (!waiting.empty()) decision.changes = solve(state, waiting, state.capacity->rest());
    }
    if (!active_.jobs().empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  std::vector<Change> solve(const State& state, const std::vector<int>& jobs, const Machines& machines) {
    const SlotProblem problem =
        slot_problem(state, jobs, active_.jobs().size(), machines, slots_.next(), options_.objective);
    SlotAnswer answer = solve_slot(problem);
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

}  // namespace motley::schedule
