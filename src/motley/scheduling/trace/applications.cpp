#include "motley/scheduling/trace/applications.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/text.h"

namespace motley::scheduling {
namespace {

constexpr int kBatches = 50;         // that a job which adapts its batch looks at
constexpr double kTolerance = 1e-8;  // before examples are rounded up

// What no table says: seconds of a restart, and how much slower real runs were, as the artifact's simulator has them.
struct Known {
  std::string_view name;
  double restart_seconds;
  double slowdown;
};
constexpr Known kKnown[] = {{"bert", 120, 1.2},     {"cifar10", 50, 1.8}, {"deepspeech2", 25, 1.2},
                            {"imagenet", 250, 1.2}, {"ncf", 15, 1.5},     {"yolov3", 80, 1.2}};
constexpr double kRestartSeconds = 30;

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::vector<std::string_view> split_cells(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t end = line.find(',');
    cells.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return cells;
    line.remove_prefix(end + 1);
  }
}

// Calls `add` with the numbers of each line in these columns, wherever they are in the file.
template <typename Add>
Status read_columns(const std::filesystem::path& file, const std::vector<std::string_view>& columns, const Add& add) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  std::string_view rest = text;
  std::vector<std::size_t> places;
  for (std::size_t line = 1; !rest.empty(); ++line) {
    const std::size_t end = rest.find('\n');
    std::string_view row = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const std::vector<std::string_view> cells = split_cells(row);
    if (line == 1) {
      for (const std::string_view column : columns) {
        const auto place = std::ranges::find(cells, column) - cells.begin();
        if (place == std::ssize(cells)) {
          return fail(ErrorCode::kInvalidInput, "{}:1: the header is '{}'; accepted: with {}", file.string(), row,
                      column);
        }
        places.push_back(static_cast<std::size_t>(place));
      }
      continue;
    }
    std::vector<double> values;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string_view cell = places[i] < cells.size() ? cells[places[i]] : std::string_view();
      const std::optional<double> value = to_number(cell);
      if (!value || *value < 0) {
        return fail(ErrorCode::kInvalidInput, "{}:{}: {} is '{}'; accepted: a number, 0 or more", file.string(), line,
                    columns[i], cell);
      }
      values.push_back(*value);
    }
    add(values);
  }
  return {};
}

double between(double x, double x0, double y0, double x1, double y1) {
  return x1 == x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

}  // namespace

Result<Applications> Applications::read(const std::filesystem::path& folder, const ClusterTopology& topology) {
  Applications all;
  if (!std::filesystem::is_directory(folder)) {
    return fail(ErrorCode::kInvalidInput, "{}: is no folder; accepted: one with a folder for each application",
                folder.string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto lacks = [&](const std::string& type) {
      return !std::filesystem::exists(entry.path() / fmt::format("placements-{}.csv", type));
    };
    if (!entry.is_directory() || topology.types.empty() || std::ranges::any_of(topology.types, lacks)) continue;
    MOTLEY_ASSIGN(all.applications_[entry.path().filename().string()], read_application(entry.path(), topology));
  }
  if (all.applications_.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "{}: has no application that was measured on {}; accepted: folders with placements-TYPE.csv for each "
                "type of the cluster's devices",
                folder.string(),
                topology.types.empty() ? "devices without a type" : fmt::format("{}", fmt::join(topology.types, ", ")));
  }
  return all;
}

Result<Applications::Application> Applications::read_application(const std::filesystem::path& folder,
                                                                 const ClusterTopology& topology) {
  Application one;
  const std::string name = folder.filename().string();
  const auto* known = std::ranges::find(kKnown, name, &Known::name);
  one.restart_seconds = known == std::end(kKnown) ? kRestartSeconds : known->restart_seconds;
  if (known != std::end(kKnown)) one.slowdown = known->slowdown;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    constexpr std::string_view kBegin = "validation-";
    const std::string stem = entry.path().stem().string();
    if (!stem.starts_with(kBegin) || entry.path().extension() != ".csv") continue;
    MOTLEY_TRY(read_epochs(entry.path(), std::string_view(stem).substr(kBegin.size()), one));
  }
  if (one.epochs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no validation-BATCH.csv; accepted: one for each batch",
                folder.string());
  }
  for (int type = 0; type < topology.type_count(); ++type) {
    Measured& measured = one.types.emplace_back();
    measured.devices = topology.devices(type);
    measured.devices_per_node = std::max(1, topology.largest_node(type));
    MOTLEY_TRY(read_steps(folder, topology.types[index(type)], measured));
    if (measured.steps.contains({1, 1})) continue;
    return fail(ErrorCode::kInvalidInput, "{}: has no placement 1; accepted: with one worker",
                (folder / fmt::format("placements-{}.csv", topology.types[index(type)])).string());
  }
  return one;
}

