#include "motley/planning/search/random_problem.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "motley/base/random.h"

namespace motley::planning {
namespace {

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

double log_between(Random& random, double low, double high) {
  return low * std::pow(high / low, random.uniform());
}

std::int64_t integer_between(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

double fraction(Random& random, const RandomProblemOptions& options) {
  return options.fractions ? 1 - log_between(random, 0.002, 0.2) : 1;
}

// A CPU core sustains 20 Gflop/s for 0.04 an hour; an accelerator does up to 500 times as much, at a price that grows
// slightly more slowly, but starts every layer with a fixed delay and reads sparse rows no faster.
struct Device {
  double speed = 1;  // of dense computation, relative to the core
  double fixed = 0;  // seconds a layer and direction
};

}  // namespace

Problem random_problem(const RandomProblemOptions& options, std::uint64_t seed) {
  Random random(mix({seed, 0x70726f626c656dULL}));
  Problem problem;
  problem.model = "random";
  problem.cost_model = options.cost_model;
  problem.total_samples = 1e8;
  problem.profile_batch = 256;
  problem.batch = 512;
  problem.micro_batches = integer_between(random, 1, 8);
  problem.schedule = options.schedule;
  problem.allow_recompute = options.allow_recompute;

  double parameters = 0;
  double activations = 0;
  double cut = log_between(random, 200, 20'000);
  problem.cut_bytes.push_back(cut);
  for (int l = 0; l < options.layers; ++l) {
    LayerSize layer;
    layer.name = fmt::format("layer{}", l);
    const bool sparse = random.uniform() < (l < options.layers / 4 ? 0.7 : 0.1);
    layer.kind = sparse ? model::LayerKind::kEmbedding : model::LayerKind::kFullyConnected;
    layer.flops = sparse ? log_between(random, 1e3, 1e5) : log_between(random, 1e6, 5e8);
    layer.parameter_bytes = sparse ? 0 : log_between(random, 1e4, 2e7);
    layer.activation_bytes = log_between(random, 500, 500'000);
    layer.sparse_bytes = sparse ? log_between(random, 1e3, 1e5) : 0;
    problem.layers.push_back(layer);
    parameters += layer.parameter_bytes;
    activations += layer.activation_bytes;
    cut = l + 1 == options.layers ? 0 : layer.activation_bytes * between(random, 1, 2);
    problem.cut_bytes.push_back(cut);
  }

  std::vector<Device> devices;
  for (int t = 0; t < options.types; ++t) {
    const double speed = t == 0 ? 1 : log_between(random, 1, 500);
    devices.push_back({speed, speed < 4 ? 0 : log_between(random, 2e-6, 2e-5)});
    Type type;
    type.name = fmt::format("type{}", t);
    type.price_per_hour = 0.04 * std::pow(speed, 0.9) * log_between(random, 0.7, 1.4);
    type.count = integer_between(random, options.min_count, options.max_count);
    type.gradient_sync = speed < 4 ? GradientSync::kParameterServer : GradientSync::kRing;
    type.bytes_per_second = log_between(random, 1e9, 1e10) * std::pow(speed, 0.3);
    type.latency_seconds = log_between(random, 1e-6, 1e-4);
    if (options.updates) type.step_seconds = 1e-3 / speed;
    if (options.memory) {
      const double all =
          problem.memory_per_parameter_byte * parameters + static_cast<double>(problem.batch) * activations;
      type.memory_bytes = all * log_between(random, 0.05, 1.5);
    }
    problem.types.push_back(type);
  }

  for (int l = 0; l < options.layers; ++l) {
    const LayerSize& layer = problem.layer(l);
    for (const Device& device : devices) {
      const double dense = layer.flops / (2e10 * device.speed * log_between(random, 0.4, 1.0));
      const double reading = layer.sparse_bytes / log_between(random, 1e8, 4e8);
      LayerOnType entry;
      entry.forward = {device.fixed, dense + reading};
      entry.backward = {device.fixed, 2 * dense + reading};
      entry.compute_fraction = fraction(random, options);
      entry.communication_fraction = fraction(random, options);
      if (options.updates) entry.update_seconds = layer.parameter_bytes / (1e9 * device.speed);
      problem.table.push_back(entry);
    }
  }

  problem.links.resize(static_cast<std::size_t>(options.types * options.types));
  for (int from = 0; options.links && from < options.types; ++from) {
    for (int to = from; to < options.types; ++to) {
      const Link link{log_between(random, 1e8, 1e10), log_between(random, 1e-6, 1e-4)};
      problem.links[static_cast<std::size_t>(from * options.types + to)] = link;
      problem.links[static_cast<std::size_t>(to * options.types + from)] = link;
    }
  }
  return problem;
}

Candidate random_candidate(const Problem& problem, std::uint64_t seed) {
  Random random(mix({seed, 0x63616e64ULL}));
  const double change = random.uniform();  // the chance that a stage ends after a layer
  std::vector<std::int64_t> left;
  for (const Type& type : problem.types) left.push_back(type.count);
  Candidate candidate;
  for (int first = 0; first < problem.layer_count();) {
    std::vector<int> choices;
    for (int t = 0; t < problem.type_count(); ++t) {
      const bool same = !candidate.empty() && candidate.back().type == t;
      if (left[static_cast<std::size_t>(t)] > 0 && !(same && problem.cost_model == CostModel::kHeterps)) {
        choices.push_back(t);
      }
    }
    if (choices.empty()) {  // nothing else has a device left: the last stage takes the rest
      if (candidate.empty()) return {{0, problem.layer_count() - 1, 0, 1, false}};
      candidate.back().last = problem.layer_count() - 1;
      break;
    }
    StageChoice stage;
    stage.first = stage.last = first;
    while (stage.last + 1 < problem.layer_count() && random.uniform() > change) ++stage.last;
    stage.type = choices[static_cast<std::size_t>(random.below(choices.size()))];
    stage.replicas = integer_between(random, 1, left[static_cast<std::size_t>(stage.type)]);
    stage.recompute = problem.allow_recompute && random.uniform() < 0.5;
    left[static_cast<std::size_t>(stage.type)] -= stage.replicas;
    candidate.push_back(stage);
    first = stage.last + 1;
  }
  return candidate;
}

Objective random_objective(const Problem& problem, const RandomObjectiveOptions& options, std::uint64_t seed) {
  Random random(mix({seed, 0x6f626a65ULL}));
  // The reference is the candidate that is best at the objective, so that limits are met together.
  std::optional<Evaluation> reference;
  for (std::uint64_t i = 0; i < 30; ++i) {
    const Evaluation seen = evaluate(problem, random_candidate(problem, mix({seed, i})), {});
    if (seen.feasible &&
        (!reference || planning::value(seen, options.criterion) < planning::value(*reference, options.criterion))) {
      reference = seen;
    }
  }
  Objective objective;
  objective.criterion = options.criterion;
  if (!reference) return objective;
  const auto changed = [&](double value) { return value * between(random, 0.5, 1.5); };
  if (options.min_throughput) objective.min_throughput = changed(reference->throughput);
  if (options.max_cost) objective.max_cost = changed(reference->cost);
  if (options.max_hourly_cost) objective.max_hourly_cost = changed(reference->hourly_cost);
  return objective;
}

}  // namespace motley::planning
