// Text taken apart: what stands between blanks, and the number that it is.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

namespace motley {

inline std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Nothing where the whole text is not a number of this type, or it is not finite.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_read = problem == std::errc() && rest == text.data() + text.size();
  return is_read && std::isfinite(static_cast<double>(number)) ? std::optional(number) : std::nullopt;
}

}  // namespace motley
