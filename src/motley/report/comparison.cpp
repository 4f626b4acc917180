#include "motley/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "motley/base/units.h"
#include "motley/report/run_curves.h"

namespace motley::report {
namespace {

namespace fs = std::filesystem;
using Better = ComparedFigure::Better;
using Figure = std::function<std::optional<double>(const ComparedRun&)>;
using Format = std::function<std::string(double)>;

std::optional<StepTime> step_time(const Figures& figures) {
  const auto& step = figures.basis();
  if (!step) return std::nullopt;
  const Phases mean = step->mean_worker();
  return StepTime{step->seconds,      mean.compute, mean.load,
                  mean.gradient_sync, mean.wait,    std::max(0.0, step->seconds - mean.total())};
}

// Names by which the runs are told apart: their folders', or the paths where two folders have one name.
std::vector<std::string> name_runs(const std::vector<fs::path>& folders, const std::vector<Run>& runs) {
  std::multiset<std::string> taken;
  for (const Run& run : runs) taken.insert(run.name);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    names.push_back(taken.count(runs[i].name) == 1 ? runs[i].name : folders[i].lexically_normal().string());
  }
  return names;
}

// --- Whether the runs do the same

// job.yaml of a run directory is written by Motley: a key a line, those of a section indented below its name.
std::vector<std::pair<std::string, std::string>> read_keys(const std::string& job) {
  std::vector<std::pair<std::string, std::string>> keys;
  std::string section;
  for (std::size_t at = 0; at < job.size();) {
    const std::size_t end = std::min(job.find('\n', at), job.size());
    const std::string line = job.substr(at, end - at);
    at = end + 1;
    const std::size_t begin = line.find_first_not_of(' ');
    const std::size_t colon = line.find(':');
    if (begin == std::string::npos || line[begin] == '#' || colon == std::string::npos) continue;
    std::string value = line.substr(colon + 1);
    value.erase(0, std::min(value.find_first_not_of(' '), value.size()));
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
    const std::string key = line.substr(begin, colon - begin);
    if (begin == 0) section = value.empty() ? key + "." : "";
    if (begin > 0 || section.empty()) keys.emplace_back((begin > 0 ? section : "") + key, value);
  }
  return keys;
}

// Keys of the sections model and data that do not say what is learned, and from what.
constexpr std::string_view kWays[] = {"model.dtype", "data.server", "data.token_file", "data.prefetch", "data.threads"};

// What the runs train, as far as they say it: then less time or a better result says little of how they do it.
struct Sameness {
  bool model = true, data = true, batch = true;
  bool trains_same() const { return model && data; }
};

Sameness compare_work(const std::vector<ComparedRun>& runs) {
  Sameness same;
  for (const ComparedRun& one : runs) {
    if (one.figures.batch > 0 && runs[0].figures.batch > 0) same.batch &= one.figures.batch == runs[0].figures.batch;
    if (one.run.job.empty() || runs[0].run.job.empty()) continue;
    for (const auto& [section, is_same] : {std::pair("model", &same.model), {"data", &same.data}}) {
      const auto work = [section = std::string(section)](const Run& run) {
        auto found = read_keys(run.job);
        std::erase_if(found, [&](const auto& key) {
          return !(key.first == section || key.first.starts_with(section + ".")) ||
                 std::ranges::find(kWays, key.first) != std::end(kWays);
        });
        return found;
      };
      *is_same &= work(one.run) == work(runs[0].run);
    }
  }
  return same;
}

// What is compared all the same, where they do not.
std::string describe_work(const std::vector<ComparedRun>& runs, const Sameness& same) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const char* key) {
    std::vector<std::string> values;
    for (const ComparedRun& one : runs) {
      for (const auto& [name, value] : read_keys(one.run.job)) {
        if (name == key && std::ranges::find(values, value) == values.end()) values.push_back(value);
      }
    }
    parts.push_back(values.size() < 2 ? what : fmt::format("{} ({})", what, fmt::join(values, ", ")));
  };
  if (!same.model) add("models", "model.name");
  if (!same.data) add("data", "data.name");
  if (!same.batch) add("batches", "global_batch_size");
  return fmt::format(
      "The runs do not train the same, as their {} differ: times and results that depend on that say little of which "
      "way of training is better, and are not marked.",
      fmt::join(parts, " and their "));
}

