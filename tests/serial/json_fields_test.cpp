// A struct with every kind of field: it reads back as it was written, whatever single field is damaged is named with
// its value and what is accepted, and its schema says the same.
#include "motley/serial/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "motley/base/random.h"
#include "motley/serial/json_schema.h"

namespace motley::fields_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

enum class Color { kRed, kGreen };
const char* to_string(Color color) {
  return color == Color::kRed ? "red" : "green";
}
std::array<Color, 2> every_value(Color) {
  return {Color::kRed, Color::kGreen};
}

struct Part {
  std::string name = "x";
  int count = 1;
  bool operator==(const Part&) const = default;
};

struct Whole {
  std::string text;
  bool flag = false;
  std::int64_t integer = 1;
  std::uint64_t large = 0;
  double size = 1, fraction = 0, any = 0;
  Color color = Color::kRed;
  Part part;
  std::vector<Part> parts;
  std::vector<double> numbers;
  std::optional<double> maybe, nullable;
  std::optional<Part> maybe_part;
  std::variant<std::string, std::int64_t> place;
  Json free;
  bool operator==(const Whole&) const = default;
};

constexpr RenamedKey kRenamed[] = {{"colour", "color"}};

template <class Archive>
void fields(Archive& archive, Part& part) {
  archive.required("name", part.name, kNotEmpty);
  archive.defaulted("count", part.count, {NumberIs::between(1, 9), "how many"});
}

template <class Archive>
void fields(Archive& archive, Whole& whole) {
  archive.version(3, kRenamed);
  archive.required("text", whole.text, "said");
  archive.optional("flag", whole.flag);
  archive.defaulted("integer", whole.integer, NumberIs::kFinite);
  archive.optional("large", whole.large);
  archive.required("size", whole.size, NumberIs::kPositive);
  archive.required("fraction", whole.fraction, NumberIs::kFraction);
  archive.required("any", whole.any, NumberIs::kFiniteOrNull);
  archive.required("color", whole.color);
  archive.required("part", whole.part);
  archive.required("parts", whole.parts, kNotEmpty);
  archive.optional("numbers", whole.numbers);
  archive.optional("maybe", whole.maybe);
  archive.defaulted("nullable", whole.nullable);
  archive.optional("maybe_part", whole.maybe_part);
  archive.required("place", whole.place);
  archive.required("free", whole.free);
}

namespace {

Whole random_whole(std::uint64_t seed) {
  Random random(seed);
  const auto any_size = [&] { return std::ldexp(0.5 + random.uniform(), static_cast<int>(random.below(1200)) - 600); };
  const auto part = [&] { return Part{std::string(1 + random.below(5), 'p'), 1 + static_cast<int>(random.below(9))}; };
  Whole whole;
  whole.text = std::string(random.below(4), '"') + "\\ ümlaut";
  whole.flag = random.below(2) == 1;
  whole.integer = static_cast<std::int64_t>(random.below(std::uint64_t{1} << 63)) * (random.below(2) == 1 ? 1 : -1);
  whole.large = random.below(3) == 0 ? std::numeric_limits<std::uint64_t>::max() : random.below(1000);
  whole.size = any_size();
  whole.fraction = random.uniform();
  whole.any = -any_size();
  whole.color = random.below(2) == 1 ? Color::kRed : Color::kGreen;
  whole.part = part();
  whole.parts.assign(1 + random.below(3), part());
  for (std::uint64_t i = random.below(4); i > 0; --i) whole.numbers.push_back(any_size());
  if (random.below(2) == 1) whole.maybe = any_size();
  if (random.below(2) == 1) whole.nullable = any_size();
  if (random.below(2) == 1) whole.maybe_part = part();
  if (random.below(2) == 1) whole.place = std::int64_t{7};
  whole.free = {{"anything", {1, "two", nullptr}}};
  return whole;
}

std::string outcome(const Json& json) {
  const auto read = parse_json<Whole>(json.dump(), "whole.json");
  return read ? "accepted" : read.error().message;
}

Json complete() {
  Whole whole;
  whole.flag = true;
  whole.parts = {Part{}};
  whole.free = Json::object();
  whole.large = 5;
  whole.numbers = {1, 2};
  whole.maybe = 3;
  whole.maybe_part = Part{};
  return Json::parse(write_json(whole));
}

TEST(JsonFields, ReadBackAsWritten) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Whole whole = random_whole(seed);
    for (const std::string& text : {write_json(whole), write_json_line(whole)}) {
      const auto again = parse_json<Whole>(text, "again.json");
      ASSERT_TRUE(again) << again.error().message;
      ASSERT_EQ(*again, whole) << text;
    }
  }
}

TEST(JsonFields, NotFiniteIsNullWhereThatIsAccepted) {
  Whole whole;
  whole.any = std::nan("");
  whole.parts = {Part{}};
  const auto again = parse_json<Whole>(write_json(whole), "again.json");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(std::isnan(again->any));
}

