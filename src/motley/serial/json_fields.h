// Structs to JSON and back, strictly, by their descriptions (base/fields.h). What is missing, misspelt, of another
// type, not finite, out of range, given twice or not asked for is an error that says the field's path, its value and
// what would be accepted.
//
//   Result<Link> read = parse_json<Link>(text, "link.json");
//   std::string text = write_json(*read);
#pragma once

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "motley/base/fields.h"
#include "motley/base/result.h"
#include "motley/serial/renamed_keys.h"

namespace motley {

class JsonReader {
 public:
  // Thrown by reading; parse_json turns it into an error.
  struct Problem : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  JsonReader(const nlohmann::json& object, std::string path);

  template <class T>
  void required(const char* key, T& value, About about = {}) {
    if (!is_there(key)) refuse_missing(key);
    read(object_.at(key), key_path(key), value, about);
  }
  template <class T>
  void defaulted(const char* key, T& value, About about = {}) {
    about.numbers.may_be_null = about.numbers.may_be_null || requires { value.reset(); };
    optional(key, value, about);
  }
  template <class T>
  void optional(const char* key, T& value, About about = {}) {
    if (is_there(key)) read(object_.at(key), key_path(key), value, about);
  }
  // A file of the version before is refused with what was renamed since.
  void version(int accepted, std::span<const RenamedKey> renamed = {});
  void allow_others() { allows_others_ = true; }
  void finish() const;  // refuses the keys that nobody asked for

  // The value that the whole of `json` is. Throws Problem.
  template <class T>
  static T read_whole(const nlohmann::json& json) {
    T value{};
    read(json, "", value, {});
    return value;
  }
  [[noreturn]] static void refuse(const nlohmann::json& value, const std::string& path, const std::string& accepted);

 private:
  bool is_there(const char* key);
  std::string key_path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  [[noreturn]] void refuse_missing(const char* key) const;

  static void read(const nlohmann::json& json, const std::string& path, std::string& value, About about);
  static void read(const nlohmann::json& json, const std::string& path, bool& value, About about);
  static void read(const nlohmann::json& json, const std::string& path, double& value, About about);
  static void read(const nlohmann::json& json, const std::string& path, std::variant<std::string, std::int64_t>& value,
                   About about);
  static void read(const nlohmann::json& json, const std::string&, nlohmann::ordered_json& value, About) {
    value = json;
  }
  template <std::integral T>
  static void read(const nlohmann::json& json, const std::string& path, T& value, About about) {
    const bool fits = json.is_number_unsigned()  ? std::in_range<T>(json.get<std::uint64_t>())
                      : json.is_number_integer() ? std::in_range<T>(json.get<std::int64_t>())
                                                 : false;
    if (!fits || json.get<double>() < about.numbers.min || json.get<double>() > about.numbers.max) {
      refuse(json, path, accepted_integers(about.numbers));
    }
    value = json.get<T>();
  }
  template <class T>
  static void read(const nlohmann::json& json, const std::string& path, std::optional<T>& value, About about) {
    if (json.is_null() && about.numbers.may_be_null) {
      value.reset();
    } else {
      about.numbers.may_be_null = false;
      read(json, path, value.emplace(), about);
    }
  }
  template <class T>
  static void read(const nlohmann::json& json, const std::string& path, std::vector<T>& values, About about) {
    if (!json.is_array() || (json.empty() && about.is_not_empty)) {
      refuse(json, path, about.is_not_empty ? "an array of one or more" : "an array");
    }
    values.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      read(json[i], fmt::format("{}[{}]", path, i), values.emplace_back(), about.numbers);
    }
  }
  template <class T>
  static void read(const nlohmann::json& json, const std::string& path, T& value, About) {
    if constexpr (std::is_enum_v<T>) {
      std::string accepted;
      for (const T candidate : every_value(T{})) {
        if (json == to_string(candidate)) {
          value = candidate;
          return;
        }
        accepted += fmt::format("{}\"{}\"", accepted.empty() ? "" : ", ", to_string(candidate));
      }
      refuse(json, path, accepted);
    } else {
      JsonReader reader(json, path);
      fields(reader, value);
      reader.finish();
    }
  }
  static std::string accepted_integers(NumberIs numbers);

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string> known_;
  bool allows_others_ = false;
};

class JsonWriter {
 public:
  template <class T>
  void required(const char* key, T& value, About = {}) {
    object_[key] = written(value);
  }
  template <class T>
  void defaulted(const char* key, T& value, About = {}) {
    object_[key] = written(value);
  }
  template <class T>
  void optional(const char* key, T& value, About = {}) {
    if constexpr (requires { value.has_value(); }) {
      if (value.has_value()) object_[key] = written(*value);
    } else if (value != T{}) {
      object_[key] = written(value);
    }
  }
  void version(int version, std::span<const RenamedKey> = {}) { object_["version"] = version; }
  void allow_others() {}

  template <class T>
  static nlohmann::ordered_json written(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return to_string(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                         std::is_same_v<T, nlohmann::ordered_json>) {
      return value;
    } else if constexpr (requires { value.has_value(); }) {
      return value ? written(*value) : nlohmann::ordered_json();
    } else if constexpr (requires { value.valueless_by_exception(); }) {
      return std::visit([](auto& held) { return written(held); }, value);
    } else if constexpr (requires { value.begin(); }) {
      auto array = nlohmann::ordered_json::array();
      for (auto& element : value) array.push_back(written(element));
      return array;
    } else {
      JsonWriter writer;
      fields(writer, value);
      return std::move(writer.object_);
    }
  }

 private:
  nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
};

// One JSON value, and what the library lets pass: an object that gives a key more than once, of which it keeps the
// last, and values nested deeper than a limit, where reading stops. Throws the library's exceptions.
struct WatchedJson {
  nlohmann::json json;
  std::optional<std::string> repeated_key;
  bool is_too_deep = false;
};
WatchedJson parse_watched_json(std::string_view text, int depth_limit);
// One JSON value, with every key once in its object and nothing nested deeper than 16. Throws JsonReader::Problem.
nlohmann::json parse_strict_json(std::string_view text);

// Errors: kInvalidInput, beginning with the name.
template <class T>
Result<T> parse_json(std::string_view text, const std::string& name) {
  try {
    return JsonReader::read_whole<T>(parse_strict_json(text));
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}: {}", name, problem.what());
  }
}

// Numbers are written so that they read back to the same value; what is not UTF-8 in a text is replaced.
template <class T>
std::string write_json(T value) {
  return JsonWriter::written(value).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}
// The same on one line, whose end is not written.
template <class T>
std::string write_json_line(T value) {
  return JsonWriter::written(value).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace motley