// --- Figures

// The last evaluation that has the value.
std::optional<double> last_value(const Run& run, std::optional<double> train::EvaluationFigures::* value) {
  std::optional<double> last;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    if (line.evaluation.*value) last = line.evaluation.*value;
  }
  return last;
}

std::optional<double> best_accuracy(const Run& run) {
  std::optional<double> best;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    if (line.evaluation.accuracy) best = std::max(best.value_or(0), *line.evaluation.accuracy);
  }
  return best;
}

std::optional<double> seconds_to_accuracy(const Run& run, double accuracy) {
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    if (line.evaluation.accuracy && *line.evaluation.accuracy >= accuracy) return line.time;
  }
  return std::nullopt;
}

// The best accuracy that every run reached; none where one was not evaluated.
std::optional<double> common_accuracy(const std::vector<ComparedRun>& runs) {
  std::optional<double> common;
  for (const ComparedRun& one : runs) {
    const std::optional<double> best = best_accuracy(one.run);
    if (!best) return std::nullopt;
    common = std::min(common.value_or(1), *best);
  }
  return common;
}

std::optional<double> training_loss(const Run& run) {
  Smoothing smoothing(run.metrics.steps.size());
  std::optional<double> last;
  for (const StepMetrics& step : run.metrics.steps) last = smoothing.add(step.loss);
  return last;
}

double sent_bytes(const StepMetrics& step) {
  double sum = 0;
  for (const double bytes : step.sent_bytes) sum += bytes;
  if (!step.embedding) return sum;
  for (const auto* more : {&step.embedding->pulled_bytes, &step.embedding->pushed_bytes}) {
    for (const double bytes : *more) sum += bytes;
  }
  return sum;
}

class FigureTable {
 public:
  explicit FigureTable(const std::vector<ComparedRun>& runs) : runs_(runs) {}

  // A row where one of the runs has the figure.
  void add(const char* group, const std::string& name, Better better, const Figure& figure, const Format& format) {
    ComparedFigure row{group, name, {}, {}, better};
    for (const ComparedRun& run : runs_) {
      std::optional<double> value = figure(run);
      if (value && !std::isfinite(*value)) value.reset();
      row.values.push_back(value);
      row.texts.push_back(value ? format(*value) : "–");
    }
    if (std::ranges::any_of(row.values, [](const auto& value) { return value.has_value(); })) {
      rows.push_back(std::move(row));
    }
  }

  std::vector<ComparedFigure> rows;

 private:
  const std::vector<ComparedRun>& runs_;
};

std::string whole_number(double value) {
  return fmt::format("{:.0f}", value);
}
std::string percentage(double value) {
  return format_percent(value, 2);
}
std::string four_digits(double value) {
  return fmt::format("{:.4g}", value);
}

void add_results(FigureTable& table, const std::vector<ComparedRun>& runs, const Sameness& same) {
  const Better more = same.data ? Better::kMore : Better::kNeither, less = same.data ? Better::kLess : Better::kNeither;
  const auto evaluated = [](std::optional<double> train::EvaluationFigures::* value) {
    return [value](const ComparedRun& one) { return last_value(one.run, value); };
  };
  table.add("Result", "test accuracy", more, evaluated(&train::EvaluationFigures::accuracy), percentage);
  table.add("Result", "test AUC", more, evaluated(&train::EvaluationFigures::auc), four_digits);
  table.add("Result", "test loss", less, evaluated(&train::EvaluationFigures::loss), four_digits);
  table.add(
      "Result", "training loss, smoothed", less, [](const ComparedRun& one) { return training_loss(one.run); },
      four_digits);
  if (const auto accuracy = same.data ? common_accuracy(runs) : std::nullopt) {
    table.add(
        "Result", fmt::format("time to {} test accuracy", percentage(*accuracy)), same.model ? less : Better::kNeither,
        [accuracy](const ComparedRun& one) { return seconds_to_accuracy(one.run, *accuracy); }, format_seconds);
  }
}

