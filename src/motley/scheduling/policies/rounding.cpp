#include "motley/scheduling/policies/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/placement.h"

namespace motley::scheduling {
namespace {

constexpr double kTiny = 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();  // a price
constexpr int kMaxRounds = 200;                                     // of new configurations

// What is requested of a capacity, as a share of it, so that programs have numbers of one size; 0 where there is no
// limit.
double normalise(double total, double request) {
  return request > 0 && std::isfinite(total) ? request / total : 0;
}

// --- How large rings are

struct Filling {
  struct Ring {
    int low = 0, high = 0;  // corners between which the job has workers
    double part = 0;        // of the way from low to high
  };
  std::vector<Ring> rings;
  double utility = 0;
};

// From a corner of a job's utility to the next.
struct Step {
  std::size_t job;
  int low, high;
  double slope;
};

// Of all jobs, job by job `most` workers at most, the steepest first.
std::vector<Step> list_steps(const SlotProblem& problem, const std::vector<int>& most) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < problem.jobs.size(); ++i) {
    const std::vector<double>& values = problem.jobs[i].value[0];
    const std::vector<int> hull = find_corners(std::span(values).first(index(most[i]) + 1));
    for (std::size_t k = 1; k < hull.size(); ++k) {
      const double gain = values[index(hull[k])] - values[index(hull[k - 1])];
      steps.push_back({i, hull[k - 1], hull[k], gain / (hull[k] - hull[k - 1])});
    }
  }
  std::ranges::stable_sort(steps, std::ranges::greater(), &Step::slope);
  return steps;
}

// How many workers each step has where devices and resources are all in one place. Where devices are all that is
// limited, they go where they have most utility.
Result<std::vector<double>> take(const SlotProblem& problem, const std::vector<Step>& steps) {
  const ClusterTopology& topology = problem.topology;
  if (topology.resources.empty()) {
    std::vector<double> taken;
    double left = topology.devices();
    for (const Step& step : steps) {
      taken.push_back(std::min(left, static_cast<double>(step.high - step.low)));
      left -= taken.back();
    }
    return taken;
  }
  Program program;
  Program::Terms devices;
  std::vector<Program::Terms> resources(topology.resources.size());
  for (const Step& step : steps) {
    const int variable = program.add_variable(step.slope, 0, step.high - step.low);
    devices.emplace_back(variable, 1);
    const std::vector<double>& requests = problem.jobs[step.job].requests;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const double part = normalise(topology.total(static_cast<int>(r)), requests[r]);
      if (part > 0) resources[r].emplace_back(variable, part);
    }
  }
  program.add_limit(devices, -Program::kUnlimited, topology.devices());
  for (const Program::Terms& terms : resources) program.add_limit(terms, -Program::kUnlimited, 1);
  MOTLEY_ASSIGN(Program::Answer answer, program.maximise());
  return std::move(answer.values);
}

Result<Filling> fill(const SlotProblem& problem, const std::vector<int>& most) {
  const std::vector<Step> steps = list_steps(problem, most);
  MOTLEY_ASSIGN(const std::vector<double> taken, take(problem, steps));
  Filling filling;
  filling.rings.resize(problem.jobs.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (taken[i] <= kTiny) continue;
    filling.rings[step.job] = {step.low, step.high, taken[i] / (step.high - step.low)};
    filling.utility += taken[i] * step.slope;
  }
  return filling;
}

Status choose_rings(const SlotProblem& problem, RelaxedSlot& slot) {
  std::vector<int> most;
  for (const SlotJob& job : problem.jobs) most.push_back(job.max_workers());
  MOTLEY_ASSIGN(const Filling first, fill(problem, most));
  for (std::size_t i = 0; i < most.size(); ++i) {
    const Filling::Ring& ring = first.rings[i];
    most[i] = static_cast<int>(std::ceil(ring.low + ring.part * (ring.high - ring.low) - kTiny));
    slot.largest_ring = std::max(slot.largest_ring, most[i]);
  }
  MOTLEY_ASSIGN(const Filling second, fill(problem, most));
  slot.selection = first.utility;
  for (std::size_t i = 0; i < most.size(); ++i) {
    const auto& [low, high, part] = second.rings[i];
    const std::vector<double>& values = problem.jobs[i].value[0];
    const bool is_high = values[index(high)] * part >= values[index(low)] * (1 - part);
    slot.workers.push_back(is_high ? high : low);
  }
  return {};
}

// --- Where they go

// The dual value of each capacity.
struct Prices {
  std::vector<double> devices, uplinks;        // by node
  std::vector<std::vector<double>> resources;  // by node, of all that it has of each
  std::vector<double> rack_uplinks;
  std::vector<double> rings;  // one of each job

  double of_worker(const ClusterTopology& topology, const SlotJob& job, std::size_t node) const {
    double price = devices[node];
    for (std::size_t r = 0; r < job.requests.size(); ++r) {
      price += normalise(topology.nodes[node].resources[r], job.requests[r]) * resources[node][r];
    }
    return price;
  }
};