Status Applications::read_epochs(const std::filesystem::path& file, std::string_view batch, Application& into) {
  const std::optional<double> size = to_number(batch);
  if (!size || *size <= 0) {
    return fail(ErrorCode::kInvalidInput, "{}: its batch is '{}'; accepted: a number above 0", file.string(), batch);
  }
  std::vector<Epoch>& epochs = into.epochs[*size];
  MOTLEY_TRY(read_columns(file, {"progress", "grad_sqr", "grad_var"},
                          [&](const auto& row) { epochs.push_back({row[0], row[1], row[2]}); }));
  if (!epochs.empty()) return {};
  return fail(ErrorCode::kInvalidInput, "{}: has no epoch; accepted: one or more", file.string());
}

// Where several placements have as many nodes and workers, their mean.
Status Applications::read_steps(const std::filesystem::path& folder, const std::string& type, Measured& into) {
  std::map<std::pair<int, int>, std::map<double, std::vector<Step>>> measured;
  const auto add = [&](int nodes, int workers, double batch, double seconds, double sync) {
    if (workers > 0 && batch > 0 && seconds > sync) measured[{nodes, workers}][batch].push_back({batch, seconds, sync});
  };
  MOTLEY_TRY(read_columns(folder / fmt::format("placements-{}.csv", type),
                          {"placement", "local_bsz", "step_time", "sync_time"}, [&](const auto& row) {
                            int nodes = 0, workers = 0;
                            for (auto digits = static_cast<std::int64_t>(row[0]); digits > 0; digits /= 10) {
                              ++nodes;
                              workers += static_cast<int>(digits % 10);
                            }
                            add(nodes, workers, row[1], row[2], row[3]);
                          }));
  std::set<std::pair<int, int>> placed;
  for (const auto& [place, steps] : measured) placed.insert(place);
  const std::filesystem::path scalability = folder / fmt::format("scalability-{}.csv", type);
  if (std::filesystem::exists(scalability)) {
    MOTLEY_TRY(read_columns(scalability, {"num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"},
                            [&](const auto& row) {
                              const std::pair place(static_cast<int>(row[0]), static_cast<int>(row[1]));
                              if (!placed.contains(place)) add(place.first, place.second, row[2], row[3], row[4]);
                            }));
  }
  for (const auto& [place, by_batch] : measured) {
    for (const auto& [batch, steps] : by_batch) {
      Step mean{batch};
      for (const Step& step : steps) {
        mean.seconds += step.seconds / static_cast<double>(steps.size());
        mean.sync += step.sync / static_cast<double>(steps.size());
      }
      into.steps[place].push_back(mean);
      into.least_batch = into.least_batch == 0 ? batch : std::min(into.least_batch, batch);
    }
  }
  return {};
}

std::vector<std::string> Applications::names() const {
  std::vector<std::string> names;
  for (const auto& [name, application] : applications_) names.push_back(name);
  return names;
}

std::size_t Applications::Application::epoch_count() const {
  std::size_t count = epochs.begin()->second.size();
  for (const auto& [batch, rows] : epochs) count = std::min(count, rows.size());
  return count;
}

// By the end of so many epochs, in iterations of the smallest batch: as far as any batch had come.
double Applications::Application::progress_until(std::size_t epoch) const {
  if (epoch == 0) return 0;
  double progress = std::numeric_limits<double>::infinity();
  for (const auto& [batch, rows] : epochs) progress = std::min(progress, rows[epoch - 1].progress);
  return progress;
}

// What an iteration with this batch is worth of those with the smallest, with the gradients of training with the batch
// `seen`.
double Applications::Application::gain(double batch, double seen, std::size_t epoch) const {
  auto upper = epochs.lower_bound(seen);
  if (upper == epochs.end()) --upper;
  const auto lower = upper->first > seen && upper != epochs.begin() ? std::prev(upper) : upper;
  const Epoch &low = lower->second[epoch], &high = upper->second[epoch];
  const double square = between(seen, lower->first, low.square, upper->first, high.square);
  const double variance = between(seen, lower->first, low.variance, upper->first, high.variance);
  const double denominator = variance / (batch / smallest()) + square;
  return denominator > 0 ? (variance + square) / denominator : 1;
}

// A batch above the smallest needs two steps on a single device, since one does not tell the variance of gradients.
Applications::Split Applications::Application::split(double batch, int workers, double least, double most) const {
  const double each = batch / workers;
  Split split;
  split.more_steps = static_cast<int>(std::ceil(each / most - kTolerance)) - 1;
  if (workers == 1 && each > smallest() + kTolerance) split.more_steps = std::max(1, split.more_steps);
  split.more_steps = std::max(0, split.more_steps);
  const int steps = workers * (split.more_steps + 1);
  split.on_device = std::ceil(each / (split.more_steps + 1) - kTolerance);
  split.on_device = std::min(split.on_device, std::floor(largest() / steps + kTolerance));
  split.batch = split.on_device * steps;
  if (split.on_device < least || split.on_device > most) split.batch = 0;
  return split;
}

