// PipeDream's partitioning (Narayanan et al., SOSP'19) of one model over equal machines: the dynamic program as
// published, on a graph with branches, and an independent exact method for the same objective.
//
// A state is a set of layers that holds every layer that its members read from; a stage is what lies between two nested
// states. With C seconds of computation, P bytes of parameters, m replicas and bandwidth B, a stage takes
//   (C + 4 (m - 1) P / (m B)) / m                        for a minibatch,
// and, unless it is the first, its input and its output each take 2 a / (m B), where a is the bytes of those outputs in
// the state that layers outside of it read. The pipeline's time is the largest of all these.
#pragma once

#include <vector>

#include "motley/base/result.h"
#include "motley/model/profile.h"

namespace motley::planning {

// States in an order in which nested ones come first; the first is empty, the last has all layers. Sums over the
// members of each state.
struct PipedreamStates {
  std::vector<double> seconds;  // forward and backward of a minibatch on one machine
  std::vector<double> parameter_bytes;
  std::vector<double> output_bytes;      // read outside of it, of a minibatch
  std::vector<std::vector<int>> inside;  // the smaller states that are nested in it
  double exchange_bytes_per_second = 0;  // for parameters
  double activation_bytes_per_second = 0;
};

struct PipedreamStage {
  int from = 0;  // states: the stage is what `to` has and `from` has not
  int to = 0;
  int replicas = 1;
  bool operator==(const PipedreamStage&) const = default;
};

struct PipedreamPlan {
  std::vector<PipedreamStage> stages;
  double seconds = 0;  // of the slowest stage or transfer
};

// The dynamic program. Element m - 1 is the plan that uses exactly m machines.
std::vector<PipedreamPlan> pipedream_plans(const PipedreamStates& states, int machines);

// The least time with at most so many machines: the time is searched for by bisection; whether a time can be kept is
// told by the fewest machines that keep it.
PipedreamPlan exact_pipedream_plan(const PipedreamStates& states, int machines);

// The time of a plan, from its stages alone.
double pipedream_seconds(const PipedreamStates& states, const std::vector<PipedreamStage>& stages);

// Over one machine: of a plan, and of replicating the whole model on all machines.
double pipedream_speedup(const PipedreamStates& states, const PipedreamPlan& plan);
double data_parallel_speedup(const PipedreamStates& states, int machines);

// The states of a profile's graph, for minibatches of the profile's batch, on the profile's first device type. Left out
// are, as by the original, the inputs (kInput) and layers that do nothing and that nobody reads.
// Errors (kInvalidInput): more than 5,000 states (a graph with many parallel branches), or no device.
struct PipedreamGraph {
  PipedreamStates states;
  std::vector<std::vector<int>> members;  // layers of every state, ascending
};
Result<PipedreamGraph> pipedream_graph(const model::Profile& profile, double bytes_per_second);

}  // namespace motley::planning