// The cheapest way to share out so many workers among some takers: take(t, j) is what j workers on taker t cost.
// Returns the cost by number of workers, and how many each taker has of them.
struct Sharing {
  std::vector<double> cost;              // of j workers in all
  std::vector<std::vector<int>> shares;  // by taker: its own of j workers, if it is the last one
};
template <class Cost>
Sharing share_out(std::size_t takers, int workers, const Cost& take) {
  Sharing sharing;
  sharing.cost.assign(index(workers) + 1, kNever);
  sharing.cost[0] = 0;
  for (std::size_t taker = 0; taker < takers; ++taker) {
    std::vector<double> cost = sharing.cost;
    std::vector<int> share(cost.size(), 0);
    for (int own = 1; own < workers; ++own) {  // never all of them: those would be a ring on their own
      const double price = take(taker, own);
      if (price == kNever) break;
      for (int all = own; all <= workers; ++all) {
        if (sharing.cost[index(all - own)] + price >= cost[index(all)]) continue;
        cost[index(all)] = sharing.cost[index(all - own)] + price;
        share[index(all)] = own;
      }
    }
    sharing.cost = std::move(cost);
    sharing.shares.push_back(std::move(share));
  }
  return sharing;
}

// Calls found(taker, own) for each taker with workers.
template <class Found>
void trace(const Sharing& sharing, int workers, const Found& found) {
  for (std::size_t taker = sharing.shares.size(); taker-- > 0;) {
    const int own = sharing.shares[taker][index(workers)];
    if (own > 0) found(taker, own);
    workers -= own;
  }
}

struct Priced {
  Placement placement;
  double cost = kNever;
};

// The cheapest configuration over more than one node.
Priced cheapest(const ClusterTopology& topology, const SlotJob& job, int workers, const Prices& prices) {
  std::vector<std::vector<int>> racks(index(topology.racks));
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    if (topology.nodes[i].uplink >= job.reserve) {
      racks[index(topology.nodes[i].rack)].push_back(static_cast<int>(i));
    }
  }
  std::vector<Sharing> in_rack;
  for (const std::vector<int>& nodes : racks) {
    in_rack.push_back(share_out(nodes.size(), workers, [&](std::size_t taker, int own) {
      const auto node = index(nodes[taker]);
      if (own > topology.workers_on(nodes[taker], job.requests)) return kNever;
      return own * prices.of_worker(topology, job, node) + job.reserve * prices.uplinks[node];
    }));
  }
  Priced best;
  const auto place_in_rack = [&](std::size_t rack, int own, Placement& placement) {
    trace(in_rack[rack], own, [&](std::size_t taker, int part) { placement.push_back({racks[rack][taker], part}); });
  };
  for (std::size_t rack = 0; rack < racks.size(); ++rack) {
    if (in_rack[rack].cost[index(workers)] >= best.cost) continue;
    best = {{}, in_rack[rack].cost[index(workers)]};
    place_in_rack(rack, workers, best.placement);
  }
  const Sharing over_racks = share_out(racks.size(), workers, [&](std::size_t rack, int own) {
    if (topology.rack_uplink(static_cast<int>(rack)) < job.reserve) return kNever;
    return in_rack[rack].cost[index(own)] + job.reserve * prices.rack_uplinks[rack];
  });
  if (over_racks.cost[index(workers)] < best.cost) {
    best = {{}, over_racks.cost[index(workers)]};
    trace(over_racks, workers, [&](std::size_t rack, int own) { place_in_rack(rack, own, best.placement); });
  }
  std::ranges::sort(best.placement, {}, &Part::node);
  return best;
}

