#include "motley/serial/json_fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/serial/options.h"

namespace motley {
namespace {

using Json = nlohmann::json;
constexpr int kDepthLimit = 16;
constexpr std::size_t kShownBytes = 80;

}  // namespace

Json parse_strict_json(std::string_view text) {
  bool is_too_deep = false;
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  // The library keeps the last of several equal keys; here a second one is an error.
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      repeated = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    is_too_deep = is_too_deep || depth > kDepthLimit;
    return !is_too_deep;
  };
  Json json;
  try {
    json = Json::parse(text, watch);
  } catch (const Json::exception& problem) {
    throw JsonReader::Problem(fmt::format("this is not JSON: {}", problem.what()));
  }
  if (is_too_deep) {
    throw JsonReader::Problem(
        fmt::format("values are nested deeper than {}, as none of a known field is", kDepthLimit));
  }
  if (!repeated.empty()) {
    throw JsonReader::Problem(fmt::format("field {} is given twice in one object; accepted is once", repeated));
  }
  return json;
}

JsonReader::JsonReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    refuse(object, path_, "an object");
  }
}

bool JsonReader::is_there(const char* key) {
  known_.emplace_back(key);
  return object_.contains(key);
}

void JsonReader::version(int accepted) {
  int version = 0;
  required("version", version);
  if (version != accepted) {
    refuse(object_.at("version"), path_of("version"), fmt::format("{}", accepted));
  }
}

void JsonReader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(known_, key) == known_.end()) {
      const std::string near = key.size() <= kShownBytes ? nearest_key(key, known_) : "";
      throw Problem(fmt::format("unknown field '{}'; accepted {} {}{}", path_of(key.substr(0, kShownBytes)),
                                known_.size() == 1 ? "is" : "are", fmt::join(known_, ", "),
                                near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
  }
}

void JsonReader::refuse_missing(const char* key) const {
  throw Problem(fmt::format("field '{}' is missing", path_of(key)));
}

void JsonReader::refuse(const Json& value, const std::string& path, const std::string& accepted) {
  std::string shown = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > kShownBytes) {
    shown = shown.substr(0, kShownBytes) + "...";
  }
  throw Problem(fmt::format("{} is {}; accepted is {}", path.empty() ? "the whole" : fmt::format("field '{}'", path),
                            shown, accepted));
}

void JsonReader::read(const Json& json, const std::string& path, std::string& value, NumberIs) {
  if (!json.is_string()) {
    refuse(json, path, "a text");
  }
  value = json.get<std::string>();
}

void JsonReader::read(const Json& json, const std::string& path, bool& value, NumberIs) {
  if (!json.is_boolean()) {
    refuse(json, path, "true or false");
  }
  value = json.get<bool>();
}

void JsonReader::read(const Json& json, const std::string& path, int& value, NumberIs) {
  if (!json.is_number_unsigned() ||
      json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    refuse(json, path, "a whole number, 0 or more");
  }
  value = json.get<int>();
}

void JsonReader::read(const Json& json, const std::string& path, double& value, NumberIs rule) {
  const double number = json.is_number() ? json.get<double>() : -1;
  const bool holds = std::isfinite(number) && (rule == NumberIs::kPositive ? number > 0 : number >= 0) &&
                     (rule != NumberIs::kFraction || number <= 1);
  if (!holds) {
    refuse(json, path,
           rule == NumberIs::kPositive   ? "a finite number above 0"
           : rule == NumberIs::kFraction ? "a number from 0 to 1"
                                         : "a finite number, 0 or more");
  }
  value = number;
}

}  // namespace motley
