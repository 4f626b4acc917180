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

std::string bounds_text(const OptionText& option) {
  const bool has_min = std::isfinite(option.min);
  const bool has_max = std::isfinite(option.max);
  if (has_min && has_max) {
    return fmt::format(" from {} to {}", option.min, option.max);
  }
  return has_min   ? fmt::format(" of at least {}", option.min)
         : has_max ? fmt::format(" of at most {}", option.max)
                   : "";
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
      return "a time such as '250 ms' or '5 min'" + bounds_text(*this) + (bounds_text(*this).empty() ? "" : " s");
    case OptionKind::kBytes:
      return "a size such as '4 MB'" + bounds_text(*this) + (bounds_text(*this).empty() ? "" : " bytes");
    case OptionKind::kText:
    case OptionKind::kPath:
      return "a text";
    case OptionKind::kChoice:
      return fmt::format("one of {}", fmt::join(choices, ", "));
    case OptionKind::kIntegers:
      return "a list of integers" + bounds_text(*this) + ", such as [1, 28, 28]";
    case OptionKind::kReals:
      return "a list of numbers" + bounds_text(*this) + ", such as [1, 0.5]";
  }
  return "";
}

Result<OptionValue> parse_option(const OptionText& option, std::string_view raw) {
  const std::string_view text = trimmed(raw);
  const tl::unexpected<Error> refused =
      fail(ErrorCode::kInvalidInput, "{}: '{}' is not accepted; accepted: {}", option.key, text, option.accepted());
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
    case OptionKind::kBytes: {
      const Result<double> value = option.kind == OptionKind::kSeconds ? parse_seconds(text) : parse_bytes(text);
      if (!value || !in_bounds(*value)) {
        return refused;
      }
      return OptionValue(*value);
    }
    case OptionKind::kText:
    case OptionKind::kPath:
      return OptionValue(std::string(text));
    case OptionKind::kChoice:
      if (std::find(option.choices.begin(), option.choices.end(), text) == option.choices.end()) {
        return refused;
      }
      return OptionValue(std::string(text));
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

std::string format_option(const OptionValue& value) {
  struct Formatter {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<std::int64_t>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
    std::string operator()(const std::vector<double>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
  };
  return std::visit(Formatter{}, value);
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
