// One description of a value's fields. A struct states its fields once, in a function `fields` beside it; strict
// reading, writing, JSON Schema and the bytes of messages all follow from that statement, each by an archive that
// visits it:
//
//   template <class Archive>
//   void fields(Archive& archive, Link& link) {           // found by argument-dependent lookup
//     archive.required("from", link.from, "one end");
//     archive.required("bytes_per_second", link.bytes_per_second, {NumberIs::kPositive, "in each direction"});
//     archive.optional("latency_seconds", link.latency_seconds);
//   }
//
//   JsonReader, JsonWriter        files and HTTP (serial/json_fields.h): parse_json<Link>(text, name), write_json(link)
//   SchemaWriter                  docs/schema (serial/json_schema.h): json_schema<Link>(title, help)
//   MessageReader, MessageWriter  bytes (net/message_fields.h): decode_message<Link>(bytes, what), encode_message(link)
//
// What a description can say of a field, by its verb:
//   required   it must be there
//   defaulted  may be left out, and then stays as the struct begins; always written (an empty std::optional as null)
//   optional   likewise; not written where it is as the type begins (0, empty, false, no value)
// and of the whole: version(2, kRenamedKeys), the field "version", which must be just that; allow_others(), keys that
// the description does not know are ignored instead of refused.
//
// A field is a std::string, bool, integer, double, an enum that has to_string() and every_value(Enum), a struct with
// fields(), a std::optional or std::vector of those, a text or index (std::variant<std::string, std::int64_t>), or any
// JSON (nlohmann::ordered_json).
#pragma once

#include <limits>

namespace motley {

// Which numbers are accepted; they are finite all the same.
struct NumberIs {
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  bool is_min_excluded = false;
  bool may_be_null = false;  // null: NaN, as JSON has none, or an empty std::optional

  static const NumberIs kNotNegative, kPositive, kFraction, kFinite, kFiniteOrNull;
  static constexpr NumberIs between(double min, double max) { return {.min = min, .max = max}; }
};
inline constexpr NumberIs NumberIs::kNotNegative{};
inline constexpr NumberIs NumberIs::kPositive{.is_min_excluded = true};
inline constexpr NumberIs NumberIs::kFraction{.max = 1};
inline constexpr NumberIs NumberIs::kFinite{.min = -std::numeric_limits<double>::infinity()};
inline constexpr NumberIs NumberIs::kFiniteOrNull{.min = -std::numeric_limits<double>::infinity(), .may_be_null = true};

enum class NotEmpty { kNotEmpty };
inline constexpr NotEmpty kNotEmpty = NotEmpty::kNotEmpty;

// What else there is to say of a field: which numbers it may have (or its elements), whether a text or an array may be
// empty, and help for people.
struct About {
  NumberIs numbers = {};
  const char* help = "";
  bool is_not_empty = false;

  constexpr About() = default;
  constexpr About(const char* text) : help(text) {}
  constexpr About(NumberIs accepted, const char* text = "") : numbers(accepted), help(text) {}
  constexpr About(NotEmpty, const char* text = "") : help(text), is_not_empty(true) {}
};

}  // namespace motley
