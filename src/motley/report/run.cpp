#include "motley/report/run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/serial/json_fields.h"
#include "motley/train/records/typical_steps.h"

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

std::optional<TypicalStep> typical(const std::vector<const StepMetrics*>& all, std::size_t workers) {
  if (all.empty()) return std::nullopt;
  const std::vector<const StepMetrics*> steps = train::middle_half(all);
  const auto over = [&](auto value) {
    double sum = 0;
    for (const StepMetrics* step : steps) sum += value(*step);
    return sum / static_cast<double>(steps.size());
  };
  TypicalStep result;
  result.steps = all.size();
  result.seconds = train::typical_seconds(all);
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

std::string format_loss(double loss) {
  return std::abs(loss) < 1e6 ? format_number(loss) : fmt::format("{:.3g}", loss);
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

std::vector<std::int64_t> TypicalStep::whole_samples() const {
  std::vector<std::int64_t> whole;
  std::vector<std::pair<double, std::size_t>> rests;  // what rounding down takes away
  double sum = 0;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    whole.push_back(static_cast<std::int64_t>(std::floor(workers[i].samples)));
    rests.emplace_back(workers[i].samples - std::floor(workers[i].samples), i);
    sum += workers[i].samples;
    given += whole.back();
  }
  std::ranges::stable_sort(rests, std::greater(), &std::pair<double, std::size_t>::first);
  const auto left = static_cast<std::size_t>(std::llround(sum) - given);
  for (std::size_t i = 0; i < std::min(left, rests.size()); ++i) ++whole[rests[i].second];
  return whole;
}

Phases TypicalStep::mean_worker() const {
  Phases mean;
  double count = 0;
  for (const Phases& worker : workers) {
    if (worker.samples <= 0) continue;
    ++count;
    mean.samples += worker.samples;
    mean.load += worker.load;
    mean.compute += worker.compute;
    mean.gradient_sync += worker.gradient_sync;
    mean.wait += worker.wait;
  }
  if (count == 0) return mean;
  return {mean.samples / count, mean.load / count, mean.compute / count, mean.gradient_sync / count, mean.wait / count};
}

std::string worker_name(const Run& run, std::size_t worker) {
  const train::RunWorker& one = run.file.workers[worker];
  return one.name.empty() ? fmt::format("rank {}", one.rank) : one.name;
}

std::int64_t count_steps(const Run& run) {
  if (run.metrics.steps.empty()) return 0;
  // A script may go on at its own step in a new folder.
  if (run.job.empty()) return run.metrics.steps.back().step - run.metrics.steps.front().step + 1;
  return run.metrics.steps.back().step + (run.metrics.steps.front().step == 0 ? 1 : 0);
}

std::string describe_length(const Run& run, const Figures& figures) {
  const StepMetrics& last = run.metrics.steps.back();
  // A script's last steps are not recorded: what the ranks measured of a step is told with a later one.
  std::string text = format_count(count_steps(run), "step") + (run.job.empty() ? " recorded" : "");
  if (run.file.training_samples == 0) return text;
  double samples = 0;  // of the last epoch
  for (const StepMetrics& step : run.metrics.steps) {
    if (step.epoch == last.epoch) samples += count_samples(step, figures);
  }
  const double part = std::min(1.0, samples / static_cast<double>(run.file.training_samples));
  const std::string epochs = fmt::format("{:.4g}", std::round(100 * (static_cast<double>(last.epoch) + part)) / 100);
  return text + fmt::format(", {} epoch{}", epochs, epochs == "1" ? "" : "s");
}

double count_samples(const StepMetrics& step, const Figures& figures) {
  if (step.mode == "plan") return figures.batch;  // its samples are of each stage
  double sum = 0;
  for (const std::int64_t samples : step.samples) sum += static_cast<double>(samples);
  return sum;
}

// Whether a script has told no loss for longer at the end than before: else it is not finite any more.
static bool tells_now_and_then(const std::vector<StepMetrics>& steps) {
  std::size_t longest = 0, silent = 0;
  for (const StepMetrics& step : steps) {
    if (std::isfinite(step.loss)) longest = std::max(longest, std::exchange(silent, 0));
    silent += std::isfinite(step.loss) ? 0 : 1;
  }
  return silent <= longest;
}

std::optional<LossChange> measure_loss(const Run& run) {
  // That of the first step, before anything was learned, and the mean over the last tenth of the steps, of at most 20;
  // a loss that is not finite counts as infinite, but for a script's, which tells it in some of the steps.
  std::vector<StepMetrics> steps = run.metrics.steps;
  if (run.job.empty() && tells_now_and_then(steps)) {
    std::erase_if(steps, [](const StepMetrics& step) { return !std::isfinite(step.loss); });
  }
  const bool is_told = std::ranges::any_of(steps, [](const StepMetrics& step) { return std::isfinite(step.loss); });
  if (!is_told) return std::nullopt;
  const std::size_t count = std::clamp<std::size_t>(steps.size() / 10, 1, 20);
  const auto read_loss = [&](std::size_t i) {
    return std::isfinite(steps[i].loss) ? steps[i].loss : std::numeric_limits<double>::infinity();
  };
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += read_loss(i);
  return LossChange{read_loss(0), sum / static_cast<double>(count), steps.size()};
}

LossChange::Kind LossChange::kind() const {
  constexpr double kFar = 2;       // times as much
  constexpr double kAlike = 0.01;  // a smaller part of it is none
  if (!std::isfinite(last)) return Kind::kNotFinite;
  if (steps < 2) return Kind::kUsual;
  if (first > 0 && last > kFar * first) return Kind::kGrew;
  return std::isfinite(first) && std::abs(last - first) <= kAlike * std::abs(first) ? Kind::kStayed : Kind::kUsual;
}

std::string describe_loss(const LossChange& loss) {
  switch (loss.kind()) {
    case LossChange::Kind::kNotFinite:
      return fmt::format("not finite any more, {} at the beginning", format_loss(loss.first));
    case LossChange::Kind::kGrew:
      return fmt::format("{}, far above the {} at the beginning", format_loss(loss.last), format_loss(loss.first));
    case LossChange::Kind::kStayed:
      return fmt::format("{}, as at the beginning: the network has learned little or nothing", format_loss(loss.last));
    case LossChange::Kind::kUsual:
      break;
  }
  return fmt::format("{}, {} at the beginning", format_loss(loss.last), format_loss(loss.first));
}

double run_seconds(const Run& run) {
  double last = 0;
  for (const StepMetrics& line : run.metrics.steps) last = std::max(last, line.time);
  for (const EvaluationMetrics& line : run.metrics.evaluations) last = std::max(last, line.time);
  for (const EventMetrics& line : run.metrics.events) last = std::max(last, line.time);
  return last;
}

std::vector<Attempt> list_attempts(const Run& run) {
  const std::vector<train::RunAttempt>& recorded = run.file.attempts;
  std::vector<Attempt> attempts;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const bool is_last = i + 1 == recorded.size();
    std::int64_t again = std::numeric_limits<std::int64_t>::max();  // the first step that a later attempt did again
    for (std::size_t later = i + 1; later < recorded.size(); ++later)
      again = std::min(again, recorded[later].first_step);
    const double end = is_last ? run_seconds(run) : recorded[i + 1].after_seconds;
    const std::int64_t last_step = !is_last                    ? again - 1
                                   : run.metrics.steps.empty() ? -1
                                                               : run.metrics.steps.back().step;
    attempts.push_back({recorded[i].started, std::max(0.0, end - recorded[i].after_seconds), recorded[i].first_step,
                        last_step, recorded[i].workers, recorded[i].exit});
  }
  return attempts;
}

