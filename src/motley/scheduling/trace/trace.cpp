#include "motley/scheduling/trace/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>

#include "motley/base/os/file.h"
#include "motley/scheduling/trace/gavel_trace.h"
#include "motley/scheduling/trace/profiled_job.h"
#include "motley/scheduling/trace/renamed_keys.h"
#include "motley/scheduling/trace/trace_lines.h"

namespace motley::scheduling {
namespace {

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
    {"min_workers", 1, kMaxTraceWorkers, true, "an integer from 1 to the workers that it asks for",
     [](Job& job, double value) { ensure_elastic(job).min_workers = static_cast<int>(value); }},
    {"max_workers", 1, kMaxTraceWorkers, true, "an integer from the workers that it asks for to 1,000,000",
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

bool is_optional(std::string_view column) {
  return column == kProfile ||
         std::ranges::find(kOptionalColumns, column, &OptionalColumn::name) != std::end(kOptionalColumns) ||
         (column.starts_with(kSpeed) && column.size() > kSpeed.size());
}

bool is_ours(const TraceLine& header) {
  const std::vector<std::string_view> ours = TraceLines::split(kOurs.header, ',');
  if (header.cells.size() < ours.size() || !std::equal(ours.begin(), ours.end(), header.cells.begin())) return false;
  for (auto cell = header.cells.begin() + static_cast<std::ptrdiff_t>(ours.size()); cell != header.cells.end();
       ++cell) {
    if (!is_optional(*cell) || std::find(header.cells.begin(), cell, *cell) != cell) return false;
  }
  return true;
}

const Columns* detect_format(const TraceLine& header) {
  const auto found = std::ranges::find_if(
      kFormats, [&](const Columns& format) { return TraceLines::split(format.header, ',') == header.cells; });
  if (found == std::end(kFormats)) return is_ours(header) ? &kOurs : nullptr;
  return &*found;
}

Status read_optional(const TraceLines& lines, const TraceLine& header, const TraceLine& line, Job& job) {
  for (const OptionalColumn& column : kOptionalColumns) {
    const auto at = std::ranges::find(header.cells, column.name);
    if (at == header.cells.end()) continue;
    const std::string_view cell = line.cells[static_cast<std::size_t>(at - header.cells.begin())];
    const std::optional<double> value =
        cell == "inf" && std::isinf(column.upper) ? std::optional(column.upper) : number_in_cell(cell);
    if (!value || *value < column.lower || *value > column.upper ||
        (column.is_integer && *value != std::floor(*value))) {
      return lines.refuse(line.number, column.name, cell, column.accepted);
    }
    column.set(job, *value);
    if (job.elastic && (job.elastic->min_workers > job.workers || job.elastic->max_workers < job.workers)) {
      return lines.refuse(line.number, column.name, cell, column.accepted);
    }
  }
  return {};
}

// Profiles beside the trace, each read once.
class Profiles {
 public:
  Profiles(const std::filesystem::path& trace, const std::vector<std::string>& types)
      : folder_(trace.parent_path()), types_(types) {}

  Status apply(const TraceLines& lines, const TraceLine& header, const TraceLine& line, Job& job) {
    const auto at = std::ranges::find(header.cells, kProfile);
    if (at == header.cells.end()) return {};
    const std::string cell(line.cells[static_cast<std::size_t>(at - header.cells.begin())]);
    if (cell.empty()) return {};
    if (!known_.contains(cell)) {
      auto profile = model::read_profile(folder_ / cell);
      if (!profile) return lines.refuse(line.number, kProfile, cell, "a profile.json: " + profile.error().message);
      known_.emplace(cell, profiled_job(*profile));
    }
    const ProfiledJob& profiled = known_.at(cell);
    ensure_elastic(job).compute_seconds = profiled.compute_seconds;
    ensure_elastic(job).gradient_bytes = profiled.gradient_bytes;
    std::vector<std::string> has;
    for (const auto& [type, speed] : profiled.speeds) has.push_back(type);
    bool is_any = types_.empty();
    for (const std::string& type : types_) {
      const auto found = std::ranges::find(has, type);
      is_any = is_any || found != has.end();
      job.type_speeds.push_back(
          found == has.end() ? 0 : profiled.speeds[static_cast<std::size_t>(found - has.begin())].second);
    }
    if (is_any) return {};
    return lines.refuse(line.number, kProfile, cell,
                        fmt::format("one with a device of the cluster's ({}); it has {}", fmt::join(types_, ", "),
                                    fmt::join(has, ", ")));
  }

 private:
  std::filesystem::path folder_;
  const std::vector<std::string>& types_;
  std::map<std::string, ProfiledJob> known_;
};

// Where there are types of devices, and the trace has a column of speeds: one for each type.
Status read_speeds(const TraceLines& lines, const TraceLine& header, const TraceLine& line,
                   const std::vector<std::string>& types, Job& job) {
  if (types.empty() || std::ranges::none_of(header.cells, [](auto cell) { return cell.starts_with(kSpeed); })) {
    return {};
  }
  job.type_speeds.clear();
  for (const std::string& type : types) {
    const std::string column = std::string(kSpeed) + type;
    const auto at = std::ranges::find(header.cells, column);
    if (at == header.cells.end()) {
      return lines.refuse(header.number, column, "", "this column, too, since there are devices of this type");
    }
    const std::string_view cell = line.cells[static_cast<std::size_t>(at - header.cells.begin())];
    const std::optional<double> speed = number_in_cell(cell);
    if (!speed || *speed < 0 || *speed > 1e6) {
      return lines.refuse(line.number, column, cell, "a number from 0, where the job cannot run there, to 1e6");
    }
    job.type_speeds.push_back(*speed);
  }
  if (std::ranges::max(job.type_speeds) <= 0) {
    return lines.refuse(line.number, std::string(kSpeed) + types.back(), "0", "a type on which the job can run");
  }
  return {};
}

// Seconds of a cell, or nothing.
std::optional<double> seconds(std::string_view cell) {
  const std::optional<double> value = number_in_cell(cell);
  return value && 0 <= *value && *value <= kLongestSeconds ? value : std::nullopt;
}

// Nothing for a line that is left out.
Result<std::optional<Job>> make_job(const TraceLines& lines, const Columns& format, const TraceLine& header,
                                    const TraceLine& line, const std::vector<std::string>& types, Profiles& profiles) {
  const auto cell = [&](std::string_view column) {
    return line.cells[static_cast<std::size_t>(std::ranges::find(header.cells, column) - header.cells.begin())];
  };
  constexpr std::string_view kSeconds = "seconds from 0 to 1e10";
  if (format.has_others && (cell(format.workers) == "0" || cell(format.begin).empty())) return std::nullopt;
  Job job;
  job.name = format.name.empty() ? fmt::format("line {}", line.number) : std::string(cell(format.name));
  if (job.name.empty()) {
    return lines.refuse(line.number, format.name, "", "a name");
  }
  const std::string_view arrival = cell(format.arrival);
  const std::optional<double> arrives = format.arrives_at_instant ? instant(arrival) : seconds(arrival);
  if (!arrives || *arrives < 0 || *arrives > kLongestSeconds) {
    return lines.refuse(line.number, format.arrival, arrival,
                        format.arrives_at_instant ? "a date and time such as 2017-10-09 07:01:55" : kSeconds);
  }
  job.arrival = *arrives;
  if (format.duration.empty()) {
    const std::optional<double> begin = seconds(cell(format.begin));
    if (!begin) return lines.refuse(line.number, format.begin, cell(format.begin), kSeconds);
    const std::optional<double> end = seconds(cell(format.end));
    if (!end || *end < *begin) {
      return lines.refuse(line.number, format.end, cell(format.end), fmt::format("seconds from {} on", *begin));
    }
    job.duration = *end - *begin;
  } else {
    const std::optional<double> duration = seconds(cell(format.duration));
    if (!duration) return lines.refuse(line.number, format.duration, cell(format.duration), kSeconds);
    job.duration = *duration;
  }
  const std::optional<double> workers = number_in_cell(cell(format.workers));
  if (!workers || *workers < 1 || *workers > kMaxTraceWorkers || *workers != std::floor(*workers)) {
    return lines.refuse(line.number, format.workers, cell(format.workers), "an integer from 1 to 1,000,000");
  }
  job.workers = static_cast<int>(*workers);
  MOTLEY_TRY(read_optional(lines, header, line, job));
  MOTLEY_TRY(profiles.apply(lines, header, line, job));
  MOTLEY_TRY(read_speeds(lines, header, line, types, job));
  return job;
}

Result<std::vector<Job>> parse_table(std::string_view text, const std::string& name, const TraceOptions& options) {
  TraceLines lines(text, name, ',');
  const std::optional<TraceLine> header = lines.next();
  const Columns* format = header ? detect_format(*header) : nullptr;
  if (format == nullptr) {
    std::vector<std::string_view> headers;
    for (const Columns& known : kFormats) headers.push_back(known.header);
    std::vector<std::string_view> more;
    for (const OptionalColumn& column : kOptionalColumns) more.push_back(column.name);
    std::vector<RenamedKey> renamed;
    for (const RenamedKey& column : kRenamedColumns) {
      if (header && std::ranges::find(header->cells, column.before) != header->cells.end()) renamed.push_back(column);
    }
    return fail(
        ErrorCode::kInvalidInput,
        "{}: the first line is none of a trace that is known here{}; accepted: {}, the last one also with any of {} "
        "profile and speed_TYPE behind it; or Gavel's lines, with tabs",
        name, renamed.empty() ? "" : fmt::format(" ({})", to_string(renamed)), fmt::join(headers, " or "),
        fmt::join(more, ","));
  }
  std::vector<Job> jobs;
  Profiles profiles(name, options.types);
  std::unordered_map<std::string, std::size_t> known;  // lines, by job
  while (const std::optional<TraceLine> line = lines.next()) {
    if (line->cells.size() != header->cells.size()) {
      return lines.refuse_count(*line, fmt::format("{}", header->cells.size()));
    }
    MOTLEY_ASSIGN(std::optional<Job> job, make_job(lines, *format, *header, *line, options.types, profiles));
    if (!job) continue;
    const auto [first, is_new] = known.emplace(job->name, line->number);
    if (!is_new) {
      return lines.refuse(line->number, format->name, job->name,
                          fmt::format("a name for each job; line {} has this one", first->second));
    }
    jobs.push_back(std::move(*job));
  }
  return jobs;
}

}  // namespace

Result<std::vector<Job>> parse_trace(std::string_view text, const std::string& name, const TraceOptions& options) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // that spreadsheets put first
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  MOTLEY_ASSIGN(std::vector<Job> jobs,
                is_gavel_trace(text) ? parse_gavel_trace(text, name, options) : parse_table(text, name, options));
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

std::string format_trace(const std::vector<Job>& jobs, const std::vector<std::string>& types) {
  const bool has_speeds = std::ranges::any_of(jobs, [](const Job& job) { return !job.type_speeds.empty(); });
  std::string text = std::string(kOurs.header) +
                     ",min_workers,max_workers,compute_seconds,gradient_bytes,restart_cost_seconds,deadline_seconds";
  const bool has_costs = std::ranges::any_of(jobs, [](const Job& job) { return job.device_hour_cost > 0; });
  if (has_costs) text += ",device_hour_cost";
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
    for (std::size_t type = 0; has_speeds && type < types.size(); ++type) {
      text += fmt::format(",{}", job.speed_on(static_cast<int>(type)));
    }
    text += '\n';
  }
  return text;
}

}  // namespace motley::scheduling
