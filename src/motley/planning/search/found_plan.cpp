#include "motley/planning/search/found_plan.h"

#include <cmath>

#include "motley/base/units.h"

namespace motley::planning {

std::string format_figure(double value) {
  if (!std::isfinite(value)) return "–";
  return std::abs(value) < 1000 ? fmt::format("{:.3g}", value) : format_number(value);
}

int heaviest_layer(const Problem& problem, const StageChoice& stage) {
  int heaviest = stage.first;
  double most = -1;
  for (int layer = stage.first; layer <= stage.last; ++layer) {
    const LayerOnType& times = problem.at(layer, stage.type);
    const double seconds = times.forward.at(problem.profile_batch) + times.backward.at(problem.profile_batch);
    if (seconds > most) {
      most = seconds;
      heaviest = layer;
    }
  }
  return heaviest;
}

std::string explain_impossible(const Problem& problem, const Objective& objective, const Answer& most,
                               const Answer& least) {
  if (!most.best) {
    return fmt::format(
        "no plan for {} fits the devices, even without limits; accepted: more devices, or devices "
        "with more memory",
        problem.model);
  }
  const Evaluation& best = most.evaluation;
  if (objective.min_throughput > best.throughput) {
    std::vector<std::string> used;
    for (int type = 0; type < problem.type_count(); ++type) {
      const std::int64_t count = best.used[static_cast<std::size_t>(type)];
      const Type& of = problem.types[static_cast<std::size_t>(type)];
      if (count > 0) used.push_back(fmt::format("{}{} {}", count == of.count ? "all " : "", count, of.name));
    }
    const StageChoice& stage = (*most.best)[static_cast<std::size_t>(best.bottleneck)];
    const std::string layer = problem.layers[static_cast<std::size_t>(heaviest_layer(problem, stage))].name;
    if (most.proved) {
      return fmt::format("no plan reaches {} samples/s: the best is {} with {}; layer {} is the bottleneck",
                         format_figure(objective.min_throughput), format_figure(best.throughput),
                         fmt::join(used, " and "), layer);
    }
    return fmt::format(
        "no plan reaches {} samples/s: the best found is {} with {}, and none is above {}; layer {} is the bottleneck",
        format_figure(objective.min_throughput), format_figure(best.throughput), fmt::join(used, " and "),
        format_figure(1 / most.bound), layer);
  }
  std::string text = fmt::format(
      "no plan has {}; without these limits, the most is {} samples/s at {} an hour, {} in all", describe(objective),
      format_figure(best.throughput), format_figure(best.hourly_cost), format_figure(best.cost));
  if (least.best) {
    const Evaluation& cheap = least.evaluation;
    text += fmt::format(", and the lowest cost {} at {} samples/s and {} an hour", format_figure(cheap.cost),
                        format_figure(cheap.throughput), format_figure(cheap.hourly_cost));
  }
  return text;
}

}  // namespace motley::planning
