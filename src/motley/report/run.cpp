#include "motley/report/run.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "motley/base/os/file.h"

namespace motley::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The fields of one JSON object; a missing field or one of the wrong type is thrown as a sentence that names it, and
// read_run puts the file and the line before it.
class Fields {
 public:
  Fields(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) {
      throw std::runtime_error(fmt::format("{} must be a JSON object, not {}", what_, object.type_name()));
    }
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  const Json& at(const char* key) const {
    if (!object_.contains(key)) {
      throw std::runtime_error(fmt::format("{} has no field '{}'", what_, key));
    }
    return object_.at(key);
  }

  double number(const char* key) const {
    const Json& value = at(key);
    require(value.is_number(), key, "a number");
    return value.get<double>();
  }
  std::optional<double> maybe_number(const char* key) const {
    return has(key) ? std::optional(number(key)) : std::nullopt;
  }
  std::int64_t whole(const char* key) const {
    const Json& value = at(key);
    require(value.is_number_integer() && value.get<std::int64_t>() >= 0, key, "an integer, 0 or more");
    return value.get<std::int64_t>();
  }
  bool flag(const char* key) const {
    const Json& value = at(key);
    require(value.is_boolean(), key, "true or false");
    return value.get<bool>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    require(value.is_string(), key, "a text");
    return value.get<std::string>();
  }
  std::string text_or_empty(const char* key) const { return has(key) ? text(key) : ""; }

  std::vector<double> numbers(const char* key) const {
    std::vector<double> values;
    if (has(key)) {
      require(at(key).is_array(), key, "an array of numbers");
      for (const Json& value : at(key)) {
        require(value.is_number(), key, "an array of numbers");
        values.push_back(value.get<double>());
      }
    }
    return values;
  }

 private:
  void require(bool holds, const char* key, const char* accepted) const {
    if (!holds) {
      throw std::runtime_error(fmt::format("field '{}' of {} is {}; accepted is {}", key, what_,
                                           object_.at(key).dump(-1, ' ', false, Json::error_handler_t::replace),
                                           accepted));
    }
  }

  const Json& object_;
  std::string what_;
};

void read_head(const Json& json, Run& run, planning::PredictionFiles& files) {
  const Fields fields(json, "the run");
  run.version = fields.text_or_empty("motley_version");
  if (fields.has("started")) {
    run.started =
        fields.at("started").is_string()
            ? fields.text("started")
            : fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(fields.number("started"))));
  }
  run.gradient_sync = fields.text_or_empty("gradient_sync");
  run.machine = fields.text_or_empty("machine");
  run.exit = fields.text_or_empty("exit");
  run.batch = fields.maybe_number("global_batch_size").value_or(0);
  run.training_samples = fields.maybe_number("training_samples").value_or(0);
  run.price_per_hour = fields.maybe_number("price_per_hour");
  if (fields.has("planned")) {
    const Fields planned(fields.at("planned"), "'planned' of the run");
    files = {planned.text("plan"), planned.text_or_empty("profile"), planned.text_or_empty("cluster")};
  }
  run.finished = fields.has("finished") && fields.flag("finished");
  if (fields.has("error")) {
    run.error = fields.text("error");
  }
  if (!fields.at("workers").is_array()) {
    throw std::runtime_error("field 'workers' of the run must be an array");
  }
  for (const Json& item : fields.at("workers")) {
    const Fields worker(item, "a worker");
    run.workers.push_back({static_cast<int>(worker.whole("rank")), worker.text("name"), worker.text_or_empty("device"),
                           worker.has("emulated") ? std::optional(worker.text("emulated")) : std::nullopt});
  }
}

// A run that went on after a rollback does steps again: what was recorded of them before no longer holds.
template <class Line>
void append_in_order(std::vector<Line>& lines, Line line) {
  while (!lines.empty() && lines.back().step >= line.step) {
    lines.pop_back();
  }
  lines.push_back(std::move(line));
}

