#include "motley/serial/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "motley/base/units.h"

namespace motley {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

// A number of an option as its text has it.
std::string number_text(OptionKind kind, double value) {
  switch (kind) {
    case OptionKind::kSeconds:
      return exact_seconds(value);
    case OptionKind::kBytes:
      return exact_bytes(value);
    case OptionKind::kBytesPerSecond:
      return exact_bytes_per_second(value);
    default:
      return fmt::format("{}", value);
  }
}

std::string bounds_text(const OptionText& option) {
  const bool has_max = std::isfinite(option.max);
  const bool is_quantity = option.kind == OptionKind::kSeconds || option.kind == OptionKind::kBytes ||
                           option.kind == OptionKind::kBytesPerSecond;  // which has no sign
  const bool has_min = std::isfinite(option.min) && (option.min != 0 || has_max || !is_quantity);
  const std::string min = number_text(option.kind, option.min);
  const std::string max = number_text(option.kind, option.max);
  if (has_min && has_max) {
    return fmt::format(" from {} to {}", min, max);
  }
  return has_min ? " of at least " + min : has_max ? " of at most " + max : "";
}

// Quantities are parsed by the reader of their kind.
Result<double> parse_quantity(OptionKind kind, std::string_view text) {
  return kind == OptionKind::kSeconds ? parse_seconds(text)
         : kind == OptionKind::kBytes ? parse_bytes(text)
                                      : parse_bytes_per_second(text);
}

// Of a word that is none of the choices: what it is called now, where it had another name.
std::string renamed_text(const OptionText& option, std::string_view word) {
  const auto found = std::ranges::find(option.renamed, word, &RenamedKey::before);
  return found == option.renamed.end() ? "" : fmt::format(" ({} is now {})", word, found->now);
}

bool is_choice(const OptionText& option, std::string_view word) {
  return std::ranges::find(option.choices, word) != option.choices.end();
}

// "[1, 2, 3]" or "1,2,3" or "" to items.
std::vector<std::string_view> list_items(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    text = trimmed(text.substr(1, text.size() - 2));
  }
  std::vector<std::string_view> items;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    items.push_back(trimmed(text.substr(0, comma)));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return items;
}

template <class Number>
Result<OptionValue> parse_list(const OptionText& option, std::string_view text, const tl::unexpected<Error>& refused) {
  std::vector<Number> numbers;
  for (const std::string_view item : list_items(text)) {
    Number number{};
    if (!read_number(item, number) || static_cast<double>(number) < option.min ||
        static_cast<double>(number) > option.max) {
      return refused;
    }
    numbers.push_back(number);
  }
  return OptionValue(std::move(numbers));
}

}  // namespace

std::string OptionText::accepted() const {
  switch (kind) {
    case OptionKind::kBoolean:
      return "true or false";
    case OptionKind::kInteger:
      return "an integer" + bounds_text(*this);
    case OptionKind::kReal:
      return "a number" + bounds_text(*this);
    case OptionKind::kSeconds:
      return std::string(kAcceptedSeconds) + bounds_text(*this);
    case OptionKind::kBytes:
      return std::string(kAcceptedBytes) + bounds_text(*this);
    case OptionKind::kBytesPerSecond:
      return std::string(kAcceptedBytesPerSecond) + bounds_text(*this);
    case OptionKind::kText:
    case OptionKind::kPath:
      return "a text";
    case OptionKind::kTexts:
      if (choices.empty()) return "a text";
      [[fallthrough]];
    case OptionKind::kChoice:
      return fmt::format("one of {}", fmt::join(choices, ", "));
    case OptionKind::kIntegers:
      return "a list of integers" + bounds_text(*this) + ", such as [1, 28, 28]";
    case OptionKind::kReals:
      return "a list of numbers" + bounds_text(*this) + ", such as [1, 0.5]";
  }
  return "";
}

std::string OptionText::type_name() const {
  switch (kind) {
    case OptionKind::kBoolean:
      return "true|false";
    case OptionKind::kInteger:
      return "INT";
    case OptionKind::kReal:
      return "NUMBER";
    case OptionKind::kSeconds:
      return "DURATION";
    case OptionKind::kBytes:
      return "SIZE";
    case OptionKind::kBytesPerSecond:
      return "RATE";
    case OptionKind::kText:
      return "TEXT";
    case OptionKind::kPath:
      return "PATH";
    case OptionKind::kChoice:
    case OptionKind::kTexts:
      return choices.empty() ? "TEXT" : fmt::format("{{{}}}", fmt::join(choices, ","));
    case OptionKind::kIntegers:
      return "INT,...";
    case OptionKind::kReals:
      return "NUMBER,...";
  }
  return "";
}

Result<OptionValue> parse_option(const OptionText& option, std::string_view raw) {
  const std::string_view text = trimmed(raw);
  const tl::unexpected<Error> refused = fail(ErrorCode::kInvalidInput, "{}: '{}' is not accepted; accepted: {}{}",
                                             option.key, text, option.accepted(), renamed_text(option, text));
  const auto in_bounds = [&](double value) { return value >= option.min && value <= option.max; };
  switch (option.kind) {
    case OptionKind::kBoolean:
      if (text == "true" || text == "yes" || text == "on") {
        return OptionValue(true);
      }
      if (text == "false" || text == "no" || text == "off") {
        return OptionValue(false);
      }
      return refused;
    case OptionKind::kInteger: {
      std::int64_t value = 0;
      if (!read_number(text, value) || !in_bounds(static_cast<double>(value))) {
        return refused;
      }
      return OptionValue(value);
    }
    case OptionKind::kReal: {
      double value = 0;
      if (!read_number(text, value) || !std::isfinite(value) || !in_bounds(value)) {
        return refused;
      }
      return OptionValue(value);
    }
    case OptionKind::kSeconds:
    case OptionKind::kBytes:
    case OptionKind::kBytesPerSecond: {
      const Result<double> value = parse_quantity(option.kind, text);
      if (!value || !in_bounds(*value)) {
        return refused;
      }
      return OptionValue(*value);
    }
    case OptionKind::kText:
    case OptionKind::kPath:
      return OptionValue(std::string(text));
    case OptionKind::kChoice:
      if (!is_choice(option, text)) return refused;
      return OptionValue(std::string(text));
    case OptionKind::kTexts:
      if (!option.choices.empty() && !is_choice(option, text)) return refused;
      return OptionValue(std::vector<std::string>{std::string(text)});
    case OptionKind::kIntegers:
      return parse_list<std::int64_t>(option, text, refused);
    case OptionKind::kReals:
      return parse_list<double>(option, text, refused);
  }
  return refused;
}

std::string flag_name(std::string_view key) {
  std::string flag(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string format_option(const OptionText& option, const OptionValue& value) {
  struct Formatter {
    OptionKind kind;
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return number_text(kind, v); }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<std::string>& v) const { return fmt::format("{}", fmt::join(v, ",")); }
    std::string operator()(const std::vector<std::int64_t>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
    std::string operator()(const std::vector<double>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
  };
  return std::visit(Formatter{option.kind}, value);
}

std::string nearest_key(std::string_view key, const std::vector<std::string>& keys) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, key.size() / 3) + 1;
  for (const std::string& candidate : keys) {
    // Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j <= candidate.size(); ++j) {
      row[j] = j;
    }
    for (std::size_t i = 1; i <= key.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (key[i - 1] == candidate[j - 1] ? 0 : 1)});
        diagonal = above;
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace motley
