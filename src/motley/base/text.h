// Text taken apart: what stands between blanks, the number that it is, and its characters, of which some are not shown
// to people as they come.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
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

// The length of the well-formed UTF-8 sequence at the front of the text, 0 where there is none.
std::size_t utf8_length(std::string_view text);

// Control characters and bytes that are not UTF-8 as \xNN each, all others as they are.
std::string escaped(std::string_view text);
// Whether there is nothing to escape.
bool is_plain(std::string_view text);

}  // namespace motley