// Of runs of different lengths, or that train something else, less in all is not better.
Better whole_run(const std::vector<ComparedRun>& runs, const Sameness& same) {
  const bool alike = same.trains_same() && same.batch && std::ranges::all_of(runs, [&](const ComparedRun& one) {
                       return one.run.metrics.steps.size() == runs[0].run.metrics.steps.size();
                     });
  return alike ? Better::kLess : Better::kNeither;
}

void add_speed(FigureTable& table, const std::vector<ComparedRun>& runs, const Sameness& same) {
  const Better less_of_a_step = same.trains_same() && same.batch ? Better::kLess : Better::kNeither;
  table.add(
      "Speed", "samples per second", same.trains_same() ? Better::kMore : Better::kNeither,
      [](const ComparedRun& one) { return one.figures.samples_per_second(); }, format_number);
  table.add(
      "Speed", "duration", whole_run(runs, same), [](const ComparedRun& one) { return run_seconds(one.run); },
      format_seconds);
  for (const auto& [name, part] : {std::pair("a step", &StepTime::total),
                                   {"– computing", &StepTime::compute},
                                   {"– loading data", &StepTime::load},
                                   {"– gradient synchronisation", &StepTime::gradient_sync},
                                   {"– waiting for others", &StepTime::wait},
                                   {"– other", &StepTime::other}}) {
    table.add(
        "Speed", name, less_of_a_step,
        [part = part](const ComparedRun& one) { return one.time ? std::optional((*one.time).*part) : std::nullopt; },
        format_seconds);
  }
}

void add_size(FigureTable& table, const std::vector<ComparedRun>& runs, const Sameness& same) {
  double all_sent = 0;  // where nothing goes over a network, nothing is said of it
  for (const ComparedRun& one : runs) {
    for (const StepMetrics& step : one.run.metrics.steps) all_sent += sent_bytes(step);
  }
  const auto sent = [all_sent](const ComparedRun& one) -> std::optional<double> {
    double sum = 0;
    for (const StepMetrics& step : one.run.metrics.steps) sum += sent_bytes(step);
    return one.run.metrics.steps.empty() || all_sent == 0 ? std::nullopt : std::optional(sum);
  };
  table.add(
      "Size", "workers", Better::kNeither, [](const ComparedRun& one) { return std::ssize(one.run.file.workers); },
      whole_number);
  table.add(
      "Size", "samples of a step", Better::kNeither,
      [](const ComparedRun& one) { return one.figures.batch > 0 ? std::optional(one.figures.batch) : std::nullopt; },
      whole_number);
  table.add(
      "Size", "steps", Better::kNeither, [](const ComparedRun& one) { return std::ssize(one.run.metrics.steps); },
      whole_number);
  table.add("Size", "sent over the network", whole_run(runs, same), sent, format_bytes);
  table.add(
      "Size", "sent a step", same.trains_same() && same.batch ? Better::kLess : Better::kNeither,
      [sent](const ComparedRun& one) {
        const auto all = sent(one);
        return all ? std::optional(*all / static_cast<double>(one.run.metrics.steps.size())) : std::nullopt;
      },
      format_bytes);
  table.add(
      "Size", "cost", whole_run(runs, same),
      [](const ComparedRun& one) -> std::optional<double> {
        const auto& price = one.run.file.price_per_hour;
        return price ? std::optional(*price * run_seconds(one.run) / 3600) : std::nullopt;
      },
      [](double value) { return fmt::format("{:.3g}", value); });
}

// --- What the jobs differ in

