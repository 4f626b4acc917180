// GADGET (Yu et al., INFOCOM 2022): a greedy choice in every slot, by the slot problem. Two ways with that problem:
// solved for what it is, and relaxed and rounded, as it was published.
#include <algorithm>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"
#include "motley/scheduling/policies/rounding.h"
#include "motley/scheduling/policies/slot.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kMaxGivers = 8;    // jobs that are asked to shrink at a time
constexpr int kRoundsBetweenSlots = 20;  // of the solver's improvement
constexpr int kDrawings = 20;            // u_b
// Where a decision follows each event, the next one goes on improving.
constexpr SlotOptions kAtEvents = {.gap = 0.002, .rounds = 200, .patience = 50};

// What changes for these jobs to have these places.
std::vector<Change> to_changes(const State& state, std::span<const int> jobs, std::vector<Placement> placements) {
  std::vector<Change> changes;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (placements[i] != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(placements[i])});
  }
  return changes;
}

// GADGET's online greedy, with the slot problem solved for what it is.
//
// Time is cut into slots. At the begin of each, every job that is there gives its utility of k workers until the end of
// the slot, for rings within a node, within a rack and over racks (motley/scheduling/policies/slot.h).
// solve_slot then packs one configuration a job. Moving or resizing a job costs what it would have gained while it
// restarts. In a sequence of such greedy choices the sum of concave utilities is at least alpha / (alpha + 1) of the
// best that could have been done with all arrivals known, where alpha is the share that each slot's packing has of its
// bound (GADGET, theorem 6).
//
// Where it decides at events, a slot begins with each of them, and there is no between. Between slots whoever waits may
// have what is free, best paid for first, and nobody is moved. Only with the fairness
// objective are jobs preempted: one that comes and finds no room may be done long before the slot is, and have waited
// many times as long as it takes. Then the slot problem is posed once more, for it and those who run with most workers
// above their least, who lose something if they give some back.
class GadgetExact final : public SlotPolicy {
 public:
  explicit GadgetExact(const PolicyOptions& options) : SlotPolicy("gadget-exact", options) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override {
    return solve(state, state.active, *state.topology, options_.at_events ? kAtEvents : SlotOptions());
  }

  Result<std::vector<Change>> go_on(const State& state) override {
    std::vector<Change> changes;
    if (state.capacity->devices().free() > 0 && state.active.size() > state.running.size()) {
      std::vector<int> waiting;
      for (const int number : state.active) {
        if (state.placement(number).empty()) waiting.push_back(number);
      }
      if (!waiting.empty()) changes = start(state, waiting);
    }
    if (options_.objective == Objective::kFairness) preempt(state, changes);
    return changes;
  }

  // Those who wait, on what is free. Where all can have the only number of workers with which they run, at no cost,
  // there is nothing to weigh.
  std::vector<Change> start(const State& state, const std::vector<int>& waiting) {
    const auto has_choice = [&](int number) {
      const Job& job = state.job(number);
      return job.min_workers() < job.max_workers() || !job.type_speeds.empty() || job.device_hour_cost > 0;
    };
    if (std::ranges::none_of(waiting, has_choice)) {
      if (auto changes = start_beside(state, waiting, PlacementStrategy::kCompact)) return std::move(*changes);
    }
    return solve(state, waiting, state.capacity->rest());
  }

  void preempt(const State& state, std::vector<Change>& changes) {
    Capacity capacity = *state.capacity;
    for (const Change& change : changes) capacity.take(change.placement, state.job(change.job).demand());
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
      capacity.release(state.placement(number), state.job(number).demand());
      jobs.push_back(number);
      missing -= more;
    }
    for (Change& change : solve(state, jobs, capacity.rest(), {.rounds = kRoundsBetweenSlots})) {
      changes.push_back(std::move(change));
    }
  }

  std::vector<Change> solve(const State& state, std::span<const int> jobs, const ClusterTopology& topology,
                            const SlotOptions& slot_options = {}) {
    const SlotProblem problem = slot_problem(state, jobs, topology, slot_end(), options_.objective);
    return to_changes(state, jobs, solve_slot(problem, slot_options).placements);
  }
};

// GADGET as it was published, as far as a cluster can run what it decides: its greedy choice in every slot, with the
// slot problem relaxed and rounded (motley/scheduling/policies/rounding.h). Its rounding may give more than there is,
// and counts on nodes and links to bear it; here mappings have to fit as a whole, draws that do not fit beside the
// ones before are left out, and the best of some drawings is taken. Who is left out has nothing in that slot.
//
// It knows no cost of moving, and draws anew in every slot.
class Gadget final : public SlotPolicy {
 public:
  explicit Gadget(const PolicyOptions& options) : SlotPolicy("gadget", options) {}

 private:
  Status take_in(const State& state) override { return check_alike(state, name(), true); }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    const std::span<const int> jobs = state.active;
    const SlotProblem problem = slot_problem(state, jobs, *state.topology, slot_end(), options_.objective);
    MOTLEY_ASSIGN(const RelaxedSlot relaxed, relax_slot(problem, Mappings::kWhole));
    Random random(mix({static_cast<std::uint64_t>(slot_end()), jobs.size()}));
    std::vector<Placement> best;
    double most = -1;
    for (int drawing = 0; drawing < kDrawings; ++drawing) {
      std::vector<Placement> placements = round_what_fits(problem, relaxed, random);
      double utility = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        const double value = compute_value(problem.topology, problem.jobs[i], placements[i]);
        if (value < 0) placements[i].clear();  // its devices cost more there than it gains
        utility += std::max(0.0, value);
      }
      if (utility <= most) continue;
      most = utility;
      best = std::move(placements);
    }
    return to_changes(state, jobs, std::move(best));
  }
};

}  // namespace

std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options) {
  return std::make_unique<GadgetExact>(options);
}

std::unique_ptr<Policy> make_gadget(const PolicyOptions& options) {
  return std::make_unique<Gadget>(options);
}

}  // namespace motley::scheduling
