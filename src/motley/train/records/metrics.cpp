#include "motley/train/records/metrics.h"

#include "motley/base/os/file.h"
#include "motley/serial/json_schema.h"

namespace motley::train {

// Found by argument-dependent lookup, so not in an anonymous namespace.
template <class Archive>
static void fields(Archive& archive, EmbeddingMetrics& rows) {
  archive.allow_others();
  archive.defaulted("pulled_bytes", rows.pulled_bytes, "requests and answers on the wire");
  archive.defaulted("pushed_bytes", rows.pushed_bytes, "gradients on the wire");
  archive.defaulted("wait_seconds", rows.wait_seconds,
                    {NumberIs::kFinite, "waiting for rows, part of the step's wait_seconds"});
  archive.defaulted("needed", rows.needed, "different rows that its batch looked up");
  archive.defaulted("cached", rows.cached, "of these: used again from its cache");
  archive.defaulted("prefetched", rows.prefetched, "of these: asked for before the step");
}

template <class Archive>
static void fields(Archive& archive, StepMetrics& line) {
  archive.allow_others();
  archive.required("step", line.step, "optimizer step, from 1 (in runs of scripts from 0)");
  archive.defaulted("epoch", line.epoch, "from 0");
  archive.required("time", line.time, {NumberIs::kFinite, "seconds since the run began"});
  archive.required(
      "loss", line.loss,
      {NumberIs::kFiniteOrNull, "mean training loss of the step's global batch; null where it is not finite"});
  archive.optional("accuracy", line.accuracy,
                   {NumberIs::kFiniteOrNull, "training accuracy of the global batch, 0 to 1"});
  archive.optional("mean_absolute_error", line.mean_absolute_error,
                   {NumberIs::kFiniteOrNull, "of the global batch, where the task is a regression"});
  archive.defaulted("learning_rate", line.learning_rate, NumberIs::kFiniteOrNull);
  archive.required("step_seconds", line.step_seconds, "from the step's begin to its end, loading included");
  archive.required("mode", line.mode, "dynamic, equal, fixed, plan, replay or work-queue");
  archive.defaulted("baseline", line.baseline, "true: done with the equal split, to compare with");
  archive.defaulted("batch_split", line.batch_split, "samples that each rank was to do");
  archive.defaulted("samples", line.samples, "samples that each rank did");
  archive.defaulted("compute_seconds", line.compute_seconds,
                    {NumberIs::kFinite, "each rank: forward and backward, emulated slowness included"});
  archive.defaulted("load_seconds", line.load_seconds, {NumberIs::kFinite, "each rank: waiting for its data"});
  archive.defaulted("gradient_sync_seconds", line.gradient_sync_seconds,
                    {NumberIs::kFinite, "each rank: exchanging gradients, beyond what ran beside backward"});
  archive.defaulted(
      "wait_seconds", line.wait_seconds,
      {NumberIs::kFinite,
       "each rank: waiting for other ranks; with gradient_sync.consistency ssp or async for new weights"});
  archive.defaulted("memory_bytes", line.memory_bytes,
                    "each rank: the most memory that its process had resident so far");
  archive.optional("staleness", line.staleness,
                   "each rank, with gradient_sync.consistency ssp or async: steps by which the slowest rank's newest "
                   "part in its new weights is older than its own");
  archive.optional("data_wait_seconds", line.data_wait_seconds,
                   {NumberIs::kFinite, "each rank: waiting for samples from a data server"});
  archive.defaulted("sent_bytes", line.sent_bytes,
                    "each rank: bytes of gradients and activations that it sent over the network");
  archive.optional("embedding", line.embedding, "where servers have rows that the network looks up; each rank");
  archive.optional("predicted_seconds", line.predicted_seconds,
                   {NumberIs::kFiniteOrNull, "step time predicted for this split; null while nothing is fitted"});
  archive.optional("bound_seconds", line.split.bound_seconds, "no split is predicted to take less");
  archive.optional("equal_seconds", line.split.equal_seconds, "step time predicted for the equal split");
  archive.optional("decision", line.decision, "why the split moved or stayed; only where that changed");
}

template <class Archive>
static void fields(Archive& archive, EvaluationFigures& figures) {
  archive.allow_others();
  archive.optional("loss", figures.loss, NumberIs::kFiniteOrNull);
  archive.optional("accuracy", figures.accuracy, NumberIs::kFiniteOrNull);
  archive.optional("mean_absolute_error", figures.mean_absolute_error, NumberIs::kFiniteOrNull);
  archive.optional("auc", figures.auc,
                   {NumberIs::kFiniteOrNull,
                    "area under the ROC curve, where the data have two classes; null where one of them has no sample"});
}

template <class Archive>
static void fields(Archive& archive, EvaluationMetrics& line) {
  archive.allow_others();
  archive.required("step", line.step);
  archive.defaulted("epoch", line.epoch);
  archive.defaulted("time", line.time, NumberIs::kFinite);
  archive.required("evaluation", line.evaluation, "of the test data");
}

template <class Archive>
static void fields(Archive& archive, EventMetrics& line) {
  archive.allow_others();
  archive.required("step", line.step);
  archive.optional("epoch", line.epoch);
  archive.required("time", line.time, NumberIs::kFinite);
  archive.required("event", line.event,
                   "audit, checkpoint, emulation, interrupted, joined, left, lost, moved, prediction, resumed, "
                   "server-lost or warning; "
                   "other kinds are shown as they are");
  archive.defaulted("text", line.text);
  archive.optional("samples_lost_or_duplicated", line.samples_lost_or_duplicated, "in the epoch that an audit is of");
}

namespace {

MetricsLine read_line(const nlohmann::json& json) {
  if (json.contains("event")) return JsonReader::read_whole<EventMetrics>(json);
  if (json.contains("evaluation")) return JsonReader::read_whole<EvaluationMetrics>(json);
  StepMetrics line = JsonReader::read_whole<StepMetrics>(json);
  if (line.samples.empty()) line.samples = line.batch_split;
  return line;
}

// A run that went on after a rollback does steps again: what was recorded of them before no longer holds.
template <class Line>
void append_in_order(std::vector<Line>& lines, Line line) {
  while (!lines.empty() && lines.back().step >= line.step) {
    lines.pop_back();
  }
  lines.push_back(std::move(line));
}

}  // namespace

std::string to_json(const MetricsLine& line) {
  return std::visit([](const auto& held) { return write_json_line(held); }, line);
}

Result<MetricsLine> parse_metrics_line(std::string_view line) {
  try {
    return read_line(parse_strict_json(line));
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}", problem.what());
  }
}