// How a script's run did what is a key of a job.
std::vector<std::pair<std::string, std::string>> list_settings(const Run& run) {
  const auto& steps = run.metrics.steps;
  return {{"(batch_split)", steps.empty() ? "" : steps.back().mode},
          {"(global_batch_size)", fmt::format("{}", run.file.global_batch_size)},
          {"(gradient_sync)", run.file.gradient_sync}};
}

std::vector<std::pair<std::string, std::string>> list_facts(const Run& run) {
  std::vector<std::string> kinds;  // those that are side by side and alike counted together
  std::vector<int> counts;
  for (const train::RunWorker& worker : run.file.workers) {
    // Behind a semicolon stands how it went in this run.
    const std::string how = worker.emulated ? worker.emulated->substr(0, worker.emulated->find(';')) : "";
    const std::string kind = worker.device + (how.empty() ? "" : fmt::format(" (emulated: {})", how));
    if (kinds.empty() || kinds.back() != kind) {
      kinds.push_back(kind);
      counts.push_back(0);
    }
    ++counts.back();
  }
  std::vector<std::string> workers;
  for (std::size_t i = 0; i < kinds.size(); ++i) workers.push_back(fmt::format("{} × {}", counts[i], kinds[i]));
  return {{"(workers' devices)", fmt::format("{}", fmt::join(workers, ", "))},
          {"(machine)", run.file.machine},
          {"(Motley)", run.file.motley_version}};
}

std::vector<std::vector<std::string>> find_differences(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> keys;  // in the order of the files
  std::map<std::string, std::vector<std::string>> values;
  const auto add = [&](std::size_t run, const std::vector<std::pair<std::string, std::string>>& settings) {
    for (const auto& [key, value] : settings) {
      const auto [found, is_new] = values.try_emplace(key, runs.size(), "–");
      if (is_new) keys.push_back(key);
      found->second[run] = value.empty() ? "(empty)" : value;
    }
  };
  for (std::size_t i = 0; i < runs.size(); ++i) add(i, read_keys(runs[i].run.job));
  const bool has_script = std::ranges::any_of(runs, [](const ComparedRun& one) { return one.run.job.empty(); });
  for (std::size_t i = 0; i < runs.size() && has_script; ++i) add(i, list_settings(runs[i].run));
  for (std::size_t i = 0; i < runs.size(); ++i) add(i, list_facts(runs[i].run));
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : keys) {
    const std::vector<std::string>& row = values[key];
    // Of a script's run the job is not known, so that it differs in none of its keys.
    std::set<std::string> different;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (key.front() == '(' || !runs[i].run.job.empty()) different.insert(row[i]);
    }
    if (different.size() < 2) continue;
    rows.push_back({key});
    rows.back().insert(rows.back().end(), row.begin(), row.end());
  }
  return rows;
}

// --- What got faster, and why

constexpr double kAlike = 0.02;  // a smaller part of a step is not worth a word

// A step's time, or that of a thousand samples, where the runs' batches differ.
struct Unit {
  double first = 1, second = 1;  // by which the times of the two runs are multiplied
  const char* name = "a step";
};

Unit choose_unit(const ComparedRun& first, const ComparedRun& second) {
  const double a = first.figures.batch, b = second.figures.batch;
  if (a <= 0 || b <= 0 || a == b) return {};
  return {1000 / a, 1000 / b, "for 1,000 samples"};
}

