// A registry of options: each is stated once (key, kind, unit, bounds, help, and the field that holds it), and flags,
// file keys, checks, the effective file and the documentation all come from that statement.
//
// Values are set from text, as a flag or a scalar of a YAML file gives it. A refused value says the key, the value and
// what would be accepted.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/renamed_keys.h"

namespace motley {

enum class OptionKind {
  kBoolean,
  kInteger,
  kReal,
  kSeconds,
  kBytes,
  kBytesPerSecond,
  kText,
  kPath,    // of a file or folder that is there
  kOutput,  // of a file that is written
  kChoice,
  kTexts,
  kNames,  // names between commas, in brackets or not; a text without the brackets
  kIntegers,
  kReals
};

// What is known of an option without its config's type.
struct OptionText {
  std::string key;  // dotted, such as "optimizer.learning_rate"; also the flag --optimizer.learning-rate
  OptionKind kind = OptionKind::kText;
  std::string help;  // "what it says; default: in words", where the default is no value of the option
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // for kChoice, and for each of kTexts, where empty is any text
  std::vector<RenamedKey> renamed = {};   // choices that had another name before
  bool is_common = false;                 // among the few that short help shows of many

  std::string accepted() const;   // "an integer from 1 to 10"
  std::string bounds() const;     // "from 1 to 10"; "" where there are none
  std::string type_name() const;  // for help: "INT", "DURATION", "{sum,mean}"
};

// An option with one of these words as its value.
inline OptionText choice(std::string key, std::string help, std::vector<std::string> words,
                         std::vector<RenamedKey> renamed = {}) {
  return {.key = std::move(key),
          .kind = OptionKind::kChoice,
          .help = std::move(help),
          .choices = std::move(words),
          .renamed = std::move(renamed)};
}

// The same option, as one of those that short help shows.
inline OptionText common(OptionText option) {
  option.is_common = true;
  return option;
}

using OptionValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                                 std::vector<std::int64_t>, std::vector<double>>;

// The flag of a key, without its dashes: "optimizer.learning-rate".
std::string flag_name(std::string_view key);
// Text to a value of the option's kind, within its bounds.
Result<OptionValue> parse_option(const OptionText& option, std::string_view text);
// The value as text that parse_option reads back to the same value.
std::string format_option(const OptionText& option, const OptionValue& value);
// The known key (or command, flag, choice) nearest to a mistyped one, or "" where none is near: by the letters to
// insert, remove, replace or swap, in all of it or in some words of it ("batch_size" for "global_batch_size").
std::string nearest_key(std::string_view key, const std::vector<std::string>& keys);
// What is said of a key that none of the options has, given with this value: a group of keys ("optimizer") is answered
// with the key that was meant ("optimizer.name: sgd"), a mistyped one with the nearest, others with all.
std::string explain_unknown_key(std::string_view key, std::string_view value, const std::vector<OptionText>& options);

// The options whose values live in a Config, in the order in which files and help list them.
template <class Config>
class OptionTable {
 public:
  struct Entry {
    OptionText text;
    std::function<OptionValue(const Config&)> get;
    std::function<void(Config&, OptionValue)> set;  // a value of the option's kind
  };

  // An option with the field that holds it, or a part of the Config with options of its own (Part::options(), or a
  // table that outlives this one), whose keys follow the part's: "optimizer" makes "learning_rate" to
  // "optimizer.learning_rate", "" leaves it as it is.
  struct Item {
    template <class Field>
    Item(OptionText text, Field Config::* field) {
      constexpr bool kIsInteger = std::integral<Field> && !std::same_as<Field, bool>;
      using Value = std::conditional_t<kIsInteger, std::int64_t, Field>;
      entries.push_back({std::move(text),
                         [field](const Config& config) { return OptionValue(static_cast<Value>(config.*field)); },
                         [field](Config& config, OptionValue value) {
                           config.*field = static_cast<Field>(std::get<Value>(std::move(value)));
                         }});
    }
    template <class Part>
      requires requires { Part::options(); }
    Item(const std::string& prefix, Part Config::* part) : Item(prefix, part, Part::options()) {}
    template <class Part>
    Item(const std::string& prefix, Part Config::* part, const OptionTable<Part>& options) {
      for (const auto& own : options.entries()) {
        entries.push_back(
            {own.text, [part, &own](const Config& config) { return own.get(config.*part); },
             [part, &own](Config& config, OptionValue value) { own.set(config.*part, std::move(value)); }});
        entries.back().text.key.insert(0, prefix.empty() ? "" : prefix + ".");
      }
    }
    std::vector<Entry> entries;
  };

  OptionTable(std::initializer_list<Item> items) {
    for (const Item& item : items) entries_.insert(entries_.end(), item.entries.begin(), item.entries.end());
  }

  const std::vector<Entry>& entries() const { return entries_; }

  std::vector<std::string> keys() const {
    std::vector<std::string> keys;
    for (const Entry& entry : entries_) keys.push_back(entry.text.key);
    return keys;
  }

  std::vector<OptionText> texts() const {
    std::vector<OptionText> texts;
    for (const Entry& entry : entries_) texts.push_back(entry.text);
    return texts;
  }

  // `value` is what it was given with, for the message.
  Result<const Entry*> find(std::string_view key, std::string_view value = "") const {
    for (const Entry& entry : entries_)
      if (entry.text.key == key) return &entry;
    return fail(ErrorCode::kInvalidInput, "{}", explain_unknown_key(key, value, texts()));
  }

  Status set(Config& config, std::string_view key, std::string_view text) const {
    MOTLEY_ASSIGN(const Entry* entry, find(key, text));
    MOTLEY_ASSIGN(OptionValue value, parse_option(entry->text, text));
    entry->set(config, std::move(value));
    return {};
  }

  std::string get(const Config& config, const Entry& entry) const {
    return format_option(entry.text, entry.get(config));
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace motley
