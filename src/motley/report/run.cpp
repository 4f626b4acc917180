#include "motley/report/run.h"

#include <algorithm>

#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/serial/json_fields.h"

namespace motley::report {
namespace {

namespace fs = std::filesystem;

// An event of a Chrome trace, as far as it is looked at here.
struct TraceEvent {
  struct Arguments {
    std::optional<std::int64_t> step;
  };
  std::string ph, name;
  int pid = 0;
  double ts = 0, dur = 0;  // microseconds
  Arguments args;
};
struct Trace {
  std::vector<TraceEvent> events;
};

template <class Archive>
void fields(Archive& archive, TraceEvent::Arguments& arguments) {
  archive.allow_others();
  archive.optional("step", arguments.step);
}

template <class Archive>
void fields(Archive& archive, TraceEvent& event) {
  archive.allow_others();
  archive.required("ph", event.ph);
  archive.optional("name", event.name);
  archive.optional("pid", event.pid);
  archive.optional("ts", event.ts, NumberIs::kFinite);
  archive.optional("dur", event.dur, NumberIs::kFinite);
  archive.optional("args", event.args);
}

template <class Archive>
void fields(Archive& archive, Trace& trace) {
  archive.allow_others();
  archive.required("traceEvents", trace.events);
}

Result<std::vector<TraceSpan>> read_trace(const fs::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  MOTLEY_ASSIGN(const Trace trace, parse_json<Trace>(text, fmt::format("'{}'", file.string())));
  std::vector<TraceSpan> spans;
  for (const TraceEvent& event : trace.events) {
    if (event.ph == "X" && event.args.step) {
      spans.push_back({event.pid, *event.args.step, event.name, event.ts * 1e-6, (event.ts + event.dur) * 1e-6});
    }
  }
  return spans;
}

Result<std::vector<BenchRow>> read_summary(const fs::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  Result<std::vector<BenchRow>> rows = read_rows(text);
  if (!rows) return fail(rows.error().within(fmt::format("'{}'", file.string())));
  return rows;
}

std::optional<TypicalStep> typical(const std::vector<const StepMetrics*>& steps, std::size_t workers) {
  if (steps.empty()) return std::nullopt;
  const auto over = [&](auto value) {
    std::vector<double> values;
    for (const StepMetrics* step : steps) values.push_back(value(*step));
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

Result<Run> read_run(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "run.json")) {
    return fail(ErrorCode::kInvalidInput, "'{}' is not a run directory: it has no file run.json", folder.string());
  }
  Run run;
  const fs::path name = fs::absolute(folder).lexically_normal();
  run.name = (name.has_filename() ? name : name.parent_path()).filename().string();
  MOTLEY_ASSIGN(run.file, train::read_run_file(folder / "run.json"));
  if (const auto& planned = run.file.planned) {
    MOTLEY_ASSIGN(run.prediction, planning::read_prediction(folder, {planned->plan, planned->profile.value_or(""),
                                                                     planned->cluster.value_or("")}));
  }
  const auto is_there = [&](const char* file) { return fs::exists(folder / file); };
  if (is_there("metrics.jsonl")) {
    MOTLEY_ASSIGN(run.metrics, train::read_metrics(folder / "metrics.jsonl"));
  }
  if (is_there("summary.json")) {
    MOTLEY_ASSIGN(run.summary, read_summary(folder / "summary.json"));
  }
  if (is_there("timeline.json")) {
    MOTLEY_ASSIGN(run.trace, read_trace(folder / "timeline.json"));
  }
  if (is_there("job.yaml")) {
    MOTLEY_ASSIGN(run.job, read_file(folder / "job.yaml"));
  }
  return run;
}

std::optional<TypicalStep> compute_optimum(const TypicalStep& step) {
  double samples = 0, samples_per_second = 0, gradient_sync = step.seconds;
  for (const Phases& worker : step.workers) {
    if (worker.samples > 0 && worker.busy() <= 0) return std::nullopt;
    samples += worker.samples;
    samples_per_second += worker.samples > 0 ? worker.samples / worker.busy() : 0;
    gradient_sync = std::min(gradient_sync, worker.gradient_sync);
  }
  if (samples_per_second <= 0) return std::nullopt;
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
    if (step.compute_seconds.size() != workers) continue;
    figures.is_planned = figures.is_planned || step.mode == "plan";
    if (step.baseline || step.mode == "equal") {
      equal.push_back(&step);
    } else {
      own.push_back(&step);
      if (step.step >= kSettling) settled.push_back(&step);
    }
  }
  figures.balanced = typical(settled.size() >= 5 ? settled : own, workers);
  figures.equal = typical(equal, workers);
  if (figures.basis() && !figures.is_planned) figures.optimum = compute_optimum(*figures.basis());
  return figures;
}

std::optional<double> Figures::speedup() const {
  return ratio(equal, balanced);
}

std::optional<double> Figures::possible_speedup() const {
  return ratio(equal, optimum);
}

std::optional<double> Figures::max_wait_fraction() const {
  if (!balanced || balanced->seconds <= 0) return std::nullopt;
  double longest = 0;
  for (const Phases& worker : balanced->workers) longest = std::max(longest, worker.wait);
  return longest / balanced->seconds;
}

}  // namespace motley::report