// "18 ms less waiting for others, 3 ms more computing": what a difference consists of, the largest first.
std::string describe_parts(const StepTime& first, const StepTime& second, const Unit& unit) {
  const double total = std::max(first.total * unit.first, second.total * unit.second);
  std::vector<std::pair<double, const char*>> parts;
  for (const auto& [part, name] : {std::pair(&StepTime::compute, "computing"),
                                   {&StepTime::load, "loading data"},
                                   {&StepTime::gradient_sync, "gradient synchronisation"},
                                   {&StepTime::wait, "waiting for others"},
                                   {&StepTime::other, "for all else"}}) {
    const double more = second.*part * unit.second - first.*part * unit.first;
    if (std::abs(more) > kAlike * total) parts.emplace_back(more, name);
  }
  std::ranges::sort(parts, std::greater(), [](const auto& part) { return std::abs(part.first); });
  std::vector<std::string> words;
  for (const auto& [more, name] : parts) {
    words.push_back(fmt::format("{} {} {}", format_seconds(std::abs(more)), more < 0 ? "less" : "more", name));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// The worker for which the others wait: that which is busy longest.
std::size_t find_slowest(const TypicalStep& step) {
  std::size_t slowest = 0;
  for (std::size_t i = 1; i < step.workers.size(); ++i) {
    if (step.workers[i].busy() > step.workers[slowest].busy()) slowest = i;
  }
  return slowest;
}

std::string describe_wait(const ComparedRun& one) {
  const TypicalStep& step = *one.figures.basis();
  const std::size_t slowest = find_slowest(step);
  return fmt::format("{} in {}, which takes {} for {}", worker_name(one.run, slowest), one.name,
                     format_seconds(step.workers[slowest].busy()),
                     format_count(step.whole_samples()[slowest], "sample"));
}

// Seconds of all workers together for a sample; none of a plan, where a sample goes through several of them.
std::optional<double> seconds_per_sample(const Figures& figures) {
  double seconds = 0, samples = 0;
  for (const Phases& worker : figures.basis()->workers) {
    seconds += worker.compute;
    samples += worker.samples;
  }
  return figures.is_planned || samples <= 0 ? std::nullopt : std::optional(seconds / samples);
}

std::string describe_gradient_sync(const ComparedRun& one) {
  const std::string& method = one.run.file.gradient_sync;
  return method.starts_with("none") ? one.name + " has no gradients to synchronise"
                                    : fmt::format("{} synchronises gradients by {}", one.name, method);
}

// What stands behind the parts that changed.
std::string describe_causes(const ComparedRun& first, const ComparedRun& second, const Unit& unit) {
  const StepTime &a = *first.time, &b = *second.time;
  const double least = kAlike * std::max(a.total * unit.first, b.total * unit.second);
  const auto differs = [&](double StepTime::* part) {
    return std::abs(b.*part * unit.second - a.*part * unit.first) > least;
  };
  std::string text;
  if (differs(&StepTime::wait) && first.run.file.workers.size() > 1 && second.run.file.workers.size() > 1) {
    text += fmt::format(" Busy longest is {}, and {}.", describe_wait(first), describe_wait(second));
  }
  if (differs(&StepTime::compute)) {
    const auto before = seconds_per_sample(first.figures), after = seconds_per_sample(second.figures);
    if (before && after && std::abs(*after / *before - 1) > kAlike) {
      text += fmt::format(" Computing a sample takes a worker {} instead of {}, in the mean.", format_seconds(*after),
                          format_seconds(*before));
    } else if (first.run.file.workers.size() != second.run.file.workers.size()) {
      text += fmt::format(" {} instead of {} share the batch.",
                          format_count(std::ssize(second.run.file.workers), "worker"), first.run.file.workers.size());
    }
  }
  if (differs(&StepTime::gradient_sync) && first.run.file.gradient_sync != second.run.file.gradient_sync) {
    text += fmt::format(" {}, and {}.", describe_gradient_sync(second), describe_gradient_sync(first));
  }
  return text;
}

// What each takes, where they do not train the same.
std::string list_speed(const ComparedRun& first, const ComparedRun& second) {
  const Unit unit = choose_unit(first, second);
  return fmt::format("{} takes {} {}, and {} takes {}.", second.name, format_seconds(second.time->total * unit.second),
                     unit.name, first.name, format_seconds(first.time->total * unit.first));
}

std::string describe_speed(const ComparedRun& first, const ComparedRun& second) {
  const Unit unit = choose_unit(first, second);
  const double before = first.time->total * unit.first, after = second.time->total * unit.second;
  const std::string parts = describe_parts(*first.time, *second.time, unit);
  if (std::abs(after / before - 1) <= kAlike) {
    return fmt::format("{} is as fast as {}: {} and {} {}{}.", second.name, first.name, format_seconds(after),
                       format_seconds(before), unit.name, parts.empty() ? "" : ", with " + parts) +
           describe_causes(first, second, unit);
  }
  return fmt::format("{} takes {} {} instead of the {} of {} ({:.2f}× as {}){}{}.", second.name, format_seconds(after),
                     unit.name, format_seconds(before), first.name, std::max(before / after, after / before),
                     after < before ? "fast" : "slow", parts.empty() ? "" : ": ", parts) +
         describe_causes(first, second, unit);
}

std::vector<std::string> explain(const std::vector<ComparedRun>& runs, const Sameness& same) {
  std::vector<std::string> sentences;
  if (!same.trains_same()) sentences.push_back(describe_work(runs, same));
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[0].time && runs[i].time && runs[0].time->total > 0 && runs[i].time->total > 0) {
      sentences.push_back(same.trains_same() ? describe_speed(runs[0], runs[i]) : list_speed(runs[0], runs[i]));
    }
  }
  if (const auto accuracy = same.data ? common_accuracy(runs) : std::nullopt) {
    std::vector<std::pair<double, std::string>> order;
    for (const ComparedRun& one : runs) {
      const double seconds = *seconds_to_accuracy(one.run, *accuracy);
      order.emplace_back(seconds, fmt::format("{} after {}", one.name, format_seconds(seconds)));
    }
    std::ranges::stable_sort(order, {}, &std::pair<double, std::string>::first);
    std::vector<std::string> words;
    for (const auto& [seconds, text] : order) words.push_back(text);
    sentences.push_back(fmt::format("{} test accuracy, which all of them reach, comes in {}.", percentage(*accuracy),
                                    fmt::join(words, ", in ")));
  }
  return sentences;
}

}  // namespace

