// A YAML file read strictly: each value is asked for by its key together with what is accepted, and what nobody asked
// for is an error too, so that a misspelt key never passes silently.
//
//   MOTLEY_ASSIGN(const StrictYaml file, StrictYaml::parse(text, "cluster.yaml"));
//   cluster.name = file.text("name");                                      // required
//   cluster.price = file.number("price", {.min = 0, .fallback = 0.9});
//   for (const StrictYaml& worker : file.list("workers")) {
//     names.push_back(worker.text("name"));
//   }
//   MOTLEY_TRY(file.finish());  // before any of the values is used
//
// A reading function that finds its value missing or impossible notes the problem and returns the fallback, or an empty
// value where there is none; finish() then reports all problems at once, each with file and line, dotted path, the
// value, and what would be accepted. So reading code is straight, and the user mends a file in one go.
//
// A key may be dotted ("optimizer.momentum") and is looked up below the section that it is asked of. A key whose value
// is empty ("momentum:" or "~") counts as absent. Objects are cheap handles on one shared document and stay valid as
// long as any of them lives. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"

namespace motley::cluster {

// What a number may be. Bounds are inclusive, unless `above` sets an exclusive lower one. No fallback: required.
template <class T>
struct Rule {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
  std::optional<T> above = {};
  std::optional<T> fallback = {};
};
using NumberRule = Rule<double>;
using IntegerRule = Rule<std::int64_t>;
struct ListRule {
  std::size_t min_size = 0;  // of a list that is there; an absent list is empty, and an error if min_size > 0
  std::size_t max_size = 10000;
};

class StrictYaml {
 public:
  // `name` stands for the file in messages. Errors: over 1 MB, not YAML, not a mapping at the top, a key twice, over
  // 100,000 values, deeper than 32.
  static Result<StrictYaml> parse(std::string_view text, const std::string& name);

  bool has(std::string_view key) const;         // is there, with a value; also makes the key known
  bool is_section(std::string_view key) const;  // is a mapping, where a plain value would be accepted as well

  std::string text(std::string_view key, const std::optional<std::string>& fallback = {}) const;  // never empty
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;                    // true or false
  double number(std::string_view key, const NumberRule& rule = {}) const;                         // finite
  std::int64_t integer(std::string_view key, const IntegerRule& rule = {}) const;
  // With units as in base/units.h; a bare number is in seconds, bytes. A rate needs a unit.
  double seconds(std::string_view key, const NumberRule& rule = {.min = 0}) const;
  double bytes(std::string_view key, const NumberRule& rule = {.min = 0}) const;
  double bytes_per_second(std::string_view key, const NumberRule& rule = {.above = 0.0}) const;

  // One of the names.
  std::string choice(std::string_view key, const std::vector<std::string>& names,
                     const std::optional<std::string>& fallback = {}) const;
  // One of the names, as the value beside it.
  template <class T>
  T choose_from(std::string_view key, const std::vector<std::pair<std::string, T>>& choices) const {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) names.push_back(name);
    const auto chosen = std::ranges::find(choices, choice(key, names), &std::pair<std::string, T>::first);
    return chosen == choices.end() ? choices.front().second : chosen->second;
  }

  // A list of plain values: "[1, 2]" or one a line. The rule is that of each element; its fallback is not used.
  std::vector<std::int64_t> integers(std::string_view key, const IntegerRule& rule = {},
                                     const ListRule& list = {}) const;

  // A list of mappings, each a section of its own ("workers[2]").
  std::vector<StrictYaml> list(std::string_view key, const ListRule& list = {}) const;
  // The mapping below a key. An absent one is an empty section: its required values are then missing.
  StrictYaml section(std::string_view key) const;

  // Notes that the value of a key is impossible for a reason that no rule above can say: refuse("split", "the parts add
  // up to 1.2; accepted: at most 1"). Without a key it is about the section itself.
  void refuse(std::string_view key, const std::string& sentence) const;

  // Success, or kInvalidInput with all problems of the whole document: those noted while reading, and every key that
  // was never asked for, with the nearest known one.
  Status finish() const;

 private:
  enum class Type { kNull, kScalar, kList, kMapping };
  struct Value;
  struct Document;

  StrictYaml(std::shared_ptr<Document> document, std::string path, const Value* value)
      : document_(std::move(document)), path_(std::move(path)), value_(value) {}

  std::string key_path(std::string_view key) const;
  // The value below a dotted key, or null where there is none; makes every key on the way known.
  const Value* find(std::string_view key) const;
  // The same, and null where it is of another type; that is noted, and that it is missing where it is required.
  const Value* find(std::string_view key, Type type, bool required, const std::string& accepted) const;
  const std::vector<Value>& elements(std::string_view key, const ListRule& rule, const std::string& accepted) const;
  template <class T, class Kind>
  T read(std::string_view key, const Rule<T>& rule, const Kind& kind) const;
  void note(const Value* near, const std::string& path, const std::string& sentence) const;
  // Notes it of a value of a wrong kind: nothing more is said of that, nor of what is in it.
  void note_broken(const Value& value, const std::string& path, const std::string& sentence) const;

  std::shared_ptr<Document> document_;
  std::string path_;    // of this section: "" at the top, "workers[2]"
  const Value* value_;  // a mapping, or null for an absent section
};

}  // namespace motley::cluster
