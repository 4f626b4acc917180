// What a job file may say, made from the table of its options.
#include <cmath>
#include <nlohmann/json.hpp>

#include "motley/train/job/job.h"

namespace motley::train {
namespace {

using Json = nlohmann::ordered_json;

// A bound as JSON: whole where it is whole, so that 1 does not become 1.0.
Json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

Json bounded(const char* type, const OptionText& option) {
  Json schema = {{"type", type}};
  if (std::isfinite(option.min)) schema["minimum"] = number(option.min);
  if (std::isfinite(option.max)) schema["maximum"] = number(option.max);
  return schema;
}

Json value_schema(const OptionText& option) {
  switch (option.kind) {
    case OptionKind::kBoolean:
      return {{"type", "boolean"}};
    case OptionKind::kInteger:
      return bounded("integer", option);
    case OptionKind::kReal:
      return bounded("number", option);
    case OptionKind::kSeconds:
    case OptionKind::kBytes:
    case OptionKind::kBytesPerSecond:
      return {{"anyOf", {{{"const", 0}}, {{"type", "string"}}}}};
    case OptionKind::kText:
    case OptionKind::kPath:
    case OptionKind::kOutput:
      return {{"type", "string"}};
    case OptionKind::kChoice:
      return {{"enum", option.choices}};
    case OptionKind::kTexts:
      return {{"type", "array"}, {"items", {{"type", "string"}}}};
    case OptionKind::kNames:
      return {{"type", Json::array({"string", "array"})}, {"items", {{"type", "string"}}}};
    case OptionKind::kIntegers:
      return {{"type", "array"}, {"items", bounded("integer", option)}};
    case OptionKind::kReals:
      return {{"type", "array"}, {"items", bounded("number", option)}};
  }
  return Json::object();
}

Json object_schema() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

}  // namespace

std::string document_job() {
  std::string text =
      "# The job file\n\n`motley train JOB` reads a YAML file of these keys; a dot stands for nesting. Every key but "
      "`version` is also a flag (`--optimizer.learning-rate 0.1`), which wins over the file. The effective job is "
      "written into the "
      "run directory as `job.yaml`. This page is what `motley train --keys` prints.\n\n"
      "| key | default | accepted | what it says |\n|---|---|---|---|\n";
  const Job defaults;
  for (const auto& entry : Job::options().entries()) {
    const std::string value = Job::options().get(defaults, entry);
    text += fmt::format("| `{}` | {} | {} | {} |\n", entry.text.key, value.empty() ? "" : "`" + value + "`",
                        entry.text.accepted(), entry.text.help);
  }
  return text;
}

std::string job_schema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "Motley job"},
                 {"description", "What is trained, and how (job.yaml)."}};
  schema.update(object_schema());
  const Job defaults;
  for (const auto& entry : Job::options().entries()) {
    Json* object = &schema;
    std::string key = entry.text.key;
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.')) {
      Json& inner = (*object)["properties"][key.substr(0, dot)];
      if (inner.is_null()) inner = object_schema();
      object = &inner;
      key = key.substr(dot + 1);
    }
    Json& property = (*object)["properties"][key];
    property = value_schema(entry.text);
    property["description"] = fmt::format("{}; {}; default: '{}'", entry.text.help, entry.text.accepted(),
                                          Job::options().get(defaults, entry));
  }
  return schema.dump(2) + "\n";
}

}  // namespace motley::train