std::vector<bool> ComparedFigure::best() const {
  std::vector<bool> best(values.size(), false);
  const bool differ = std::ranges::any_of(texts, [&](const std::string& text) { return text != texts.front(); });
  const auto known = std::ranges::count_if(values, [](const auto& value) { return value.has_value(); });
  if (better == Better::kNeither || !differ || known < 2) return best;
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) continue;
    const bool is_better =
        first && (better == Better::kMore ? *values[i] > *values[*first] : *values[i] < *values[*first]);
    if (!first || is_better) first = i;
  }
  for (std::size_t i = 0; first && i < values.size(); ++i) best[i] = texts[i] == texts[*first];
  return best;
}

Result<Comparison> compare_runs(const std::vector<fs::path>& folders) {
  if (folders.size() < 2) {
    return fail(ErrorCode::kInvalidInput, "RUN: {}; accepted: two runs or more",
                format_count(std::ssize(folders), "run"));
  }
  std::vector<Run> runs;
  std::set<fs::path> seen;
  for (const fs::path& folder : folders) {
    MOTLEY_ASSIGN(runs.emplace_back(), read_run(folder));
    if (!seen.insert(fs::weakly_canonical(folder)).second) {
      return fail(ErrorCode::kInvalidInput, "RUN: '{}' is named twice; accepted: different runs", folder.string());
    }
  }
  const std::vector<std::string> names = name_runs(folders, runs);
  Comparison comparison;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ComparedRun one{names[i], folders[i], std::move(runs[i]), {}, {}};
    one.figures = compute_figures(one.run);
    one.time = step_time(one.figures);
    comparison.runs.push_back(std::move(one));
  }
  FigureTable table(comparison.runs);
  const Sameness same = compare_work(comparison.runs);
  add_results(table, comparison.runs, same);
  add_speed(table, comparison.runs, same);
  add_size(table, comparison.runs, same);
  comparison.figures = std::move(table.rows);
  comparison.differences = find_differences(comparison.runs);
  comparison.sentences = explain(comparison.runs, same);
  return comparison;
}

}  // namespace motley::report
