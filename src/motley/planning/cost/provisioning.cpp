// From an assignment of layers to types to counts of devices: stages, and the methods that give each its count.
#include "motley/planning/cost/provisioning.h"

#include <cmath>

namespace motley::planning {
namespace {

// Whole counts within the limits of the types: where a type has too few devices, its stages keep their proportions.
std::optional<Candidate> within_limits(const Problem& problem, const std::vector<Span>& stages,
                                       const std::vector<double>& wanted) {
  Candidate candidate(stages.size());
  for (int t = 0; t < problem.type_count(); ++t) {
    const auto limit = static_cast<double>(problem.type(t).count);
    double members = 0;
    double sum = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      members += stages[s].type == t ? 1 : 0;
      sum += stages[s].type == t ? wanted[s] : 0;
    }
    if (members > limit) return std::nullopt;
    // One device each; what is wanted beyond that is cut to what is left.
    const double left = sum > limit ? (limit - members) / (sum - members) : 1;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].type == t) {
        const auto replicas = static_cast<std::int64_t>(1 + std::floor((wanted[s] - 1) * left));
        candidate[s] = {.first = stages[s].first, .last = stages[s].last, .type = t, .replicas = replicas};
      }
    }
  }
  return candidate;
}

// HeterPS's method looks at rates only; under the pipeline model a stage's rate is that of its computation and pulls.
std::vector<HeterpsStage> compute_rates(const Problem& problem, const std::vector<Span>& spans) {
  std::vector<HeterpsStage> stages;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const Span& span = spans[s];
    if (problem.cost_model == CostModel::kHeterps) {
      stages.push_back(heterps_stage(problem, span.first, span.last, span.type, s == 0 ? -1 : spans[s - 1].type));
      continue;
    }
    const PipelineStage stage = pipeline_stage(problem, span.first, span.last, span.type, -1, static_cast<int>(s),
                                               static_cast<int>(spans.size()));
    stages.push_back({.compute_fixed = (stage.forward.fixed + stage.backward.fixed) / stage.samples,
                      .compute_divided = stage.forward.per_sample + stage.backward.per_sample,
                      .data_fixed = 0,
                      .data_divided = 2 * stage.rows_seconds(stage.samples) / stage.samples});
  }
  return stages;
}

// All stages take the same e seconds a sample, with real counts k_s(e) = max(1, divided / (e - fixed)). Lowest cost:
// the e at which e * price(e), which is convex, has no slope, by Newton's method kept inside a bracket that every step
// shrinks; at most the minimum throughput's e. Other objectives: the smallest e whose counts are within the limits.
// Then rounded up.
std::optional<Candidate> newton(const Problem& problem, const std::vector<Span>& spans, const Objective& objective) {
  const std::vector<HeterpsStage> stages = compute_rates(problem, spans);
  double low = 0;   // no counts reach it
  double high = 0;  // one device each
  for (const HeterpsStage& stage : stages) {
    low = std::max({low, stage.compute_fixed, stage.data_fixed});
    high = std::max(high, stage.seconds(1));
  }
  if (objective.min_throughput > 0) high = std::min(high, 1 / objective.min_throughput);
  if (!(low < high)) {
    low = high;  // one device is as good as many, or none suffices
  }

  struct Counts {
    std::vector<double> devices;
    double slope = 0;      // of e * price(e)
    double curvature = 0;  // its derivative
    bool fit = true;       // within counts of types and the price's cap
  };
  const auto at = [&](double seconds) {
    Counts counts;
    double price = 0;
    std::vector<double> used(problem.types.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Type& type = problem.type(spans[s].type);
      double devices = 1;
      double fixed = 0;
      for (const auto& [part_fixed, part_divided] : {std::pair{stages[s].compute_fixed, stages[s].compute_divided},
                                                     std::pair{stages[s].data_fixed, stages[s].data_divided}}) {
        const double needed = part_divided == 0 ? 0 : part_divided / (seconds - part_fixed);
        if (needed > devices || std::isinf(needed)) {
          devices = needed;
          fixed = part_fixed;
        }
      }
      // d/de of p e k: p where one device is enough, else -p k fixed / (e - fixed).
      const double left = seconds - fixed;
      counts.slope += type.price_per_hour * (devices > 1 ? -devices * fixed / left : 1);
      counts.curvature += type.price_per_hour * (devices > 1 ? 2 * devices * fixed / (left * left) : 0);
      counts.devices.push_back(devices);
      price += type.price_per_hour * devices;
      used[index(spans[s].type)] += devices;
    }
    counts.fit = price <= objective.max_hourly_cost;
    for (std::size_t t = 0; t < used.size(); ++t) {
      counts.fit = counts.fit && used[t] <= static_cast<double>(problem.types[t].count);
    }
    return counts;
  };

  double seconds = high;
  for (int step = 0; step < 100 && high - low > 1e-12 * high; ++step) {
    const Counts counts = at(seconds);
    const bool cost = objective.criterion == Criterion::kMinCost;
    (cost ? counts.slope > 0 : counts.fit) ? high = seconds : low = seconds;
    const double jump = cost && counts.curvature > 0 ? seconds - counts.slope / counts.curvature : kInfinity;
    if (low >= high) break;
    seconds = jump > low && jump < high ? jump : low + (high - low) / 2;
  }
  std::vector<double> wanted = at(high).devices;
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    const auto count = static_cast<double>(problem.max_replicas(spans[s].type));
    // A integer that rounding put a little too high stays.
    wanted[s] = std::min(std::max(1.0, std::ceil(wanted[s] * (1 - kTolerance))), std::max(1.0, count));
  }
  return within_limits(problem, spans, wanted);
}