TEST(JsonFields, WhatIsOptionalIsNotWrittenAndWhatIsDefaultedIs) {
  EXPECT_EQ(write_json_line(Whole{}),
            R"({"version":3,"text":"","integer":1,"size":1.0,"fraction":0.0,"any":0.0,"color":"red",)"
            R"("part":{"name":"x","count":1},"parts":[],"nullable":null,"place":"","free":null})");
}

TEST(JsonFields, EveryDamagedFieldIsNamed) {
  ASSERT_EQ(outcome(complete()), "accepted");
  const Json good = complete();
  for (const auto& [key, value] : good.items()) {
    if (key == "free") continue;  // which may be anything
    Json file = complete();
    file[key] = Json::array({nullptr});
    EXPECT_THAT(outcome(file), AllOf(StartsWith("whole.json: "), HasSubstr("'" + key), HasSubstr("; accepted ")));
    file = complete();
    file["x" + key] = file[key];
    file.erase(key);
    EXPECT_THAT(outcome(file),
                AnyOf(HasSubstr("'x" + key + "'; accepted are "), HasSubstr("'" + key + "' is missing")));
  }
  const auto with = [](const char* pointer, const Json& value) {
    Json file = complete();
    file[Json::json_pointer(pointer)] = value;
    return outcome(file);
  };
  EXPECT_THAT(with("/size", 0), HasSubstr("field 'size' is 0; accepted is a finite number above 0"));
  EXPECT_THAT(with("/fraction", 1.5), HasSubstr("'fraction' is 1.5; accepted is a number from 0 to 1"));
  EXPECT_THAT(with("/any", "low"), HasSubstr("'any' is \"low\"; accepted is a finite number, or null"));
  EXPECT_THAT(with("/parts", Json::array()), HasSubstr("'parts' is []; accepted is an array of one or more"));
  EXPECT_THAT(with("/parts/0/name", ""), HasSubstr("'parts[0].name' is \"\"; accepted is a text that is not empty"));
  EXPECT_THAT(with("/part/count", 10), HasSubstr("'part.count' is 10; accepted is an integer from 1 to 9"));
  EXPECT_THAT(with("/large", -1), HasSubstr("'large' is -1; accepted is an integer, 0 or more"));
  EXPECT_THAT(with("/integer", 18446744073709551615U), HasSubstr("'integer' is 18446744073709551615; accepted is an"));
  EXPECT_THAT(with("/integer", 1.5), HasSubstr("'integer' is 1.5; accepted is an integer"));
  EXPECT_THAT(with("/place", 1.5), HasSubstr("'place' is 1.5; accepted is a text, or an integer, 0 or more"));
  EXPECT_THAT(with("/color", "blue"), HasSubstr(R"('color' is "blue"; accepted is "red", "green")"));
  EXPECT_THAT(with("/numbers/1", nullptr), HasSubstr("'numbers[1]' is null; accepted is a finite number, 0 or more"));
  EXPECT_THAT(with("/maybe", nullptr), HasSubstr("'maybe' is null"));
  EXPECT_EQ(with("/nullable", nullptr), "accepted");
  EXPECT_THAT(with("/maybe_part/nam", "y"),
              HasSubstr("'maybe_part.nam'; accepted are name, count; did you mean 'name'?"));
  EXPECT_THAT(with("/version", 2), HasSubstr("'version' is 2; accepted is 3, in which colour is now color"));
  EXPECT_THAT(with("/version", 4), HasSubstr("'version' is 4; accepted is 3"));
}

TEST(JsonFields, SchemaSaysWhatIsAccepted) {
  using Object = nlohmann::json;  // whose keys have no order
  const Object schema = Object::parse(json_schema<Whole>("Whole", "of parts"));
  EXPECT_EQ(schema["title"], "Whole");
  EXPECT_EQ(schema["description"], "of parts");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["required"], Object::parse(R"(["version","text","size","fraction","any","color","part","parts",)"
                                              R"("place","free"])"));
  const Object& properties = schema["properties"];
  const Json good = complete();
  for (const auto& [key, value] : good.items()) EXPECT_TRUE(properties.contains(key)) << key;
  const auto is = [&](const char* key, const char* text) { EXPECT_EQ(properties[key], Object::parse(text)) << key; };
  is("version", R"({"const": 3})");
  is("text", R"({"type": "string", "description": "said"})");
  is("flag", R"({"type": "boolean", "default": false})");
  is("integer", R"({"type": "integer", "default": 1})");
  is("size", R"({"type": "number", "exclusiveMinimum": 0})");
  is("fraction", R"({"type": "number", "minimum": 0, "maximum": 1})");
  is("any", R"({"type": ["number", "null"]})");
  is("color", R"({"enum": ["red", "green"]})");
  is("numbers", R"({"type": "array", "items": {"type": "number", "minimum": 0}, "default": []})");
  is("nullable", R"({"type": ["number", "null"], "minimum": 0})");
  is("place", R"({"type": ["string", "integer"], "minimum": 0})");
  is("free", "{}");
  EXPECT_EQ(
      properties["parts"]["items"]["properties"]["count"],
      Object::parse(R"({"type": "integer", "minimum": 1, "maximum": 9, "description": "how many", "default": 1})"));
}

}  // namespace
}  // namespace motley::fields_test
