#include "motley/serial/json_fields.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/serial/json_problem.h"
#include "motley/serial/options.h"

namespace motley {
namespace {

using Json = nlohmann::json;
constexpr int kDepthLimit = 16;
constexpr std::size_t kShownBytes = 80;

}  // namespace

WatchedJson parse_watched_json(std::string_view text, int depth_limit) {
  WatchedJson watched;
  std::vector<std::set<std::string>> keys;
  watched.json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      watched.repeated_key = value.get<std::string>();
    }
    watched.is_too_deep = watched.is_too_deep || depth > depth_limit;
    return !watched.is_too_deep;
  });
  return watched;
}

Json parse_strict_json(std::string_view text) {
  WatchedJson watched;
  try {
    watched = parse_watched_json(text, kDepthLimit);
  } catch (const Json::exception& problem) {
    throw JsonReader::Problem(fmt::format("this is not JSON: {}", explain(problem)));
  }
  if (watched.is_too_deep) {
    throw JsonReader::Problem(
        fmt::format("values are nested deeper than {}, as none of a known field is", kDepthLimit));
  }
  if (watched.repeated_key) {
    throw JsonReader::Problem(
        fmt::format("field {} is given twice in one object; accepted is once",
                    Json(*watched.repeated_key).dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return std::move(watched.json);
}

JsonReader::JsonReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) refuse(object, path_, "an object");
}

bool JsonReader::is_there(const char* key) {
  known_.emplace_back(key);
  return object_.contains(key);
}

void JsonReader::version(int accepted, std::span<const RenamedKey> renamed) {
  int version = 0;
  required("version", version);
  if (version != accepted) {
    const bool is_before = version == accepted - 1 && !renamed.empty();
    refuse(object_.at("version"), key_path("version"),
           is_before ? fmt::format("{}, in which {}", accepted, to_string(renamed)) : fmt::format("{}", accepted));
  }
}

void JsonReader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (!allows_others_ && std::ranges::find(known_, key) == known_.end()) {
      const std::string near = key.size() <= kShownBytes ? nearest_key(key, known_) : "";
      throw Problem(fmt::format("unknown field '{}'; accepted {} {}{}", key_path(key.substr(0, kShownBytes)),
                                known_.size() == 1 ? "is" : "are", fmt::join(known_, ", "),
                                near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
  }
}

void JsonReader::refuse_missing(const char* key) const {
  throw Problem(fmt::format("field '{}' is missing", key_path(key)));
}

void JsonReader::refuse(const Json& value, const std::string& path, const std::string& accepted) {
  std::string shown = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > kShownBytes) shown = shown.substr(0, kShownBytes) + "...";
  throw Problem(fmt::format("{} is {}; accepted is {}", path.empty() ? "the whole" : fmt::format("field '{}'", path),
                            shown, accepted));
}

std::string JsonReader::accepted_integers(NumberIs numbers) {
  const std::string from = std::isfinite(numbers.max)   ? fmt::format(" from {} to {}", numbers.min, numbers.max)
                           : std::isfinite(numbers.min) ? fmt::format(", {} or more", numbers.min)
                                                        : "";
  return "an integer" + from;
}

void JsonReader::read(const Json& json, const std::string& path, std::string& value, About about) {
  if (!json.is_string() || (about.is_not_empty && json == "")) {
    refuse(json, path, about.is_not_empty ? "a text that is not empty" : "a text");
  }
  value = json.get<std::string>();
}

void JsonReader::read(const Json& json, const std::string& path, bool& value, About) {
  if (!json.is_boolean()) refuse(json, path, "true or false");
  value = json.get<bool>();
}

void JsonReader::read(const Json& json, const std::string& path, double& value, About about) {
  const auto& [min, max, is_min_excluded, may_be_null] = about.numbers;
  const double number = json.is_number() ? json.get<double>() : std::numeric_limits<double>::quiet_NaN();
  const bool holds = std::isfinite(number) && (is_min_excluded ? number > min : number >= min) && number <= max;
  if (!holds && !(may_be_null && json.is_null())) {
    const std::string from = std::isfinite(max)    ? fmt::format("a number from {} to {}", min, max)
                             : !std::isfinite(min) ? "a finite number"
                             : is_min_excluded     ? fmt::format("a finite number above {}", min)
                                                   : fmt::format("a finite number, {} or more", min);
    refuse(json, path, from + (may_be_null ? ", or null" : ""));
  }
  value = number;
}

void JsonReader::read(const Json& json, const std::string& path, std::variant<std::string, std::int64_t>& value,
                      About about) {
  if (json.is_string()) {
    read(json, path, value.emplace<std::string>(), about);
  } else if (json.is_number_integer()) {
    read(json, path, value.emplace<std::int64_t>(), about);
  } else {
    refuse(json, path, "a text, or " + accepted_integers(about.numbers));
  }
}

}  // namespace motley