// Recomputation where a stage's memory needs it and the problem allows it.
void recompute_where_needed(const Problem& problem, Candidate& candidate) {
  if (problem.cost_model != CostModel::kPipeline || !problem.allow_recompute) return;
  const int count = static_cast<int>(candidate.size());
  for (int s = 0; s < count; ++s) {
    StageChoice& choice = candidate[index(s)];
    const double memory = problem.type(choice.type).memory_bytes;
    const PipelineStage stage = pipeline_stage(problem, choice.first, choice.last, choice.type, -1, s, count);
    choice.recompute =
        memory > 0 && stage.memory_bytes(static_cast<double>(choice.replicas), false) > memory * (1 + kTolerance);
  }
}

// `units` devices for every stage of a GPU type, and cpu_per_gpu as many for every stage of a CPU type (those that
// exchange through a parameter server), whose servers are further devices of the stage; the best number of units.
std::optional<Candidate> ratio(const Problem& problem, const std::vector<Span>& spans, const Objective& objective,
                               double cpu_per_gpu, double servers_per_cpu) {
  MOTLEY_INVARIANT(cpu_per_gpu > 0 && servers_per_cpu >= 0, "ratios of {} CPUs a GPU and {} servers a CPU", cpu_per_gpu,
                   servers_per_cpu);
  std::optional<Candidate> best;
  double best_value = kInfinity;
  for (double units = 1;; ++units) {
    std::vector<double> wanted;
    bool saturated = true;  // no stage gets more from here on
    for (const Span& span : spans) {
      const Type& type = problem.type(span.type);
      const bool cpu = type.gradient_sync == GradientSync::kParameterServer;
      const auto most = static_cast<double>(std::max<std::int64_t>(1, problem.max_replicas(span.type)));
      wanted.push_back(std::clamp(std::round(cpu ? units * cpu_per_gpu * (1 + servers_per_cpu) : units), 1.0, most));
      saturated = saturated && wanted.back() >= most;
    }
    std::optional<Candidate> candidate = within_limits(problem, spans, wanted);
    if (!candidate) return std::nullopt;
    recompute_where_needed(problem, *candidate);
    if (const double found = value(evaluate(problem, *candidate, objective), objective.criterion); found < best_value) {
      best = std::move(candidate);
      best_value = found;
    }
    if (saturated) return best;
  }
}

}  // namespace

std::vector<Span> list_stages(const Problem& problem, const std::vector<int>& type_of_layer,
                              const std::vector<bool>& cut_before) {
  std::vector<Span> stages;
  for (std::size_t layer = 0; layer < type_of_layer.size(); ++layer) {
    const bool cut = problem.cost_model == CostModel::kPipeline && !cut_before.empty() && cut_before[layer];
    const auto here = static_cast<int>(layer);
    if (stages.empty() || stages.back().type != type_of_layer[layer] || cut) {
      stages.push_back({.first = here, .last = here, .type = type_of_layer[layer]});
    }
    stages.back().last = here;
  }
  return stages;
}

std::optional<Candidate> provision(const Problem& problem, const std::vector<Span>& stages, const Objective& objective,
                                   const ProvisioningOptions& options) {
  switch (options.method) {
    case Provisioning::kExact:
      return problem.cost_model == CostModel::kHeterps
                 ? exact_heterps_counts(problem, stages, objective)
                 : exact_pipeline_counts(problem, stages, objective, options.max_boxes);
    case Provisioning::kNewton: {
      std::optional<Candidate> candidate = newton(problem, stages, objective);
      if (candidate) recompute_where_needed(problem, *candidate);
      return candidate && evaluate(problem, *candidate, objective).feasible ? candidate : std::nullopt;
    }
    case Provisioning::kStaRatio:
      return ratio(problem, stages, objective, options.cpu_per_gpu, 0);
    case Provisioning::kStaPsRatio:
      return ratio(problem, stages, objective, options.cpu_per_gpu, options.servers_per_cpu);
  }
  return std::nullopt;
}

}  // namespace motley::planning