// Fills in the probabilities of the slot's choices under which expected loads fit, and returns the prices.
Result<Prices> solve(const SlotProblem& problem, RelaxedSlot& slot) {
  const ClusterTopology& topology = problem.topology;
  const std::size_t nodes = topology.nodes.size();
  std::vector<Program::Terms> devices(nodes), uplinks(nodes), rack_uplinks(index(topology.racks)),
      rings(problem.jobs.size());
  std::vector<std::vector<Program::Terms>> resources(nodes, std::vector<Program::Terms>(topology.resources.size()));
  Program program;
  for (std::size_t job = 0; job < problem.jobs.size(); ++job) {
    const auto& [reserve, requests] = problem.jobs[job].demand();
    const double utility = problem.jobs[job].value[0][index(slot.workers[job])];
    for (const RelaxedSlot::Choice& choice : slot.choices[job]) {
      const int variable = program.add_variable(utility, 0, 1);
      rings[job].emplace_back(variable, 1);
      std::vector<bool> crosses(index(topology.racks));
      const bool is_spread = choice.placement.size() > 1;
      for (const Part& part : choice.placement) {
        devices[index(part.node)].emplace_back(variable, part.workers);
        for (std::size_t r = 0; r < requests.size(); ++r) {
          const double share = normalise(topology.nodes[index(part.node)].resources[r], requests[r]);
          if (share > 0) resources[index(part.node)][r].emplace_back(variable, part.workers * share);
        }
        if (is_spread && reserve > 0) uplinks[index(part.node)].emplace_back(variable, reserve);
        crosses[index(topology.nodes[index(part.node)].rack)] = true;
      }
      if (reserve == 0 || std::ranges::count(crosses, true) < 2) continue;
      for (std::size_t rack = 0; rack < crosses.size(); ++rack) {
        if (crosses[rack]) rack_uplinks[rack].emplace_back(variable, reserve);
      }
    }
  }
  for (const Program::Terms& terms : rings) program.add_limit(terms, -Program::kUnlimited, 1);
  for (std::size_t i = 0; i < nodes; ++i) {
    program.add_limit(devices[i], -Program::kUnlimited, topology.nodes[i].devices);
    program.add_limit(uplinks[i], -Program::kUnlimited, topology.nodes[i].uplink);
    for (const Program::Terms& terms : resources[i]) program.add_limit(terms, -Program::kUnlimited, 1);
  }
  for (int rack = 0; rack < topology.racks; ++rack) {
    program.add_limit(rack_uplinks[index(rack)], -Program::kUnlimited, topology.rack_uplink(rack));
  }
  MOTLEY_ASSIGN(const Program::Answer answer, program.maximise());
  slot.optimum = answer.objective;
  std::size_t variable = 0;
  for (auto& choices : slot.choices) {
    for (RelaxedSlot::Choice& choice : choices) choice.probability = std::max(0.0, answer.values[variable++]);
  }
  auto price = answer.prices.begin();
  const auto next = [&] { return std::max(0.0, *price++); };
  Prices prices;
  for (std::size_t job = 0; job < problem.jobs.size(); ++job) prices.rings.push_back(next());
  for (std::size_t i = 0; i < nodes; ++i) {
    prices.devices.push_back(next());
    prices.uplinks.push_back(next());
    prices.resources.emplace_back();
    for (std::size_t r = 0; r < resources[i].size(); ++r) prices.resources.back().push_back(next());
  }
  for (int rack = 0; rack < topology.racks; ++rack) prices.rack_uplinks.push_back(next());
  return prices;
}

// Empty: none.
Placement drawn(const std::vector<RelaxedSlot::Choice>& choices, Random& random) {
  double draw = random.uniform();
  for (const RelaxedSlot::Choice& choice : choices) {
    draw -= choice.probability;
    if (draw < 0) return choice.placement;
  }
  return {};
}

}  // namespace

Result<RelaxedSlot> relax_slot(const SlotProblem& problem, Mappings mappings) {
  RelaxedSlot slot;
  MOTLEY_TRY(choose_rings(problem, slot));
  slot.choices.resize(problem.jobs.size());
  for (std::size_t job = 0; job < problem.jobs.size(); ++job) {
    const int workers = slot.workers[job];
    if (workers == 0) continue;
    for (std::size_t i = 0; i < problem.topology.nodes.size(); ++i) {
      const int room = problem.topology.workers_on(static_cast<int>(i), problem.jobs[job].requests);
      if (room < (mappings == Mappings::kWhole ? workers : 1)) continue;
      slot.choices[job].push_back({.placement = {{static_cast<int>(i), workers}}});
    }
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    MOTLEY_ASSIGN(const Prices prices, solve(problem, slot));
    if (mappings == Mappings::kPartByPart) break;
    bool is_better = false;
    for (std::size_t job = 0; job < problem.jobs.size(); ++job) {
      const int workers = slot.workers[job];
      if (workers < 2) continue;
      Priced one = cheapest(problem.topology, problem.jobs[job], workers, prices);
      const double utility = problem.jobs[job].value[0][index(workers)];
      if (utility - one.cost <= prices.rings[job] + kTiny * std::max(1.0, utility)) continue;
      const auto& known = slot.choices[job];  // one that is there is better by rounding alone
      if (std::ranges::find(known, one.placement, &RelaxedSlot::Choice::placement) != known.end()) continue;
      slot.choices[job].push_back({.placement = std::move(one.placement)});
      is_better = true;
    }
    if (!is_better) break;
  }
  return slot;
}

std::vector<Placement> round_at_random(const RelaxedSlot& slot, Random& random) {
  std::vector<Placement> placements;
  for (const auto& choices : slot.choices) placements.push_back(drawn(choices, random));
  return placements;
}

std::vector<Placement> round_what_fits(const SlotProblem& problem, const RelaxedSlot& slot, Random& random) {
  Capacity capacity(problem.topology);
  std::vector<Placement> placements(slot.choices.size());
  for (const std::uint32_t job : permutation(static_cast<std::uint32_t>(placements.size()), random.next())) {
    Placement placement = drawn(slot.choices[job], random);
    if (!capacity.fits(placement, problem.jobs[job].demand())) continue;
    capacity.take(placement, problem.jobs[job].demand());
    placements[job] = std::move(placement);
  }
  return placements;
}

}  // namespace motley::scheduling
