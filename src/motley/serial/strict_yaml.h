// A YAML file read strictly, for every file that users write: each value is asked for by its key together with what is
// accepted, and what nobody asked for is an error too, so that a misspelt key never passes silently.
//
//   MOTLEY_ASSIGN(const StrictYaml file, StrictYaml::open("job.yaml"));
//   job.network = file.text("model.name");                              // required
//   job.momentum = file.number("optimizer.momentum", {.min = 0, .max = 1, .fallback = 0.9});
//   for (const StrictYaml& worker : file.list("workers")) {
//     names.push_back(worker.text("name"));
//   }
//   MOTLEY_TRY(file.finish());  // before any of the values is used
//
// A reading function that finds its value missing or impossible notes the problem and returns the fallback, or an empty
// value where there is none; finish() then reports all problems at once, each with file and line, dotted path, the
// value, and what would be accepted. So reading code is straight, and the user mends a file in one go.
//
// A key is dotted ("optimizer.momentum") and is looked up below the section that it is asked of. A key whose value is
// empty ("momentum:" or "~") counts as absent. Objects are cheap handles on one shared document and stay valid as long
// as any of them lives. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
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
struct NumberRule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::optional<double> above;
  std::optional<double> fallback;
};
struct IntegerRule {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  std::optional<std::int64_t> fallback;
};
struct ListRule {
  std::size_t min_size = 0;  // of a list that is there; an absent list is empty, and an error if min_size > 0
  std::size_t max_size = 10000;
};

// A plain value with the place where it stands.
struct YamlLeaf {
  std::string key;    // "optimizer.momentum"
  std::string text;   // as in the file; a list of plain values as "[1, 2]"
  std::string where;  // "job.yaml:7"
};

class StrictYaml {
 public:
  // Errors: unreadable, over 1 MB, not YAML, not a mapping at the top, a key twice, over 100,000 values, deeper
  // than 32.
  static Result<StrictYaml> open(const std::filesystem::path& file);
  // The same from text; `name` stands for the file in messages.
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
  T choice_of(std::string_view key, const std::vector<std::pair<std::string, T>>& choices,
              std::optional<T> fallback = {}) const {
    std::vector<std::string> names;
    std::optional<std::string> fallback_name;
    for (const auto& [name, value] : choices) {
      names.push_back(name);
      if (fallback && value == *fallback) {
        fallback_name = name;
      }
    }
    const std::string chosen = choice(key, names, fallback_name);
    for (const auto& [name, value] : choices) {
      if (name == chosen) {
        return value;
      }
    }
    return fallback.value_or(choices.front().second);
  }

  // Lists of plain values: "[1, 2]" or one a line. The rule is that of each element; its fallback is not used.
  std::vector<double> numbers(std::string_view key, const NumberRule& rule = {}, const ListRule& list = {}) const;
  std::vector<std::int64_t> integers(std::string_view key, const IntegerRule& rule = {},
                                     const ListRule& list = {}) const;
  std::vector<std::string> texts(std::string_view key, const ListRule& list = {}) const;

  // A list of mappings, each a section of its own ("workers[2]").
  std::vector<StrictYaml> list(std::string_view key, const ListRule& list = {}) const;
  // The mapping below a key. An absent one is an empty section: its required values are then missing.
  StrictYaml section(std::string_view key) const;

  // Every plain value below this section, in the order of the file, for readers that look keys up in a table of their
  // own (serial/options.h): all of them then count as asked for. Lists of anything but plain values are left out.
  std::vector<YamlLeaf> leaves() const;

  // Notes that the value of a key is impossible for a reason that no rule above can say: refuse("split", "the parts add
  // up to 1.2; accepted: at most 1"). Without a key it is about the section itself.
  void refuse(std::string_view key, const std::string& sentence) const;

  // Success, or kInvalidInput with all problems of the whole document: those noted while reading, and every key that
  // was never asked for, with the nearest known one.
  Status finish() const;

 private:
  struct Value;
  struct Document;
  template <class T>
  struct Kind;

  StrictYaml(std::shared_ptr<Document> document, std::string path, const Value* value)
      : document_(std::move(document)), path_(std::move(path)), value_(value) {}

  std::string path_of(std::string_view key) const;
  // The value below a dotted key, or null where there is none; makes every key on the way known.
  const Value* find(std::string_view key) const;
  // The scalar's text; nothing where it is absent, of another kind (noted), or absent and required (noted).
  std::optional<std::string> scalar(std::string_view key, bool required, const std::string& accepted) const;
  std::vector<const Value*> elements(std::string_view key, const ListRule& rule, const std::string& accepted) const;
  template <class Rule, class T>
  T read(std::string_view key, const Rule& rule, const Kind<T>& kind) const;
  template <class Rule, class T>
  std::vector<T> read_list(std::string_view key, const Rule& rule, const ListRule& list, const Kind<T>& kind) const;
  void note(const Value* near, const std::string& path, const std::string& sentence) const;

  std::shared_ptr<Document> document_;
  std::string path_;    // of this section: "" at the top, "workers[2]"
  const Value* value_;  // a mapping, or null for an absent section
};

}  // namespace motley::cluster
