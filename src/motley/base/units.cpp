#include "motley/base/units.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace motley {
namespace {

// A unit's name and what it is worth in bytes, bytes per second or seconds. Of a kind's units, those that are written
// (exact_text) come first, the largest first.
struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kByteUnits[] = {
    {"TB", 1e12},        {"GB", 1e9},      {"MB", 1e6},   {"KB", 1e3}, {"TiB", 1099511627776.0},
    {"GiB", 1073741824}, {"MiB", 1048576}, {"KiB", 1024}, {"B", 1},    {"kB", 1e3}};
constexpr Unit kSecondUnits[] = {{"d", 86400}, {"h", 3600},  {"min", 60},  {"s", 1}, {"ms", 1e-3},
                                 {"us", 1e-6}, {"ns", 1e-9}, {"µs", 1e-6}, {"m", 60}};
constexpr Unit kRatePrefixes[] = {{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"K", 1e3}, {"k", 1e3}, {"", 1}};

// "Gbps", "Gb/s", "Gbit/s" and "Gbit"; "GB/s" and "GBps". Nothing for another unit.
std::optional<double> rate_factor(std::string_view unit) {
  for (const Unit& prefix : kRatePrefixes) {
    if (!unit.starts_with(prefix.name)) continue;
    const std::string_view rest = unit.substr(prefix.name.size());
    if (rest == "bps" || rest == "b/s" || rest == "bit/s" || rest == "bit") return prefix.factor / 8;
    if (rest == "Bps" || rest == "B/s") return prefix.factor;
  }
  return std::nullopt;
}

std::optional<double> factor_in(std::span<const Unit> units, std::string_view name) {
  const auto found = std::ranges::find(units, name, &Unit::name);
  return found == units.end() ? std::nullopt : std::optional(found->factor);
}

// So many of a unit; of those below 1 exactly, as the whole numbers that go into one are ("10us" is 1e-5).
double multiply(double number, double factor) {
  return factor < 1 ? number / std::round(1 / factor) : number * factor;
}

template <class FindFactor>
Result<double> parse(std::string_view text, std::string_view accepted, const FindFactor& find_factor) {
  double number = 0;
  const std::string_view words = text.substr(std::min(text.find_first_not_of(' '), text.size()));
  const auto [rest, problem] = std::from_chars(words.data(), words.data() + words.size(), number);
  std::string unit(words.substr(static_cast<std::size_t>(rest - words.data())));
  std::erase(unit, ' ');
  const std::optional<double> factor = unit.empty() && number == 0 ? 1 : find_factor(unit);
  if (problem != std::errc() || !std::isfinite(number) || number < 0 || !factor) {
    return fail(ErrorCode::kInvalidInput, "'{}' is not {}", text, accepted);
  }
  return multiply(number, *factor);
}

// The value in the largest of these units, the largest first, in which it is an integer; else in `base`, whose factor
// is 1.
std::string exact_text(double value, std::span<const Unit> units, std::string_view base) {
  if (value == 0) return "0";
  for (const Unit& unit : units) {
    const double count = std::round(value / unit.factor);
    if (count >= 1 && count < 1e6 && multiply(count, unit.factor) == value)
      return fmt::format("{}{}", count, unit.name);
  }
  return fmt::format("{}{}", value, base);
}

}  // namespace

Result<double> parse_bytes(std::string_view text) {
  return parse(text, kAcceptedBytes, [](std::string_view unit) { return factor_in(kByteUnits, unit); });
}

Result<double> parse_bytes_per_second(std::string_view text) {
  return parse(text, kAcceptedBytesPerSecond, rate_factor);
}

Result<double> parse_seconds(std::string_view text) {
  return parse(text, kAcceptedSeconds, [](std::string_view unit) { return factor_in(kSecondUnits, unit); });
}

std::string exact_bytes(double bytes) {
  return exact_text(bytes, std::span(kByteUnits).first(9), "B");
}

std::string exact_bytes_per_second(double bytes_per_second) {
  static constexpr Unit kWritten[] = {{"Tbps", 1e12 / 8}, {"Gbps", 1e9 / 8}, {"Mbps", 1e6 / 8}};
  return exact_text(bytes_per_second, kWritten, "B/s");
}

std::string exact_seconds(double seconds) {
  return exact_text(seconds, std::span(kSecondUnits).first(7), "s");
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (std::abs(bytes) >= 999.5 && unit < 5) {  // what is 1000 with three digits
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string format_seconds(double seconds) {
  if (!(std::abs(seconds) < 1e12)) {
    return fmt::format("{:.3g} s", seconds);
  }
  if (seconds == 0) {
    return "0 s";
  }
  if (seconds < 0.9995e-3) {
    return fmt::format("{:.3g} us", seconds * 1e6);
  }
  if (seconds < 0.9995) {
    return fmt::format("{:.3g} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.3g} s", seconds);
  }
  const long whole = std::lround(seconds);
  return whole < 3600 ? fmt::format("{} min {} s", whole / 60, whole % 60)
                      : fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string format_number(double value) {
  if (!(std::abs(value) >= 999.95) || std::isinf(value)) {
    return fmt::format("{:.4g}", value);
  }
  std::string digits = fmt::format("{:.0f}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string format_percent(double fraction, int digits) {
  return fmt::format("{:.{}f} %", 100 * fraction, digits);
}

std::string format_count(std::int64_t count, std::string_view noun, std::string_view ending) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ending);
}

std::string format_ranks(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace motley
