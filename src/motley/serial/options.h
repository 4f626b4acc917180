// A registry of options: each is stated once (key, kind, unit, bounds, help, and the field that holds it), and flags,
// file keys, checks, the effective file and the documentation all come from that statement.
//
// Values are set from text, as a flag or a scalar of a YAML file gives it. A refused value says the key, the value and
// what would be accepted.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "motley/base/result.h"

namespace motley {

enum class OptionKind { kBoolean, kInteger, kReal, kSeconds, kBytes, kText, kChoice, kIntegers, kReals };

// What is known of an option without its config's type.
struct OptionText {
  std::string key;  // dotted, such as "optimizer.learning_rate"; also the flag --optimizer.learning_rate
  OptionKind kind = OptionKind::kText;
  std::string help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // for kChoice

  std::string accepted() const;  // "a whole number from 1 to 10"
};

using OptionValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>>;

// Text to a value of the option's kind, within its bounds.
Result<OptionValue> parse_option(const OptionText& option, std::string_view text);
// The value as text that parse_option reads back to the same value.
std::string format_option(const OptionValue& value);
// The known key nearest to a mistyped one, or "" where none is near (edit distance).
std::string nearest_key(std::string_view key, const std::vector<std::string>& keys);

// The options whose values live in a Config, in the order in which files and help list them.
template <class Config>
class OptionTable {
 public:
  using Member = std::variant<bool Config::*, std::int64_t Config::*, double Config::*, std::string Config::*,
                              std::vector<std::int64_t> Config::*, std::vector<double> Config::*>;
  struct Entry {
    OptionText text;
    Member member;
  };

  OptionTable(std::initializer_list<Entry> entries) : entries_(entries) {}

  const std::vector<Entry>& entries() const { return entries_; }

  std::vector<std::string> keys() const {
    std::vector<std::string> keys;
    for (const Entry& entry : entries_) {
      keys.push_back(entry.text.key);
    }
    return keys;
  }

  Status set(Config& config, std::string_view key, std::string_view text) const {
    for (const Entry& entry : entries_) {
      if (entry.text.key != key) {
        continue;
      }
      MOTLEY_ASSIGN(const OptionValue value, parse_option(entry.text, text));
      std::visit(
          [&](auto member) {
            using Field = std::remove_reference_t<decltype(config.*member)>;
            config.*member = std::get<Field>(value);
          },
          entry.member);
      return {};
    }
    const std::string near = nearest_key(key, keys());
    return fail(ErrorCode::kInvalidInput, "unknown key '{}'{}", key,
                near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near));
  }

  std::string get(const Config& config, const Entry& entry) const {
    return std::visit([&](auto member) { return format_option(OptionValue(config.*member)); }, entry.member);
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace motley
