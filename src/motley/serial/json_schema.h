// The JSON Schema of a struct, from its description (base/fields.h): what docs/schema says of our files.
#pragma once

#include <cmath>
#include <string>

#include "motley/serial/json_fields.h"

namespace motley {

class SchemaWriter {
 public:
  using Json = nlohmann::ordered_json;

  template <class T>
  void required(const char* key, T& value, About about = {}) {
    schema_["required"].push_back(key);
    properties_[key] = described(value, about);
  }
  template <class T>
  void defaulted(const char* key, T& value, About about = {}) {
    about.numbers.may_be_null = about.numbers.may_be_null || requires { value.reset(); };
    optional(key, value, about);
  }
  template <class T>
  void optional(const char* key, T& value, About about = {}) {
    Json& property = properties_[key] = described(value, about);
    if constexpr (!requires(SchemaWriter& archive) { fields(archive, value); }) {
      if (const Json begins = JsonWriter::written(value); !begins.is_null()) property["default"] = begins;
    }
  }
  void version(int version, std::span<const RenamedKey> = {}) {
    schema_["required"].push_back("version");
    properties_["version"] = {{"const", version}};
  }
  void allow_others() { schema_.erase("additionalProperties"); }

  template <class T>
  static Json described(T& value, About about) {
    Json schema = Json::object();
    if (*about.help != '\0') schema["description"] = about.help;
    schema.update(describe(value, about));
    return schema;
  }

 private:
  // Bounds are integers where they are whole, so that 1 does not become 1.0.
  static Json bound(double value) {
    return value == std::floor(value) ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  static Json typed(const char* type, NumberIs numbers) {
    return {{"type", numbers.may_be_null ? Json::array({type, "null"}) : Json(type)}};
  }
  static Json describe_numbers(const char* type, NumberIs numbers) {
    Json schema = typed(type, numbers);
    if (std::isfinite(numbers.min)) {
      schema[numbers.is_min_excluded ? "exclusiveMinimum" : "minimum"] = bound(numbers.min);
    }
    if (std::isfinite(numbers.max)) schema["maximum"] = bound(numbers.max);
    return schema;
  }

  template <class T>
  static Json describe(T& value, About about) {
    if constexpr (std::is_enum_v<T>) {
      auto choices = Json::array();
      for (const T candidate : every_value(T{})) choices.push_back(to_string(candidate));
      return {{"enum", choices}};
    } else if constexpr (std::is_same_v<T, bool>) {
      return typed("boolean", about.numbers);
    } else if constexpr (std::is_arithmetic_v<T>) {
      return describe_numbers(std::is_integral_v<T> ? "integer" : "number", about.numbers);
    } else if constexpr (std::is_same_v<T, std::string>) {
      Json schema = typed("string", about.numbers);
      if (about.is_not_empty) schema["minLength"] = 1;
      return schema;
    } else if constexpr (std::is_same_v<T, Json>) {
      return Json::object();
    } else if constexpr (requires { value.has_value(); }) {
      typename T::value_type held{};
      return describe(held, about);
    } else if constexpr (requires { value.valueless_by_exception(); }) {
      Json schema = describe_numbers("integer", about.numbers);
      schema["type"] = {"string", "integer"};
      return schema;
    } else if constexpr (requires { value.begin(); }) {
      Json schema = typed("array", about.numbers);
      if (about.is_not_empty) schema["minItems"] = 1;
      about.numbers.may_be_null = false;
      typename T::value_type element{};
      schema["items"] = describe(element, about.numbers);
      return schema;
    } else {
      SchemaWriter writer;
      fields(writer, value);
      writer.schema_["properties"] = std::move(writer.properties_);
      if (about.numbers.may_be_null) {
        writer.schema_["type"] = {"object", "null"};
      }
      return std::move(writer.schema_);
    }
  }

  Json schema_ = {{"type", "object"}, {"additionalProperties", false}, {"required", Json::array()}};
  Json properties_ = Json::object();
};

// The whole document, as docs/schema has it.
template <class T>
std::string json_schema(const char* title, const char* help) {
  T value{};
  nlohmann::ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}};
  schema.update(SchemaWriter::described(value, help));
  return schema.dump(2) + "\n";
}

}  // namespace motley