Result<Metrics> parse_metrics(std::string_view text, const std::string& name) {
  Metrics metrics;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (end == std::string_view::npos && !nlohmann::json::accept(line)) {
      metrics.is_torn = true;
      break;
    }
    Result<MetricsLine> read = parse_metrics_line(line);
    if (!read) {
      return fail(read.error().within(fmt::format("'{}' line {}", name, number)));
    }
    if (auto* step = std::get_if<StepMetrics>(&*read)) {
      append_in_order(metrics.steps, std::move(*step));
    } else if (auto* evaluation = std::get_if<EvaluationMetrics>(&*read)) {
      append_in_order(metrics.evaluations, std::move(*evaluation));
    } else {
      metrics.events.push_back(std::move(std::get<EventMetrics>(*read)));
    }
  }
  return metrics;
}

Result<Metrics> read_metrics(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return parse_metrics(text, file.string());
}

std::string metrics_schema() {
  nlohmann::ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                                   {"title", "One line of metrics.jsonl"}};
  StepMetrics step;
  EvaluationMetrics evaluation;
  EventMetrics event;
  schema["anyOf"] = {SchemaWriter::described(step, "a step"), SchemaWriter::described(evaluation, "an evaluation"),
                     SchemaWriter::described(event, "an event")};
  return schema.dump(2) + "\n";
}

}  // namespace motley::train
