#include "motley/serial/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "motley/base/text.h"
#include "motley/base/units.h"

namespace motley {
namespace {

std::string format_plain(double value) {
  return fmt::format("{}", value);
}

// What a kind is called in help and in messages, and how its numbers are written; quantities have units, and no sign.
struct KindLook {
  std::string_view type_name, accepted;
  std::string (*format)(double) = format_plain;
  Result<double> (*parse_quantity)(std::string_view) = nullptr;
};

KindLook look(const OptionText& option) {
  switch (option.kind) {
    case OptionKind::kBoolean:
      return {"true|false", "true or false"};
    case OptionKind::kInteger:
      return {"INT", "an integer"};
    case OptionKind::kReal:
      return {"NUMBER", "a number"};
    case OptionKind::kSeconds:
      return {"DURATION", kAcceptedSeconds, exact_seconds, parse_seconds};
    case OptionKind::kBytes:
      return {"SIZE", kAcceptedBytes, exact_bytes, parse_bytes};
    case OptionKind::kBytesPerSecond:
      return {"RATE", kAcceptedBytesPerSecond, exact_bytes_per_second, parse_bytes_per_second};
    case OptionKind::kPath:
      return {"PATH", "a text"};
    case OptionKind::kText:
    case OptionKind::kChoice:
    case OptionKind::kTexts:
      return {"TEXT", "a text"};
    case OptionKind::kIntegers:
      return {"INT,...", "a list of integers"};
    case OptionKind::kReals:
      return {"NUMBER,...", "a list of numbers"};
  }
  return {};
}

std::string bounds_text(const OptionText& option) {
  const KindLook kind = look(option);
  const bool has_max = std::isfinite(option.max);
  const bool has_min = std::isfinite(option.min) && (option.min != 0 || has_max || kind.parse_quantity == nullptr);
  const std::string min = kind.format(option.min);
  const std::string max = kind.format(option.max);
  if (has_min && has_max) return fmt::format(" from {} to {}", min, max);
  return has_min ? " of at least " + min : has_max ? " of at most " + max : "";
}

template <class Number>
std::optional<Number> parse_within(const OptionText& option, std::string_view text) {
  const std::optional<Number> number = parse_number<Number>(text);
  const bool holds = number && static_cast<double>(*number) >= option.min && static_cast<double>(*number) <= option.max;
  return holds ? number : std::nullopt;
}

// "[1, 2, 3]" or "1,2,3" or ""
template <class Number>
std::optional<OptionValue> parse_list(const OptionText& option, std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = trimmed(text.substr(1, text.size() - 2));
  std::vector<Number> numbers;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::optional<Number> number = parse_within<Number>(option, trimmed(text.substr(0, comma)));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return OptionValue(std::move(numbers));
}

// The value of a text without blanks around it, or nothing where it is not accepted.
std::optional<OptionValue> parse_accepted(const OptionText& option, std::string_view text) {
  const auto is_one_of = [&](const auto& words) { return std::ranges::find(words, text) != words.end(); };
  switch (option.kind) {
    case OptionKind::kBoolean: {
      const bool is_true = is_one_of(std::array<std::string_view, 3>{"true", "yes", "on"});
      return is_true || is_one_of(std::array<std::string_view, 3>{"false", "no", "off"})
                 ? std::optional(OptionValue(is_true))
                 : std::nullopt;
    }
    case OptionKind::kInteger:
      return parse_within<std::int64_t>(option, text);
    case OptionKind::kReal:
      return parse_within<double>(option, text);
    case OptionKind::kSeconds:
    case OptionKind::kBytes:
    case OptionKind::kBytesPerSecond: {
      const Result<double> value = look(option).parse_quantity(text);
      return value && *value >= option.min && *value <= option.max ? std::optional(OptionValue(*value)) : std::nullopt;
    }
    case OptionKind::kText:
    case OptionKind::kPath:
      return std::string(text);
    case OptionKind::kChoice:
      return is_one_of(option.choices) ? std::optional(OptionValue(std::string(text))) : std::nullopt;
    case OptionKind::kTexts:
      if (!option.choices.empty() && !is_one_of(option.choices)) return std::nullopt;
      return std::vector<std::string>{std::string(text)};
    case OptionKind::kIntegers:
      return parse_list<std::int64_t>(option, text);
    case OptionKind::kReals:
      return parse_list<double>(option, text);
  }
  return std::nullopt;
}

}  // namespace

std::string OptionText::accepted() const {
  const bool has_choices = kind == OptionKind::kChoice || (kind == OptionKind::kTexts && !choices.empty());
  if (has_choices) return fmt::format("one of {}", fmt::join(choices, ", "));
  const char* example = kind == OptionKind::kIntegers ? ", such as [1, 28, 28]"
                        : kind == OptionKind::kReals  ? ", such as [1, 0.5]"
                                                      : "";
  return fmt::format("{}{}{}", look(*this).accepted, bounds_text(*this), example);
}

std::string OptionText::type_name() const {
  const bool has_choices = (kind == OptionKind::kChoice || kind == OptionKind::kTexts) && !choices.empty();
  return has_choices ? fmt::format("{{{}}}", fmt::join(choices, ",")) : std::string(look(*this).type_name);
}

Result<OptionValue> parse_option(const OptionText& option, std::string_view raw) {
  const std::string_view text = trimmed(raw);
  if (std::optional<OptionValue> value = parse_accepted(option, text)) return std::move(*value);
  // Of a word that is none of the choices: what it is called now, where it had another name.
  const auto renamed = std::ranges::find(option.renamed, text, &RenamedKey::before);
  return fail(ErrorCode::kInvalidInput, "{}: '{}' is not accepted; accepted: {}{}", option.key, text, option.accepted(),
              renamed == option.renamed.end() ? "" : fmt::format(" ({} is now {})", text, renamed->now));
}

std::string flag_name(std::string_view key) {
  std::string flag(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string format_option(const OptionText& option, const OptionValue& value) {
  const auto format = [&](const auto& held) -> std::string {
    using Held = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<Held, double>) {
      return look(option).format(held);
    } else if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
      return fmt::format("{}", fmt::join(held, ","));
    } else if constexpr (requires { typename Held::value_type; } && !std::is_same_v<Held, std::string>) {
      return fmt::format("[{}]", fmt::join(held, ", "));
    } else {
      return fmt::format("{}", held);
    }
  };
  return std::visit(format, value);
}

std::string nearest_key(std::string_view key, const std::vector<std::string>& keys) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, key.size() / 3) + 1;
  for (const std::string& candidate : keys) {
    // Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), 0);
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
