// PipeDream's dynamic program, its objective's exact optimum, and the planner "pipedream" (see pipedream.h).
//
// The planner plans for equal machines, as the original does: for every device type on its own, and every number of its
// devices, it takes PipeDream's plan of the chain of layers for one micro-batch, with PipeDream's own replicas, the
// gradient synchronisation being shared out among the micro-batches of a step. All of these plans are valued under the
// problem's cost model and objective, and the best is the answer. Under kHeterps, where neighbouring stages of one type
// are one stage, what remains of it is the best single type.
#include "motley/planning/search/pipedream.h"

#include <algorithm>
#include <set>
#include <utility>

#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr std::size_t kMaxStates = 5'000;
constexpr std::int64_t kMaxMachines = 256;  // of one type that the planner plans for

// The larger of a stage's time and its transfers'.
double stage_seconds(const PipedreamStates& states, const PipedreamStage& stage) {
  const auto from = index(stage.from);
  const auto to = index(stage.to);
  const double replicas = stage.replicas;
  const double parameter_bytes = states.parameter_bytes[to] - states.parameter_bytes[from];
  const double gradient_sync =
      4 * (replicas - 1) * parameter_bytes / (replicas * states.gradient_sync_bytes_per_second);
  const double work = (states.seconds[to] - states.seconds[from] + gradient_sync) / replicas;
  if (from == 0) return work;
  const double transferred = std::max(states.output_bytes[from], states.output_bytes[to]);
  return std::max(work, 2 * transferred / (replicas * states.activation_bytes_per_second));
}

int last_state(const PipedreamStates& states) {
  return static_cast<int>(states.seconds.size()) - 1;
}

// Of the best plan of a state's layers with so many machines: its time and its last stage.
struct Step {
  double seconds = kInfinity;
  PipedreamStage last;
};

// The fewest machines for each state such that no stage or transfer takes longer than `limit`; empty: more than
// `machines` are needed for the last state.
std::vector<PipedreamStage> fewest_machines(const PipedreamStates& states, int machines, double limit) {
  std::vector<int> fewest(states.seconds.size(), machines + 1);
  std::vector<PipedreamStage> last(states.seconds.size());
  fewest[0] = 0;
  for (int to = 1; to <= last_state(states); ++to) {
    for (const int from : states.inside[index(to)]) {
      const int before = fewest[index(from)];
      int& best = fewest[index(to)];
      for (PipedreamStage stage{from, to, 1}; before + stage.replicas < best; ++stage.replicas) {
        if (stage_seconds(states, stage) <= limit) {
          best = before + stage.replicas;
          last[index(to)] = stage;
        }
      }
    }
  }
  std::vector<PipedreamStage> stages;
  if (fewest.back() <= machines) {
    for (int state = last_state(states); state > 0; state = stages.back().from) {
      stages.push_back(last[index(state)]);
    }
    std::reverse(stages.begin(), stages.end());
  }
  return stages;
}

// The states of a problem's chain of layers on one type: its beginnings.
PipedreamStates chain_states(const Problem& problem, int type) {
  const double samples = problem.micro_batch_samples();
  PipedreamStates states;
  states.gradient_sync_bytes_per_second = problem.type(type).bytes_per_second;
  states.activation_bytes_per_second = problem.link(type, type).bytes_per_second;
  double seconds = 0;
  double parameter_bytes = 0;
  for (int layer = 0; layer <= problem.layer_count(); ++layer) {
    states.seconds.push_back(seconds);
    states.parameter_bytes.push_back(parameter_bytes);
    states.output_bytes.push_back(samples * problem.cut_bytes[index(layer)]);
    std::vector<int>& inside = states.inside.emplace_back();
    for (int smaller = 0; smaller < layer; ++smaller) inside.push_back(smaller);
    if (layer < problem.layer_count()) {
      const LayerOnType& on_type = problem.at(layer, type);
      seconds += on_type.forward.at(samples) + on_type.backward.at(samples);
      // Gradients are exchanged once a step, of which a micro-batch carries its part.
      parameter_bytes += problem.layer(layer).parameter_bytes / static_cast<double>(problem.micro_batches);
    }
  }
  return states;
}

}  // namespace

std::vector<PipedreamPlan> pipedream_plans(const PipedreamStates& states, int machines) {
  const auto most = index(std::max(machines, 0));
  // best[state][m]; the empty state needs no machine and no time.
  std::vector<std::vector<Step>> best(states.seconds.size(), std::vector<Step>(most + 1));
  best[0][0].seconds = 0;
  for (int to = 1; to <= last_state(states); ++to) {
    std::vector<Step>& steps = best[index(to)];
    for (const int from : states.inside[index(to)]) {
      const std::vector<Step>& before = best[index(from)];
      for (PipedreamStage stage{from, to, 1}; stage.replicas <= machines; ++stage.replicas) {
        const double seconds = stage_seconds(states, stage);
        for (auto m = index(stage.replicas); m <= most; ++m) {
          const double slowest = std::max(before[m - index(stage.replicas)].seconds, seconds);
          if (slowest < steps[m].seconds) steps[m] = {slowest, stage};
        }
      }
    }
  }

  std::vector<PipedreamPlan> plans;
  for (std::size_t m = 1; m <= most; ++m) {
    PipedreamPlan& plan = plans.emplace_back();
    plan.seconds = best.back()[m].seconds;
    std::size_t left = m;
    for (int state = last_state(states); state > 0; state = plan.stages.back().from) {
      plan.stages.push_back(best[index(state)][left].last);
      left -= index(plan.stages.back().replicas);
    }
    std::reverse(plan.stages.begin(), plan.stages.end());
  }
  return plans;
}