// Of an iteration.
double Applications::Application::seconds(const Steps& steps, const Split& split, bool is_ideal) const {
  const auto next = std::ranges::lower_bound(steps, split.on_device, {}, &Step::batch);
  const Step& high = next == steps.end() ? steps.back() : *next;
  const Step& low = next == steps.begin() ? high : *std::prev(next);
  const double one = between(split.on_device, low.batch, low.seconds, high.batch, high.seconds);
  const double sync = between(split.on_device, low.batch, low.sync, high.batch, high.sync);
  return ((split.more_steps + 1) * (one - sync) + (is_ideal ? 0 : sync)) * slowdown;
}

// Seconds of the whole training with the best batch in each epoch; 0: no batch fits.
double Applications::Application::adapted(const Steps& steps, double least_batch, int workers, bool is_ideal) const {
  const double least = std::max(smallest(), least_batch * workers);
  std::vector<std::pair<Split, double>> splits;  // and the seconds of an iteration
  for (int i = 0; i < kBatches && least <= largest(); ++i) {
    const double batch = least * std::pow(largest() / least, static_cast<double>(i) / (kBatches - 1));
    const Split one = split(batch, workers, least_batch, steps.back().batch);
    if (one.batch > 0) splits.emplace_back(one, seconds(steps, one, is_ideal));
  }
  if (splits.empty()) return 0;
  double all = 0;
  const auto* now = &splits.front();
  for (std::size_t epoch = 0; epoch < epoch_count(); ++epoch) {
    const double seen = now->first.batch;
    now = &*std::ranges::max_element(splits, {},
                                     [&](const auto& one) { return gain(one.first.batch, seen, epoch) / one.second; });
    const double batch = now->first.batch;
    all += std::max(0.0, progress_until(epoch + 1) - progress_until(epoch)) * now->second / gain(batch, batch, epoch);
  }
  return all;
}

// The same with one batch.
double Applications::Application::with_batch(const Steps& steps, int workers, double batch) const {
  const Split one = split(std::clamp(batch, smallest(), largest()), workers, 1, steps.back().batch);
  if (one.batch <= 0) return 0;
  const double each = seconds(steps, one, false);
  double all = 0;
  for (std::size_t epoch = 0; epoch < epoch_count(); ++epoch) {
    const double progress = std::max(0.0, progress_until(epoch + 1) - progress_until(epoch));
    all += progress * each / gain(one.batch, one.batch, epoch);
  }
  return all;
}

Job Applications::adaptive(const std::string& name) const {
  const Application& application = applications_.at(name);
  Job job;
  job.duration = std::numeric_limits<double>::infinity();
  const auto seconds = [&](const Measured& type, const Steps& steps, int workers, bool is_ideal) {
    return application.adapted(steps, type.least_batch, workers, is_ideal);
  };
  for (const Measured& type : application.types) {
    job.duration = std::min(job.duration, seconds(type, type.steps.at({1, 1}), 1, false));
  }
  auto speeds = std::make_shared<MeasuredSpeeds>();
  for (std::size_t i = 0; i < application.types.size(); ++i) {
    const Measured& type = application.types[i];
    const Steps& alone = type.steps.at({1, 1});
    for (const auto& [place, steps] : type.steps) {
      const auto& [nodes, workers] = place;
      const double took = workers > type.devices ? 0 : seconds(type, steps, workers, false);
      if (took <= 0) continue;
      const double ideal = seconds(type, alone, workers, true);
      speeds->add(static_cast<int>(i), nodes, workers, job.duration / took, ideal > 0 ? job.duration / ideal : 0);
    }
    job.type_speeds.push_back(job.duration / seconds(type, alone, 1, false));
  }
  job.elastic = Elastic{.max_workers = speeds->max_workers(), .restart_cost_seconds = application.restart_seconds};
  job.elastic->measured = std::move(speeds);
  return job;
}

Job Applications::fixed(const std::string& name, int workers, double batch) const {
  const Application& application = applications_.at(name);
  std::vector<double> seconds;
  for (const Measured& type : application.types) {
    const int nodes = on_fewest_nodes(workers, type.devices_per_node).nodes;
    const auto found = type.steps.lower_bound({nodes, workers});
    const bool is_there = workers <= type.devices && found != type.steps.end() && found->first.second >= workers;
    seconds.push_back(is_there ? application.with_batch(found->second, workers, batch) : 0);
  }
  Job job;
  job.workers = workers;
  for (const double one : seconds) {
    if (one > 0) job.duration = job.duration == 0 ? one : std::min(job.duration, one);
  }
  for (const double one : seconds) job.type_speeds.push_back(one > 0 ? job.duration / one : 0);
  job.elastic =
      Elastic{.min_workers = workers, .max_workers = workers, .restart_cost_seconds = application.restart_seconds};
  return job;
}

}  // namespace motley::scheduling
