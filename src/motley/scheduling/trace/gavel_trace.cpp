#include "motley/scheduling/trace/gavel_trace.h"

#include <algorithm>
#include <optional>

#include "motley/scheduling/trace/trace_lines.h"

namespace motley::scheduling {
namespace {

// Where the fields are.
struct Form {
  std::size_t fields, workers, arrival;
  bool has_deadlines;
};
constexpr Form kEarly = {7, 6, 5, false};
constexpr Form kLate = {9, 5, 8, true};
constexpr std::size_t kModel = 0, kSteps = 4, kWeight = 6, kDeadline = 7;

}  // namespace

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
  const std::vector<std::string> known = options.throughputs->types();
  for (const std::string& type : options.types) {
    if (std::ranges::find(known, type) != known.end()) continue;
    return fail(ErrorCode::kInvalidInput,
                "{}: the table of throughputs has no '{}', of which there are devices; "
                "accepted: {}",
                name, type, fmt::join(known, ", "));
  }
  TraceLines lines(text, name, '\t');
  std::vector<Job> jobs;
  while (const std::optional<TraceLine> line = lines.next()) {
    const std::vector<std::string_view>& cells = line->cells;
    if (cells.size() != kEarly.fields && cells.size() != kLate.fields) return lines.refuse_count(*line, "7 or 9");
    const Form& form = cells.size() == kEarly.fields ? kEarly : kLate;
    const auto number = [&](std::size_t field, double least, double most) {
      const std::optional<double> value = number_in_cell(cells[field]);
      return value && least <= *value && *value <= most ? value : std::nullopt;
    };
    Job job;
    job.name = fmt::format("line {}", line->number);
    const auto workers = number(form.workers, 1, kMostTraceWorkers);
    if (!workers || *workers != std::floor(*workers)) {
      return lines.refuse(line->number, "workers", cells[form.workers], "a whole number from 1 to 1,000,000");
    }
    job.workers = static_cast<int>(*workers);
    const auto steps = number(kSteps, 0, 1e15);
    if (!steps) return lines.refuse(line->number, "steps", cells[kSteps], "a number from 0 to 1e15");
    const double rate =
        options.throughputs->steps_per_second(options.device_type, std::string(cells[kModel]), job.workers);
    if (rate <= 0) {
      return lines.refuse(line->number, "model", cells[kModel],
                          fmt::format("one that the table has for {} workers on '{}'; its types: {}", job.workers,
                                      options.device_type, fmt::join(options.throughputs->types(), ", ")));
    }
    job.duration = *steps / rate;
    for (const std::string& type : options.types) {
      const double there = options.throughputs->steps_per_second(type, std::string(cells[kModel]), job.workers);
      job.type_speeds.push_back(there / rate);
    }
    const auto arrival = number(form.arrival, 0, kLongestSeconds);
    if (!arrival) return lines.refuse(line->number, "arrival", cells[form.arrival], "seconds from 0 to 1e10");
    job.arrival = *arrival;
    if (form.has_deadlines) {
      const auto weight = number(kWeight, 1e-9, 1e9);
      if (!weight) return lines.refuse(line->number, "weight", cells[kWeight], "a number above 0");
      job.utility.weight = *weight;
      const auto deadline = number(kDeadline, -1e9, 1e9);
      if (!deadline) return lines.refuse(line->number, "deadline", cells[kDeadline], "a number; negative: none");
      if (*deadline >= 0) job.deadline = *deadline * job.duration;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace motley::scheduling