PipedreamPlan exact_pipedream_plan(const PipedreamStates& states, int machines) {
  constexpr double kPrecision = 1e-12;
  PipedreamPlan plan;
  plan.stages = {{0, last_state(states), 1}};
  plan.seconds = pipedream_seconds(states, plan.stages);
  double not_kept = 0;
  while (plan.seconds - not_kept > kPrecision * plan.seconds) {
    const double limit = (not_kept + plan.seconds) / 2;
    if (auto stages = fewest_machines(states, machines, limit); stages.empty()) {
      not_kept = limit;
    } else {
      plan.stages = std::move(stages);
      plan.seconds = pipedream_seconds(states, plan.stages);
    }
  }
  return plan;
}

double pipedream_seconds(const PipedreamStates& states, const std::vector<PipedreamStage>& stages) {
  double slowest = 0;
  for (const PipedreamStage& stage : stages) {
    slowest = std::max(slowest, stage_seconds(states, stage));
  }
  return slowest;
}

double pipedream_speedup(const PipedreamStates& states, const PipedreamPlan& plan) {
  return states.seconds.back() / plan.seconds;
}

double data_parallel_speedup(const PipedreamStates& states, int machines) {
  return states.seconds.back() / stage_seconds(states, {0, last_state(states), machines});
}

Result<PipedreamGraph> pipedream_graph(const model::Profile& profile, double bytes_per_second) {
  const std::vector<model::Layer>& layers = profile.graph.layers;
  if (profile.devices.empty()) {
    return fail(ErrorCode::kInvalidInput, "pipedream: the profile of {} has no device", profile.graph.name);
  }
  const std::vector<model::LayerTime>& times = profile.devices.front().layers;
  const auto predict_seconds = [&](std::size_t layer) {
    return times[layer].forward.at(profile.batch) + times[layer].backward.at(profile.batch);
  };
  std::vector<bool> read(layers.size());
  for (const model::Layer& layer : layers) {
    for (const int input : layer.inputs) read[index(input)] = true;
  }
  std::vector<bool> left_out(layers.size());
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    left_out[layer] = layers[layer].kind == model::LayerKind::kInput ||
                      (!read[layer] && predict_seconds(layer) == 0 && layers[layer].parameters == 0);
  }

  // Every state is the one before with a layer more whose inputs it has. Breadth first, so that the states come by
  // size.
  using Members = std::vector<bool>;
  std::vector<Members> found = {Members(layers.size())};
  std::set<Members> known(found.begin(), found.end());
  for (std::size_t state = 0; state < found.size(); ++state) {
    if (found.size() > kMaxStates) {
      return fail(ErrorCode::kInvalidInput,
                  "pipedream: {} has more than {} sets of layers to cut between; a graph with fewer parallel branches "
                  "is needed",
                  profile.graph.name, kMaxStates);
    }
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const auto present = [&](int input) { return found[state][index(input)] || left_out[index(input)]; };
      if (!found[state][layer] && !left_out[layer] && std::ranges::all_of(layers[layer].inputs, present)) {
        Members larger = found[state];
        larger[layer] = true;
        if (known.insert(larger).second) found.push_back(larger);
      }
    }
  }

  PipedreamGraph result;
  PipedreamStates& states = result.states;
  states.gradient_sync_bytes_per_second = states.activation_bytes_per_second = bytes_per_second;
  for (const Members& members : found) {
    double seconds = 0;
    double parameter_bytes = 0;
    std::vector<bool> read_outside(layers.size());
    std::vector<int>& listed = result.members.emplace_back();
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      if (members[layer]) {
        seconds += predict_seconds(layer);
        parameter_bytes += sizeof(float) * layers[layer].parameters;
        listed.push_back(static_cast<int>(layer));
      } else if (!left_out[layer]) {
        for (const int input : layers[layer].inputs) {
          read_outside[index(input)] = true;
        }
      }
    }
    double output_bytes = 0;
    for (const int layer : listed) {
      output_bytes += read_outside[index(layer)] ? profile.batch * layers[index(layer)].activation_bytes : 0;
    }
    std::vector<int>& inside = states.inside.emplace_back();
    for (int smaller = 0; smaller + 1 < static_cast<int>(result.members.size()); ++smaller) {
      const std::vector<int>& nested = result.members[index(smaller)];
      if (nested.size() < listed.size() && std::ranges::includes(listed, nested)) inside.push_back(smaller);
    }
    states.seconds.push_back(seconds);
    states.parameter_bytes.push_back(parameter_bytes);
    states.output_bytes.push_back(output_bytes);
  }
  return result;
}

Result<Answer> plan_pipedream(const Request& request) {
  const Problem& problem = request.problem;
  Search search(request);
  for (int type = 0; type < problem.type_count() && !search.over(); ++type) {
    if (problem.cost_model == CostModel::kHeterps) {
      search.consider(all_on(problem, type).type_of_layer);
      continue;
    }
    const std::int64_t count = std::min(problem.type(type).count, kMaxMachines);
    for (const PipedreamPlan& plan : pipedream_plans(chain_states(problem, type), static_cast<int>(count))) {
      if (search.over()) break;
      Candidate candidate;
      for (const PipedreamStage& stage : plan.stages) {
        candidate.push_back({.first = stage.from, .last = stage.to - 1, .type = type, .replicas = stage.replicas});
      }
      search.consider(candidate);
    }
  }
  return search.answer();
}

}  // namespace motley::planning