std::optional<TypicalStep> compute_optimum(const TypicalStep& step) {
  double samples = 0, samples_per_second = 0, gradient_sync = step.seconds;
  for (const Phases& worker : step.workers) {
    if (worker.samples > 0 && worker.busy() <= 0) return std::nullopt;
    samples += worker.samples;
    samples_per_second += worker.samples > 0 ? worker.samples / worker.busy() : 0;
    if (worker.samples > 0) gradient_sync = std::min(gradient_sync, worker.gradient_sync);
  }
  if (samples_per_second <= 0) return std::nullopt;
  TypicalStep best;
  const double busy = samples / samples_per_second;
  best.seconds = busy + gradient_sync;
  best.steps = step.steps;
  for (const Phases& worker : step.workers) {
    const double scale = worker.samples > 0 ? busy / worker.busy() : 0;
    best.workers.push_back({worker.samples * scale, worker.load * scale, worker.compute * scale,
                            worker.samples > 0 ? gradient_sync : 0, 0});
  }
  return best;
}

Figures compute_figures(const Run& run) {
  const std::size_t workers = run.file.workers.size();
  const train::TypicalSteps steps = train::choose_typical_steps(run.metrics, workers);
  Figures figures;
  figures.is_planned = steps.is_planned;
  figures.is_settled = steps.is_settled;
  figures.balanced = typical(steps.own, workers);
  figures.equal = typical(steps.equal, workers);
  if (figures.basis() && !figures.is_planned && workers > 1) figures.optimum = compute_optimum(*figures.basis());
  if (steps.is_planned && steps.own.back()->predicted_seconds.value_or(0) > 0) {
    figures.predicted = steps.own.back()->predicted_seconds;
  }
  figures.batch = static_cast<double>(run.file.global_batch_size);
  figures.samples = figures.batch;
  if (const auto& basis = figures.basis(); basis && !figures.is_planned) {
    figures.samples = 0;
    for (const Phases& worker : basis->workers) figures.samples += worker.samples;
    if (figures.batch <= 0) figures.batch = figures.samples;
  }
  return figures;
}

std::optional<double> Figures::speedup() const {
  return ratio(equal, balanced);
}

std::optional<double> Figures::possible_speedup() const {
  return ratio(equal, optimum);
}

std::optional<double> Figures::samples_per_second() const {
  if (samples <= 0 || !basis() || basis()->seconds <= 0) return std::nullopt;
  return samples / basis()->seconds;
}

std::optional<double> Figures::max_wait_fraction() const {
  if (!balanced || balanced->seconds <= 0) return std::nullopt;
  double longest = 0;
  for (const Phases& worker : balanced->workers) longest = std::max(longest, worker.wait);
  return longest / balanced->seconds;
}

}  // namespace motley::report
