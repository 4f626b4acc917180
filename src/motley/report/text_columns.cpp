#include "motley/report/text_columns.h"

#include <fmt/format.h>

#include <algorithm>

namespace motley::report {
namespace {

// The text, or its beginning where it is longer than a terminal bears.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 96;  // characters
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && ++characters > kMost) return text.substr(0, i) + "…";
  }
  return text;
}

}  // namespace

std::string text_columns(const std::vector<std::vector<std::string>>& rows) {
  const auto measure_width = [](const std::string& text) {  // in characters, not bytes
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], measure_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i + 1 < row.size() ? row[i] + std::string(widths[i] - measure_width(row[i]) + 2, ' ') : shortened(row[i]);
    }
    text += fmt::format("  {}\n", line);
  }
  return text;
}

}  // namespace motley::report