void read_line(const Json& json, Run& run) {
  const Fields fields(json, "the line");
  const std::int64_t step = fields.whole("step");
  if (fields.has("event")) {
    run.events.push_back({step, fields.number("time"), fields.text("event"), fields.text_or_empty("text")});
    return;
  }
  if (fields.has("evaluation")) {
    const Fields evaluation(fields.at("evaluation"), "the evaluation");
    append_in_order(run.evaluations, Evaluation{step, evaluation.maybe_number("loss"),
                                                evaluation.maybe_number("accuracy"), evaluation.maybe_number("auc")});
    return;
  }
  Step line;
  line.step = step;
  line.epoch = fields.has("epoch") ? fields.whole("epoch") : 0;
  line.time = fields.number("time");
  fields.at("loss");
  line.loss = fields.maybe_number("loss").value_or(std::numeric_limits<double>::quiet_NaN());  // JSON has no NaN
  line.accuracy = fields.maybe_number("accuracy");
  line.predicted_seconds = fields.maybe_number("predicted_seconds");
  line.step_seconds = fields.number("step_seconds");
  line.mode = fields.text("mode");
  line.baseline = fields.has("baseline") && fields.flag("baseline");
  line.samples = fields.numbers(fields.has("samples") ? "samples" : "batch_split");
  line.compute_seconds = fields.numbers("compute_seconds");
  line.load_seconds = fields.numbers("load_seconds");
  line.gradient_sync_seconds = fields.numbers("gradient_sync_seconds");
  line.wait_seconds = fields.numbers("wait_seconds");
  line.sent_bytes = fields.numbers("sent_bytes");
  if (fields.has("embedding")) {
    const Fields rows(fields.at("embedding"), "'embedding' of the line");
    line.rows_pulled_bytes = rows.numbers("pulled_bytes");
    line.rows_pushed_bytes = rows.numbers("pushed_bytes");
    line.rows_wait_seconds = rows.numbers("wait_seconds");
    line.rows_needed = rows.numbers("needed");
    line.rows_cached = rows.numbers("cached");
    line.rows_prefetched = rows.numbers("prefetched");
  }
  line.decision = fields.text_or_empty("decision");
  append_in_order(run.steps, std::move(line));
}

void read_summary(const Json& json, Run& run) {
  if (!json.is_array()) {
    throw std::runtime_error("the summary must be an array of rows");
  }
  for (const Json& item : json) {
    const Fields row(item, "a row");
    run.summary.push_back({row.text("case"), row.text("metric"),
                           row.has("value") ? row.number("value") : std::numeric_limits<double>::quiet_NaN(),
                           row.text_or_empty("unit"), row.text("better") == "more", row.maybe_number("target"),
                           row.maybe_number("limit"), row.maybe_number("peer"), row.text_or_empty("note")});
  }
}

void read_trace(const Json& json, Run& run) {
  const Fields fields(json, "the trace");
  for (const Json& item : fields.at("traceEvents")) {
    const Fields event(item, "a trace event");
    if (event.text("ph") == "X" && event.has("args") && event.at("args").contains("step")) {
      const double begin = event.number("ts") * 1e-6;
      run.trace.push_back({static_cast<int>(event.whole("pid")), Fields(event.at("args"), "args").whole("step"),
                           event.text("name"), begin, begin + event.number("dur") * 1e-6});
    }
  }
}

// Parses the file's content, where the file exists, and hands it to `read`.
template <class Read>
Status read_json(const fs::path& path, Run& run, Read read) {
  if (!fs::exists(path)) {
    return {};
  }
  MOTLEY_ASSIGN(const std::string text, read_file(path));
  try {
    read(Json::parse(text), run);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidInput, "'{}': {}", path.string(), error.what());
  }
  return {};
}

Status read_metrics(const fs::path& path, Run& run) {
  if (!fs::exists(path)) {
    return {};
  }
  MOTLEY_ASSIGN(const std::string text, read_file(path));
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t found = text.find('\n', begin);
    const bool ended = found != std::string::npos;
    const std::size_t end = ended ? found : text.size();
    const std::string_view line(text.data() + begin, end - begin);
    ++number;
    begin = end + 1;
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() && !ended) {
      run.torn = true;
      break;
    }
    try {
      if (json.is_discarded()) {
        throw std::runtime_error("not a JSON object");
      }
      read_line(json, run);
    } catch (const std::exception& error) {
      return fail(ErrorCode::kInvalidInput, "'{}' line {}: {}", path.string(), number, error.what());
    }
  }
  return {};
}

}  // namespace

Result<Run> read_run(const fs::path& folder) {
  if (!fs::is_regular_file(folder / "run.json")) {
    return fail(ErrorCode::kInvalidInput, "'{}' is not a run directory: it has no file run.json", folder.string());
  }
  Run run;
  const fs::path name = fs::absolute(folder).lexically_normal();
  run.name = (name.has_filename() ? name : name.parent_path()).filename().string();
  planning::PredictionFiles files;
  MOTLEY_TRY(read_json(folder / "run.json", run, [&](const Json& json, Run& into) { read_head(json, into, files); }));
  if (!files.plan.empty()) {
    MOTLEY_ASSIGN(run.prediction, planning::read_prediction(folder, files));
  }
  MOTLEY_TRY(read_metrics(folder / "metrics.jsonl", run));
  MOTLEY_TRY(read_json(folder / "summary.json", run, read_summary));
  MOTLEY_TRY(read_json(folder / "timeline.json", run, read_trace));
  if (fs::exists(folder / "job.yaml")) {
    MOTLEY_ASSIGN(run.job, read_file(folder / "job.yaml"));
  }
  return run;
}

}  // namespace motley::report
