// Structs to JSON and back, strictly: the fields of a struct are stated once, and both directions and all checks come
// from that statement. What is missing, misspelt, of another type, not finite, out of range, given twice or not asked
// for is an error that says the field's path, its value and what would be accepted.
//
//   template <class Archive>
//   void fields(Archive& archive, Link& link) {           // found by argument-dependent lookup
//     archive.required("from", link.from);
//     archive.required("bytes_per_second", link.bytes_per_second, NumberIs::kPositive);
//     archive.optional("latency_seconds", link.latency_seconds);  // absent: stays as it is; not written where it is 0
//   }
//   Result<Link> read = parse_json<Link>(text, "link.json");
//   std::string text = write_json(*read);
//
// A field is a std::string, double, bool, int (0 or more), an enum that has to_string() and every_value(Enum), a struct
// with fields(), or a vector of those.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "motley/base/result.h"

namespace motley {

enum class NumberIs { kNotNegative, kPositive, kFraction };  // finite all the same

class JsonReader {
 public:
  // Thrown by reading; parse_json turns it into an error.
  struct Problem : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  JsonReader(const nlohmann::json& object, std::string path);

  template <class T>
  void required(const char* key, T& value, NumberIs rule = NumberIs::kNotNegative) {
    if (!is_there(key)) {
      refuse_missing(key);
    }
    read(object_.at(key), path_of(key), value, rule);
  }
  template <class T>
  void optional(const char* key, T& value, NumberIs rule = NumberIs::kNotNegative) {
    if (is_there(key)) {
      read(object_.at(key), path_of(key), value, rule);
    }
  }
  void version(int accepted);  // the field "version"
  void finish() const;         // refuses the keys that nobody asked for

 private:
  bool is_there(const char* key);
  std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  [[noreturn]] void refuse_missing(const char* key) const;
  [[noreturn]] static void refuse(const nlohmann::json& value, const std::string& path, const std::string& accepted);

  static void read(const nlohmann::json& json, const std::string& path, std::string& value, NumberIs);
  static void read(const nlohmann::json& json, const std::string& path, int& value, NumberIs);
  static void read(const nlohmann::json& json, const std::string& path, bool& value, NumberIs);
  static void read(const nlohmann::json& json, const std::string& path, double& value, NumberIs rule);
  template <class T>
  static void read(const nlohmann::json& json, const std::string& path, std::vector<T>& values, NumberIs rule) {
    if (!json.is_array()) {
      refuse(json, path, "an array");
    }
    values.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      read(json[i], fmt::format("{}[{}]", path, i), values.emplace_back(), rule);
    }
  }
  template <class T>
  static void read(const nlohmann::json& json, const std::string& path, T& value, NumberIs) {
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

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

class JsonWriter {
 public:
  template <class T>
  void required(const char* key, T& value, NumberIs = NumberIs::kNotNegative) {
    object_[key] = written(value);
  }
  template <class T>
  void optional(const char* key, T& value, NumberIs rule = NumberIs::kNotNegative) {
    if (value != T{}) {
      required(key, value, rule);
    }
  }
  void version(int version) { object_["version"] = version; }

  template <class T>
  static nlohmann::ordered_json written(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return to_string(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else if constexpr (requires { value.begin(); }) {
      auto array = nlohmann::ordered_json::array();
      for (auto& element : value) {
        array.push_back(written(element));
      }
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

// One JSON value, with every key once in its object and nothing nested deeper than 16. Throws JsonReader::Problem.
nlohmann::json parse_strict_json(std::string_view text);

// Errors: kInvalidInput, beginning with the name.
template <class T>
Result<T> parse_json(std::string_view text, const std::string& name) {
  try {
    T value{};
    const nlohmann::json json = parse_strict_json(text);
    JsonReader reader(json, "");
    fields(reader, value);
    reader.finish();
    return value;
  } catch (const JsonReader::Problem& problem) {
    return fail(ErrorCode::kInvalidInput, "{}: {}", name, problem.what());
  }
}

// Numbers are written so that they read back to the same value; what is not UTF-8 in a text is replaced.
template <class T>
std::string write_json(T value) {
  return JsonWriter::written(value).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace motley
