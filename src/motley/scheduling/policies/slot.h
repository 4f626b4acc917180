// The slot problem: which of many elastic jobs gets how many devices now, and where, so that the sum of their
// utilities is greatest (GADGET, Yu et al., INFOCOM 2022, problem (10), without its linear program).
//
// Numbers of workers by node say which uplinks a ring loads (motley/scheduling/simulator/placement.h), so that there
// is no routing to choose: the problem is to pack at most one such configuration a job.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// The utility of k workers, by the locality of their ring; k from 0, whose utility is 0, to the most that a job may
// have. All three are of one size; none grows with distance.
using WorkerUtilities = std::array<std::vector<double>, 3>;

struct SlotJob {
  WorkerUtilities value;
  double reserve = 0;   // bytes a second of each uplink that its ring goes over
  Placement now;        // where it runs; empty: it does not
  double moving = 0;    // share of the value that is lost where it goes on elsewhere, or with another number of workers
  int min_workers = 1;  // fewer have no utility
  // For a job that is not as fast on all devices, in place of `value`: by type of device, all of one size. Its workers
  // are all on devices of one type.
  std::vector<WorkerUtilities> type_values = {};
  std::vector<double> requests = {};  // of each of the topology's resources, a worker; empty: nothing

  const WorkerUtilities& value_on(int type) const { return type_values.empty() ? value : type_values[index(type)]; }
  Demand demand() const { return {reserve, requests}; }
  int max_workers() const { return static_cast<int>(value_on(0)[0].size()) - 1; }
  // Its devices are of a type from the first on and before the end; kAnyType is the only one where it may have any.
  int first_type() const { return type_values.empty() ? kAnyType : 0; }
  int end_of_types() const { return static_cast<int>(type_values.size()); }
};

struct SlotProblem {
  ClusterTopology topology;
  std::vector<SlotJob> jobs;
};

struct SlotAnswer {
  std::vector<Placement> placements;  // of each job
  double value = 0;
  double bound = 0;  // that no answer exceeds
};

// The utility of a placement of a job; 0 where it may not be there.
double compute_value(const ClusterTopology& topology, const SlotJob& job, const Placement& placement);

// The corners of the least concave function above the values of 0, 1, 2, ... workers, as far as it rises.
std::vector<int> find_corners(std::span<const double> values);

// Whether all placements together fit: devices, other resources, node uplinks and rack uplinks.
bool fits(const SlotProblem& problem, const std::vector<Placement>& placements);

struct SlotOptions {
  double gap = 0.005;  // of the bound: near enough
  int rounds = 2000;   // of improvement, at most
  int patience = 250;  // rounds in a row without any, at most; as many as jobs, but 100, where devices are alike
  std::uint64_t seed = 0;
};

// The problem as policies of GADGET's kind pose it (slot_utility.cpp): for these of the jobs that are there, on
// machines that may be a part of the state's, until `end`.
SlotProblem slot_problem(const State& state, std::span<const int> jobs, const ClusterTopology& topology, double end,
                         Objective objective);

// A packing that fits, always, and a bound. Deterministic. The bound is that of a relaxation: all devices of a type in
// one place, and values replaced by their concave envelopes; where jobs request other resources, each resource alone is
// one such relaxation, and the least of their bounds holds. The packing starts from the relaxation's numbers of
// workers, largest first; then, until it is near enough to the bound, takes some neighbours out and packs them again.
SlotAnswer solve_slot(const SlotProblem& problem, const SlotOptions& options = {});

}  // namespace motley::scheduling
