#include "motley/scheduling/trace/throughputs.h"

#include <charconv>
#include <optional>

#include "motley/base/os/file.h"
#include "motley/serial/json_fields.h"

namespace motley::scheduling {
namespace {

// "('ResNet-18 (batch size 64)', 2)" taken apart.
std::optional<std::pair<std::string, int>> job_in(std::string_view key) {
  constexpr std::string_view kBegin = "('";
  constexpr std::string_view kMiddle = "', ";
  const std::size_t middle = key.rfind(kMiddle);
  if (!key.starts_with(kBegin) || !key.ends_with(')') || middle == std::string_view::npos) return std::nullopt;
  const std::string_view workers = key.substr(middle + kMiddle.size(), key.size() - middle - kMiddle.size() - 1);
  int number = 0;
  const auto [end, error] = std::from_chars(workers.data(), workers.data() + workers.size(), number);
  if (error != std::errc() || end != workers.data() + workers.size() || number < 1) return std::nullopt;
  return std::pair(std::string(key.substr(kBegin.size(), middle - kBegin.size())), number);
}

}  // namespace

Result<Throughputs> Throughputs::parse(const std::string& text, const std::string& name) {
  nlohmann::json json;
  try {
    json = parse_strict_json(text);
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}: {}", name, problem.what());
  }
  const auto refuse = [&](const std::string& path, const nlohmann::json& value, const char* accepted) {
    return fail(ErrorCode::kInvalidInput, "{}: {} is {}; accepted: {}", name, path.empty() ? "the whole" : path,
                value.dump().substr(0, 80), accepted);
  };
  if (!json.is_object() || json.empty()) return refuse("", json, "an object of device types");
  Throughputs throughputs;
  for (const auto& [type, jobs] : json.items()) {
    if (!jobs.is_object()) return refuse(type, jobs, "an object of jobs");
    for (const auto& [key, speeds] : jobs.items()) {
      const std::string path = fmt::format("{}.{}", type, key);
      const auto job = job_in(key);
      if (!job) return refuse(path, key, "a key such as \"('ResNet-18 (batch size 64)', 2)\"");
      const auto alone = speeds.is_object() ? speeds.find("null") : speeds.end();
      if (alone == speeds.end() || !alone->is_number() || alone->get<double>() < 0) {
        return refuse(path, speeds, "an object with steps a second as \"null\"");
      }
      throughputs.types_[type][*job] = alone->get<double>();
    }
  }
  return throughputs;
}

Result<Throughputs> Throughputs::read(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return parse(text, file.string());
}

std::vector<std::string> Throughputs::types() const {
  std::vector<std::string> names;
  for (const auto& [type, jobs] : types_) names.push_back(type);
  return names;
}

std::vector<std::string> Throughputs::models(const std::string& type, int workers) const {
  std::vector<std::string> models;
  const auto found = types_.find(type);
  if (found == types_.end()) return models;
  for (const auto& [job, rate] : found->second) {
    if (job.second == workers && rate > 0) models.push_back(job.first);
  }
  return models;
}

double Throughputs::steps_per_second(const std::string& type, const std::string& model, int workers) const {
  const auto jobs = types_.find(type);
  if (jobs == types_.end()) return 0;
  const auto job = jobs->second.find({model, workers});
  return job == jobs->second.end() ? 0 : job->second;
}

}  // namespace motley::scheduling
