// The lines of a trace and their cells, and what is said of one that is wrong.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

struct TraceLine {
  std::size_t number = 0;  // in the file, from 1
  std::vector<std::string_view> cells;
};

class TraceLines {
 public:
  TraceLines(std::string_view text, const std::string& name, char separator)
      : rest_(text), name_(name), separator_(separator) {}

  // The next line that is not empty.
  std::optional<TraceLine> next() {
    while (!rest_.empty()) {
      const std::size_t end = rest_.find('\n');
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
      ++number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) return TraceLine{number_, split(line, separator_)};
    }
    return std::nullopt;
  }

  tl::unexpected<Error> refuse(std::size_t line, std::string_view field, std::string_view value,
                               std::string_view accepted) const {
    return fail(ErrorCode::kInvalidInput, "{}:{}: {} is '{}'; accepted: {}", name_, line, field, value, accepted);
  }
  tl::unexpected<Error> refuse_count(const TraceLine& line, std::string_view accepted) const {
    return fail(ErrorCode::kInvalidInput, "{}:{}: has {} fields; accepted: {}", name_, line.number, line.cells.size(),
                accepted);
  }

  static std::vector<std::string_view> split(std::string_view line, char separator) {
    std::vector<std::string_view> cells;
    while (true) {
      const std::size_t end = line.find(separator);
      cells.push_back(line.substr(0, end));
      if (end == std::string_view::npos) return cells;
      line.remove_prefix(end + 1);
    }
  }

 private:
  std::string_view rest_;
  const std::string& name_;
  char separator_;
  std::size_t number_ = 0;
};

// Finite numbers only, and nothing behind them.
inline std::optional<double> number_in_cell(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

inline constexpr double kLongestSeconds = 1e10;  // of an arrival or a duration
inline constexpr int kMostTraceWorkers = 1'000'000;

}  // namespace motley::scheduling
