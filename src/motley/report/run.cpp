#include "motley/report/run.h"

#include "motley/base/os/file.h"
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

}  // namespace motley::report
