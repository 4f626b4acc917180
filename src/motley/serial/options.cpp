#include "motley/serial/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "motley/base/text.h"
#include "motley/base/units.h"
#include "motley/serial/nearest_keys.h"

namespace motley {
namespace {

constexpr double kAboveZero = 1e-6;  // a least value up to this one only keeps zero out

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
    case OptionKind::kOutput:
      return {"FILE", "a text"};
    case OptionKind::kText:
    case OptionKind::kChoice:
    case OptionKind::kTexts:
      return {"TEXT", "a text"};
    case OptionKind::kNames:
      return {"NAME,...", "a list of names"};
    case OptionKind::kIntegers:
      return {"INT,...", "a list of integers"};
    case OptionKind::kReals:
      return {"NUMBER,...", "a list of numbers"};
  }
  return {};
}

template <class Number>
std::optional<Number> parse_within(const OptionText& option, std::string_view text) {
  const std::optional<Number> number = parse_number<Number>(text);
  const bool holds = number && static_cast<double>(*number) >= option.min && static_cast<double>(*number) <= option.max;
  return holds ? number : std::nullopt;
}

// As a whole: in "[one], [two]" each is.
bool is_in_brackets(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
    if (depth <= 0) return i > 0 && depth == 0 && i + 1 == text.size();
  }
  return false;
}

// Of "[1, 2, 3]" what is in the brackets.
std::string_view without_brackets(std::string_view text) {
  return is_in_brackets(text) ? trimmed(text.substr(1, text.size() - 2)) : text;
}

// "[1, 2, 3]" or "1,2,3" or ""
template <class Number>
std::optional<OptionValue> parse_list(const OptionText& option, std::string_view text) {
  text = without_brackets(text);
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
    case OptionKind::kOutput:
      return std::string(text);
    case OptionKind::kChoice:
      return is_one_of(option.choices) ? std::optional(OptionValue(std::string(text))) : std::nullopt;
    case OptionKind::kTexts:
      if (!option.choices.empty() && !is_one_of(option.choices)) return std::nullopt;
      return std::vector<std::string>{std::string(text)};
    case OptionKind::kNames:
      return std::string(without_brackets(text));
    case OptionKind::kIntegers:
      return parse_list<std::int64_t>(option, text);
    case OptionKind::kReals:
      return parse_list<double>(option, text);
  }
  return std::nullopt;
}

}  // namespace

std::string OptionText::bounds() const {
  const KindLook kind_look = look(*this);
  const bool has_max = std::isfinite(max);
  const bool has_min = std::isfinite(min) && (min != 0 || has_max || kind_look.parse_quantity == nullptr);
  if (has_min && has_max && min == max) return kind_look.format(min) + " only";
  if (has_min && !has_max && min > 0 && min <= kAboveZero) return "above 0";
  if (has_min && has_max) return fmt::format("from {} to {}", kind_look.format(min), kind_look.format(max));
  return has_min ? "at least " + kind_look.format(min) : has_max ? "at most " + kind_look.format(max) : "";
}

std::string OptionText::accepted() const {
  const bool has_choices = kind == OptionKind::kChoice || (kind == OptionKind::kTexts && !choices.empty());
  if (has_choices) return fmt::format("one of {}", fmt::join(choices, ", "));
  const std::string within = bounds();
  const char* between = within.empty()              ? ""
                        : within.starts_with("at ") ? " of "
                        : within.ends_with("only")  ? ", "
                                                    : " ";
  const char* example = kind == OptionKind::kIntegers ? ", such as [64, 128]"
                        : kind == OptionKind::kReals  ? ", such as [0.9, 0.5]"
                        : kind == OptionKind::kNames  ? ", such as [one, two] or one,two"
                                                      : "";
  return fmt::format("{}{}{}{}", look(*this).accepted, between, within, example);
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
  const bool is_renamed = renamed != option.renamed.end();
  const std::string near = is_renamed ? "" : nearest_key(text, option.choices);
  return fail(ErrorCode::kInvalidInput, "{}: '{}' is not accepted; {}accepted: {}{}", option.key, text,
              near.empty() ? "" : fmt::format("did you mean '{}'? ", near), option.accepted(),
              is_renamed ? fmt::format(" ({} is now {})", text, renamed->now) : "");
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
    } else if constexpr (std::is_same_v<Held, std::string>) {
      return option.kind == OptionKind::kNames && is_in_brackets(held) ? "[" + held + "]" : held;
    } else {
      return fmt::format("{}", held);
    }
  };
  return std::visit(format, value);
}

std::string explain_unknown_key(std::string_view key, std::string_view value, const std::vector<OptionText>& options) {
  std::vector<std::string> keys, of_group, top;  // the commonest first; those of groups at the top as "optimizer.*"
  std::string meant;                             // of the group: the first that takes the value
  for (const bool is_common : {true, false}) {
    for (const OptionText& option : options) {
      if (option.is_common == is_common) keys.push_back(option.key);
    }
  }
  for (const OptionText& option : options) {
    const std::size_t dot = option.key.find('.');
    const std::string name = dot == std::string::npos ? option.key : option.key.substr(0, dot + 1) + "*";
    if (std::ranges::find(top, name) == top.end()) top.push_back(name);
    if (!option.key.starts_with(fmt::format("{}.", key))) continue;
    of_group.push_back(option.key);
    if (meant.empty() && !value.empty() && parse_option(option, value)) meant = option.key;
  }
  if (!of_group.empty()) {
    return fmt::format("'{}' is a group of keys; {}accepted: {}", key,
                       meant.empty() ? "" : fmt::format("did you mean '{}: {}'? ", meant, value),
                       fmt::join(of_group, ", "));
  }
  const std::vector<std::string> near = nearest_keys(key, keys);
  return near.empty() ? fmt::format("unknown key '{}'; accepted: {}", key, fmt::join(top, ", "))
                      : fmt::format("unknown key '{}'; did you mean '{}'?", key, fmt::join(near, "' or '"));
}

}  // namespace motley
