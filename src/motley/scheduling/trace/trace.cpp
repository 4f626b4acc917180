#include "motley/scheduling/trace/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <unordered_map>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/serial/renamed_keys.h"

namespace motley::scheduling {
namespace {

constexpr double kLongestSeconds = 1e10;  // of an arrival or a duration
constexpr int kMaxWorkers = 1'000'000;
constexpr std::string_view kSeconds = "seconds from 0 to 1e10";

// --- Lines of cells

using Cells = std::vector<std::string_view>;

Cells split(std::string_view line, char separator) {
  Cells cells;
  while (true) {
    const std::size_t end = line.find(separator);
    cells.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return cells;
    line.remove_prefix(end + 1);
  }
}

// Finite numbers only, and nothing behind them.
std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// A line of a trace, its cells by their columns, and what is said of one that is wrong.
struct Row {
  const std::string& file;
  std::size_t line = 0;  // from 1
  Cells cells;
  const Cells* columns = nullptr;

  bool has(std::string_view column) const { return std::ranges::find(*columns, column) != columns->end(); }
  // Empty where there is no such column.
  std::string_view at(std::string_view column) const {
    const auto place = std::ranges::find(*columns, column) - columns->begin();
    return place < std::ssize(*columns) ? cells[static_cast<std::size_t>(place)] : std::string_view();
  }
  tl::unexpected<Error> refuse(std::string_view column, std::string_view accepted) const {
    return fail(ErrorCode::kInvalidInput, "{}:{}: {} is '{}'; accepted: {}", file, line, column, at(column), accepted);
  }
  tl::unexpected<Error> refuse_count(std::string_view accepted) const {
    return fail(ErrorCode::kInvalidInput, "{}:{}: has {} fields; accepted: {}", file, line, cells.size(), accepted);
  }
  Result<double> number(std::string_view column, double lower, double upper, std::string_view accepted) const {
    const std::optional<double> value = parse_number(at(column));
    if (!value || *value < lower || *value > upper) return refuse(column, accepted);
    return *value;
  }
  Result<int> workers(std::string_view column) const {
    constexpr std::string_view kAccepted = "an integer from 1 to 1,000,000";
    MOTLEY_ASSIGN(const double value, number(column, 1, kMaxWorkers, kAccepted));
    if (value != std::floor(value)) return refuse(column, kAccepted);
    return static_cast<int>(value);
  }
};

class Lines {
 public:
  Lines(std::string_view text, const std::string& file, char separator)
      : rest_(text), file_(file), separator_(separator) {}

  // The next line that is not empty.
  std::optional<Row> next(const Cells* columns = nullptr) {
    while (!rest_.empty()) {
      const std::size_t end = rest_.find('\n');
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) return Row{file_, number_, split(line, separator_), columns};
    }
    return std::nullopt;
  }

