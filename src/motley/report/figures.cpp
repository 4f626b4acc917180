#include "motley/report/figures.h"

#include <algorithm>

#include "motley/base/statistics.h"

namespace motley::report {
namespace {

std::optional<TypicalStep> typical(const std::vector<const StepMetrics*>& steps, std::size_t workers) {
  if (steps.empty()) {
    return std::nullopt;
  }
  const auto over = [&](auto value) {
    std::vector<double> values;
    for (const StepMetrics* step : steps) {
      values.push_back(value(*step));
    }
    return median(std::move(values));
  };
  TypicalStep result;
  result.steps = steps.size();
  result.seconds = over([](const StepMetrics& step) { return step.step_seconds; });
  for (std::size_t i = 0; i < workers; ++i) {
    const auto part = [&](auto member) {
      return over([&](const StepMetrics& step) {
        const auto& values = step.*member;
        return i < values.size() ? static_cast<double>(values[i]) : 0.0;
      });
    };
    const auto rows = [&](std::vector<double> EmbeddingMetrics::* values) {
      return over([&](const StepMetrics& step) {
        return step.embedding && i < (*step.embedding.*values).size() ? (*step.embedding.*values)[i] : 0.0;
      });
    };
    result.workers.push_back({part(&StepMetrics::samples), part(&StepMetrics::load_seconds),
                              part(&StepMetrics::compute_seconds), part(&StepMetrics::gradient_sync_seconds),
                              part(&StepMetrics::wait_seconds)});
    result.traffic.push_back({part(&StepMetrics::sent_bytes), rows(&EmbeddingMetrics::pulled_bytes),
                              rows(&EmbeddingMetrics::pushed_bytes), rows(&EmbeddingMetrics::wait_seconds),
                              rows(&EmbeddingMetrics::needed), rows(&EmbeddingMetrics::cached),
                              rows(&EmbeddingMetrics::prefetched)});
  }
  return result;
}

std::optional<double> ratio(const std::optional<TypicalStep>& over, const std::optional<TypicalStep>& under) {
  return over && under && under->seconds > 0 ? std::optional(over->seconds / under->seconds) : std::nullopt;
}

}  // namespace

std::optional<TypicalStep> compute_optimum(const TypicalStep& step) {
  double samples = 0, samples_per_second = 0, gradient_sync = step.seconds;
  for (const Phases& worker : step.workers) {
    if (worker.samples > 0 && worker.busy() <= 0) {
      return std::nullopt;
    }
    samples += worker.samples;
    samples_per_second += worker.samples > 0 ? worker.samples / worker.busy() : 0;
    gradient_sync = std::min(gradient_sync, worker.gradient_sync);
  }
  if (samples_per_second <= 0) {
    return std::nullopt;
  }
  TypicalStep best;
  const double busy = samples / samples_per_second;
  best.seconds = busy + gradient_sync;
  best.steps = step.steps;
  for (const Phases& worker : step.workers) {
    const double scale = worker.samples > 0 ? busy / worker.busy() : 0;
    best.workers.push_back({worker.samples * scale, worker.load * scale, worker.compute * scale, gradient_sync, 0});
  }
  return best;
}

Figures compute_figures(const Run& run) {
  const std::size_t workers = run.file.workers.size();
  Figures figures;
  std::vector<const StepMetrics*> own, settled, equal;
  for (const StepMetrics& step : run.metrics.steps) {
    // After a resume with another number of workers, only steps of the present ones compare.
    if (step.compute_seconds.size() != workers) {
      continue;
    }
    figures.is_planned = figures.is_planned || step.mode == "plan";
    if (step.baseline || step.mode == "equal") {
      equal.push_back(&step);
    } else {
      own.push_back(&step);
      if (step.step >= kSettling) {
        settled.push_back(&step);
      }
    }
  }
  figures.balanced = typical(settled.size() >= 5 ? settled : own, workers);
  figures.equal = typical(equal, workers);
  if (const auto& basis = figures.balanced ? figures.balanced : figures.equal; basis && !figures.is_planned) {
    figures.optimum = compute_optimum(*basis);
  }
  return figures;
}

std::optional<double> Figures::speedup() const {
  return ratio(equal, balanced);
}

std::optional<double> Figures::possible_speedup() const {
  return ratio(equal, optimum);
}

std::optional<double> Figures::max_wait_fraction() const {
  if (!balanced || balanced->seconds <= 0) {
    return std::nullopt;
  }
  double worst = 0;
  for (const Phases& worker : balanced->workers) {
    worst = std::max(worst, worker.wait / balanced->seconds);
  }
  return worst;
}

}  // namespace motley::report