 private:
  std::string_view rest_;
  const std::string& file_;
  char separator_;
  std::size_t number_ = 0;
};

// --- Tables with a header

// "2017-10-09 07:01:55", in seconds since 1970 where no second leaps.
std::optional<double> instant(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool is_digit = '0' <= text[i] && text[i] <= '9';
    if (kForm[i] == 'd' ? !is_digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto field = [&](std::size_t begin, std::size_t size) {
    int value = 0;
    std::from_chars(text.data() + begin, text.data() + begin + size, value);
    return value;
  };
  const std::chrono::year_month_day day{std::chrono::year(field(0, 4)), std::chrono::month(unsigned(field(5, 2))),
                                        std::chrono::day(unsigned(field(8, 2)))};
  const int hour = field(11, 2);
  const int minute = field(14, 2);
  const int second = field(17, 2);
  if (!day.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  const std::chrono::sys_days days = day;
  return static_cast<double>(days.time_since_epoch().count()) * 86400 + hour * 3600 + minute * 60 + second;
}

// Where a format has what a job needs.
struct Columns {
  std::string_view header;
  std::string_view name;  // empty: jobs have none, and are called by their lines
  std::string_view arrival;
  std::string_view duration;  // or, where that is empty, between
  std::string_view begin, end;
  std::string_view workers;
  bool arrives_at_instant = false;  // a date and time instead of seconds
  // Whether it has jobs without devices and jobs that never began, which are left out.
  bool has_others = false;
};

constexpr Columns kFormats[] = {
    {.header = "timestamp,duration,num_gpus,gpu_time,cluster",
     .arrival = "timestamp",
     .duration = "duration",
     .workers = "num_gpus",
     .arrives_at_instant = true},
    {.header = "job_id,submission_time,duration,num_gpu",
     .name = "job_id",
     .arrival = "submission_time",
     .duration = "duration",
     .workers = "num_gpu"},
    {.header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
               "scheduled_time",
     .name = "name",
     .arrival = "creation_time",
     .begin = "scheduled_time",
     .end = "deletion_time",
     .workers = "num_gpu",
     .has_others = true},
    {.header = "job,arrival_seconds,duration_seconds,workers",
     .name = "job",
     .arrival = "arrival_seconds",
     .duration = "duration_seconds",
     .workers = "workers"},
};

constexpr const Columns& kOurs = kFormats[3];

// Of a job that may have more or fewer workers; it may always have what it asks for.
Elastic& ensure_elastic(Job& job) {
  if (!job.elastic) {
    job.elastic.emplace();
    job.elastic->min_workers = job.elastic->max_workers = job.workers;
  }
  return *job.elastic;
}

// What may follow in ours, in any order, each column or none.
struct OptionalColumn {
  std::string_view name;
  double lower;
  double upper;
  bool is_integer;
  std::string_view accepted;
  void (*set)(Job&, double);
};
constexpr OptionalColumn kOptionalColumns[] = {
    {"min_workers", 1, kMaxWorkers, true, "an integer from 1 to the workers that it asks for",
     [](Job& job, double value) { ensure_elastic(job).min_workers = static_cast<int>(value); }},
    {"max_workers", 1, kMaxWorkers, true, "an integer from the workers that it asks for to 1,000,000",
     [](Job& job, double value) { ensure_elastic(job).max_workers = static_cast<int>(value); }},
    {"compute_seconds", 1e-9, kLongestSeconds, false, "seconds of an iteration, from 1e-9 to 1e10",
     [](Job& job, double value) { ensure_elastic(job).compute_seconds = value; }},
    {"gradient_bytes", 0, 1e15, false, "bytes from 0 to 1e15",
     [](Job& job, double value) { ensure_elastic(job).gradient_bytes = value; }},
    {"restart_cost_seconds", 0, kLongestSeconds, false, "seconds from 0 to 1e10",
     [](Job& job, double value) { ensure_elastic(job).restart_cost_seconds = value; }},
    {"device_hour_cost", 0, 1e9, false, "what a device costs in an hour, from 0 to 1e9",
     [](Job& job, double value) { job.device_hour_cost = value; }},
    {"deadline_seconds", 0, std::numeric_limits<double>::infinity(), false, "seconds from its arrival, or inf",
     [](Job& job, double value) { job.deadline = value; }},
};

constexpr std::string_view kSpeed = "speed_";  // and a type
constexpr std::string_view kProfile = "profile";
constexpr RenamedKey kRenamedColumns[] = {
    {"least", "min_workers"}, {"most", "max_workers"}, {"restart_seconds", "restart_cost_seconds"}};

bool is_optional(std::string_view column) {
  return column == kProfile ||
         std::ranges::find(kOptionalColumns, column, &OptionalColumn::name) != std::end(kOptionalColumns) ||
         std::ranges::find(kRequestFields, column, &RequestField::name) != std::end(kRequestFields) ||
         (column.starts_with(kSpeed) && column.size() > kSpeed.size());
}

const Columns* detect_format(const Cells& header) {
  for (const Columns& format : kFormats) {
    const Cells known = split(format.header, ',');
    if (!std::ranges::equal(known, header | std::views::take(known.size()))) continue;
    const auto more = header | std::views::drop(known.size());
    const bool is_each_once = std::set(more.begin(), more.end()).size() == more.size();
    if (more.empty() || (&format == &kOurs && is_each_once && std::ranges::all_of(more, is_optional))) return &format;
  }
  return nullptr;
}

tl::unexpected<Error> refuse_header(const std::string& file, const Cells& header) {
  std::vector<std::string_view> headers, more;
  for (const Columns& known : kFormats) headers.push_back(known.header);
  for (const OptionalColumn& column : kOptionalColumns) more.push_back(column.name);
  for (const RequestField& column : kRequestFields) more.push_back(column.name);
  std::vector<RenamedKey> renamed;
  for (const RenamedKey& column : kRenamedColumns) {
    if (std::ranges::find(header, column.before) != header.end()) renamed.push_back(column);
  }
  return fail(ErrorCode::kInvalidInput,
              "{}: the first line is none of a trace that is known here{}; accepted: {}, the last one also with any of "
              "{} profile and speed_TYPE behind it; or Gavel's lines, with tabs",
              file, renamed.empty() ? "" : fmt::format(" ({})", to_string(renamed)), fmt::join(headers, " or "),
              fmt::join(more, ","));
}

Status read_optional(const Row& row, Job& job) {
  for (const OptionalColumn& column : kOptionalColumns) {
    if (!row.has(column.name)) continue;
    double value = column.upper;
    if (row.at(column.name) != "inf" || std::isfinite(column.upper)) {
      MOTLEY_ASSIGN(value, row.number(column.name, column.lower, column.upper, column.accepted));
    }
    if (column.is_integer && value != std::floor(value)) return row.refuse(column.name, column.accepted);
    column.set(job, value);
    if (job.elastic && (job.elastic->min_workers > job.workers || job.elastic->max_workers < job.workers)) {
      return row.refuse(column.name, column.accepted);
    }
  }
  return {};
}

Status read_requests(const Row& row, const std::vector<std::string>& resources, Job& job) {
  for (const RequestField& column : kRequestFields) {
    if (!row.has(column.name)) continue;
    MOTLEY_ASSIGN(const double value, row.number(column.name, 0, column.most, column.accepted));
    if (value == 0) continue;
    const auto place = static_cast<std::size_t>(std::ranges::find(resources, column.resource) - resources.begin());
    if (place == resources.size()) {
      return row.refuse(column.name, fmt::format("0, or with what each node has (--node-{})", column.resource));
    }
    job.requests.resize(resources.size());
    job.requests[place] = value;
  }
  return {};
}

// Profiles beside the trace, each read once.
using Profiles = std::map<std::string, ProfiledJob, std::less<>>;

Status read_profile(const Row& row, const TraceOptions& options, Profiles& known, Job& job) {
  const std::string_view name = row.at(kProfile);
  if (name.empty()) return {};
  auto found = known.find(name);
  if (found == known.end()) {
    if (!options.read_profile) return row.refuse(kProfile, "nothing, as no profiles are read here");
    auto profile = options.read_profile(std::filesystem::path(row.file).parent_path() / name);
    if (!profile) return row.refuse(kProfile, "a profile.json: " + profile.error().message);
    found = known.emplace(name, std::move(*profile)).first;
  }
  const ProfiledJob& profiled = found->second;
  ensure_elastic(job).compute_seconds = profiled.compute_seconds;
  ensure_elastic(job).gradient_bytes = profiled.gradient_bytes;
  std::vector<std::string> has;
  for (const auto& [type, speed] : profiled.speeds) has.push_back(type);
  bool is_any = options.types.empty();
  for (const std::string& type : options.types) {
    const auto place = static_cast<std::size_t>(std::ranges::find(has, type) - has.begin());
    is_any = is_any || place < has.size();
    job.type_speeds.push_back(place < has.size() ? profiled.speeds[place].second : 0);
  }
  if (is_any) return {};
  return row.refuse(kProfile, fmt::format("one with a device of the cluster's ({}); it has {}",
                                          fmt::join(options.types, ", "), fmt::join(has, ", ")));
}

// Where there are types of devices, and the trace has a column of speeds: one for each type.
Status read_speeds(const Row& header, const Row& row, const std::vector<std::string>& types, Job& job) {
  if (types.empty() || std::ranges::none_of(header.cells, [](auto cell) { return cell.starts_with(kSpeed); })) {
    return {};
  }
  job.type_speeds.clear();
  for (const std::string& type : types) {
    const std::string column = std::string(kSpeed) + type;
    if (!row.has(column)) return header.refuse(column, "this column, too, since there are devices of this type");
    MOTLEY_ASSIGN(const double speed,
                  row.number(column, 0, 1e6, "a number from 0, where the job cannot run there, to 1e6"));
    job.type_speeds.push_back(speed);
  }
  if (std::ranges::max(job.type_speeds) > 0) return {};
  return row.refuse(std::string(kSpeed) + types.back(), "a type on which the job can run");
}

Result<double> read_arrival(const Row& row, const Columns& format) {
  if (!format.arrives_at_instant) return row.number(format.arrival, 0, kLongestSeconds, kSeconds);
  const std::optional<double> arrival = instant(row.at(format.arrival));
  if (arrival && 0 <= *arrival && *arrival <= kLongestSeconds) return *arrival;
  return row.refuse(format.arrival, "a date and time such as 2017-10-09 07:01:55");
}

Result<double> read_duration(const Row& row, const Columns& format) {
  if (!format.duration.empty()) return row.number(format.duration, 0, kLongestSeconds, kSeconds);
  MOTLEY_ASSIGN(const double begin, row.number(format.begin, 0, kLongestSeconds, kSeconds));
  MOTLEY_ASSIGN(const double end,
                row.number(format.end, begin, kLongestSeconds, fmt::format("seconds from {} on", begin)));
  return end - begin;
}

Result<std::vector<Job>> parse_table(std::string_view text, const std::string& name, const TraceOptions& options) {
  Lines lines(text, name, ',');
  Row header = lines.next().value_or(Row{name});
  header.columns = &header.cells;
  const Columns* format = detect_format(header.cells);
  if (format == nullptr) return refuse_header(name, header.cells);
  std::vector<Job> jobs;
  Profiles profiles;
  std::unordered_map<std::string, std::size_t> known;  // lines, by job
  while (const std::optional<Row> row = lines.next(&header.cells)) {
    if (row->cells.size() != header.cells.size()) return row->refuse_count(fmt::format("{}", header.cells.size()));
    if (format->has_others && (row->at(format->workers) == "0" || row->at(format->begin).empty())) continue;
    Job job;
    job.name = format->name.empty() ? fmt::format("line {}", row->line) : std::string(row->at(format->name));
    if (job.name.empty()) return row->refuse(format->name, "a name");
    MOTLEY_ASSIGN(job.arrival, read_arrival(*row, *format));
    MOTLEY_ASSIGN(job.duration, read_duration(*row, *format));
    MOTLEY_ASSIGN(job.workers, row->workers(format->workers));
    MOTLEY_TRY(read_optional(*row, job));
    MOTLEY_TRY(read_requests(*row, options.resources, job));
    MOTLEY_TRY(read_profile(*row, options, profiles, job));
    MOTLEY_TRY(read_speeds(header, *row, options.types, job));
    const auto [first, is_new] = known.emplace(job.name, row->line);
    if (!is_new) {
      return row->refuse(format->name, fmt::format("a name for each job; line {} has this one", first->second));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// --- Gavel's

const Cells kEarlyColumns = {"model", "command", "flag", "needs_data", "steps", "arrival", "workers"};
const Cells kLateColumns = {"model",   "command", "flag",     "needs_data", "steps",
                            "workers", "weight",  "deadline", "arrival"};

bool is_gavel_trace(std::string_view text) {
  return text.substr(0, text.find('\n')).find('\t') != std::string_view::npos;
}

Result<std::vector<Job>> parse_gavel_trace(std::string_view text, const std::string& name,
                                           const TraceOptions& options) {
  if (options.throughputs == nullptr) {
    return fail(ErrorCode::kInvalidInput,
                "{}: is a trace of Gavel's, which has steps and no seconds; accepted: with a table of throughputs "
                "(--throughputs)",
                name);
  }
  const Throughputs& table = *options.throughputs;
  const std::vector<std::string> known = table.types();
  for (const std::string& type : options.types) {
    if (std::ranges::find(known, type) != known.end()) continue;
    return fail(ErrorCode::kInvalidInput,
                "{}: the table of throughputs has no '{}', of which there are devices; accepted: {}", name, type,
                fmt::join(known, ", "));
  }
  Lines lines(text, name, '\t');
  std::vector<Job> jobs;
  while (std::optional<Row> row = lines.next()) {
    row->columns = row->cells.size() == kEarlyColumns.size() ? &kEarlyColumns : &kLateColumns;
    if (row->cells.size() != row->columns->size()) return row->refuse_count("7 or 9");
    Job job;
    job.name = fmt::format("line {}", row->line);
    MOTLEY_ASSIGN(job.workers, row->workers("workers"));
    MOTLEY_ASSIGN(const double steps, row->number("steps", 0, 1e15, "a number from 0 to 1e15"));
    const std::string model(row->at("model"));
    const double rate = table.steps_per_second(options.device_type, model, job.workers);
    if (rate <= 0) {
      return row->refuse("model",
                         fmt::format("one that the table has for {} on '{}'; its types: {}",
                                     format_count(job.workers, "worker"), options.device_type, fmt::join(known, ", ")));
    }
    job.duration = steps / rate;
    for (const std::string& type : options.types) {
      job.type_speeds.push_back(table.steps_per_second(type, model, job.workers) / rate);
    }
    MOTLEY_ASSIGN(job.arrival, row->number("arrival", 0, kLongestSeconds, kSeconds));
    if (row->has("deadline")) {
      MOTLEY_ASSIGN(job.utility.weight, row->number("weight", 1e-9, 1e9, "a number above 0"));
      MOTLEY_ASSIGN(const double deadline, row->number("deadline", -1e9, 1e9, "a number; negative: none"));
      if (deadline >= 0) job.deadline = deadline * job.duration;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// --- Sia's

constexpr std::string_view kSiaHeader = "name,time,application,num_replicas,batch_size";

Result<std::vector<Job>> parse_sia_workload(std::string_view text, const std::string& name,
                                            const TraceOptions& options) {
  if (options.applications == nullptr) {
    return fail(ErrorCode::kInvalidInput,
                "{}: is a workload of Sia's, which has applications and no seconds; accepted: with the folder of their "
                "tables (--throughputs)",
                name);
  }
  Lines lines(text, name, ',');
  const Row header = lines.next().value_or(Row{name});
  std::vector<Job> jobs;
  std::unordered_map<std::string, Job> adaptive;
  while (const std::optional<Row> row = lines.next(&header.cells)) {
    if (row->cells.size() != header.cells.size()) return row->refuse_count(fmt::format("{}", header.cells.size()));
    const std::string application(row->at("application"));
    if (!options.applications->has(application)) {
      return row->refuse("application", fmt::format("{}", fmt::join(options.applications->names(), ", ")));
    }
    MOTLEY_ASSIGN(const double arrival, row->number("time", 0, kLongestSeconds, kSeconds));
    MOTLEY_ASSIGN(const int workers, row->workers("num_replicas"));
    MOTLEY_ASSIGN(const double batch, row->number("batch_size", 1, 1e9, "a number from 1 to 1e9"));
    Job job;
    if (options.is_adaptive) {
      auto& known = adaptive[application];
      if (!known.elastic) known = options.applications->adaptive(application);
      job = known;
    } else {
      job = options.applications->fixed(application, workers, batch);
    }
    if (job.duration <= 0)
      return row->refuse("num_replicas", "as many as were measured on a type of the cluster's devices");
    job.name = std::string(row->at("name"));
    job.application = application;
    job.arrival = arrival;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::vector<Job>> parse_any(std::string_view text, const std::string& name, const TraceOptions& options) {
  if (is_gavel_trace(text)) return parse_gavel_trace(text, name, options);
  return text.starts_with(kSiaHeader) ? parse_sia_workload(text, name, options) : parse_table(text, name, options);
}

}  // namespace

Result<std::vector<Job>> parse_trace(std::string_view text, const std::string& name, const TraceOptions& options) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // that spreadsheets put first
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  MOTLEY_ASSIGN(std::vector<Job> jobs, parse_any(text, name, options));
  std::ranges::stable_sort(jobs, {}, &Job::arrival);
  if (!jobs.empty()) {
    const double begin = jobs.front().arrival;
    for (Job& job : jobs) job.arrival -= begin;
  }
  return jobs;
}

Result<std::vector<Job>> read_trace(const std::filesystem::path& file, const TraceOptions& options) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return parse_trace(text, file.string(), options);
}

bool fits_format(const std::vector<Job>& jobs) {
  return std::ranges::all_of(jobs, [](const Job& job) {
    const Elastic elastic = job.elastic.value_or(Elastic());
    return job.utility == Utility() && job.iterations == 0 && elastic.reserve == 0 && std::isinf(elastic.reduce_rate) &&
           elastic.speedup.empty() && elastic.measured == nullptr;
  });
}

std::string format_trace(const std::vector<Job>& jobs, const std::vector<std::string>& types,
                         const std::vector<std::string>& resources) {
  const bool has_speeds = std::ranges::any_of(jobs, [](const Job& job) { return !job.type_speeds.empty(); });
  std::string text = std::string(kOurs.header) +
                     ",min_workers,max_workers,compute_seconds,gradient_bytes,restart_cost_seconds,deadline_seconds";
  const bool has_costs = std::ranges::any_of(jobs, [](const Job& job) { return job.device_hour_cost > 0; });
  if (has_costs) text += ",device_hour_cost";
  for (const std::string& resource : resources) {
    text += fmt::format(",{}", std::ranges::find(kRequestFields, resource, &RequestField::resource)->name);
  }
  for (std::size_t type = 0; has_speeds && type < types.size(); ++type)
    text += fmt::format(",{}{}", kSpeed, types[type]);
  text += '\n';
  for (const Job& job : jobs) {
    Job copy = job;
    const Elastic& elastic = ensure_elastic(copy);
    text += fmt::format("{},{},{},{},{},{},{},{},{},{}", job.name, job.arrival, job.duration, job.workers,
                        elastic.min_workers, elastic.max_workers, elastic.compute_seconds, elastic.gradient_bytes,
                        elastic.restart_cost_seconds, job.deadline);
    if (has_costs) text += fmt::format(",{}", job.device_hour_cost);
    for (std::size_t i = 0; i < resources.size(); ++i) {
      text += fmt::format(",{}", job.requests.empty() ? 0 : job.requests[i]);
    }
    for (std::size_t type = 0; has_speeds && type < types.size(); ++type) {
      text += fmt::format(",{}", job.speed_on(static_cast<int>(type)));
    }
    text += '\n';
  }
  return text;
}

}  // namespace motley::scheduling
