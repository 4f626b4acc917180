#include "motley/base/units.h"

#include <charconv>
#include <cmath>
#include <map>

namespace motley {
namespace {

struct Quantity {
  double number;
  std::string unit;  // without spaces
};

Result<Quantity> split(std::string_view text, std::string_view wanted) {
  const auto refuse = [&] { return fail(ErrorCode::kInvalidInput, "'{}' is not {}", text, wanted); };
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin != end && *begin == ' ') {
    ++begin;
  }
  Quantity quantity{};
  const auto [rest, problem] = std::from_chars(begin, end, quantity.number);
  if (problem != std::errc() || !std::isfinite(quantity.number) || quantity.number < 0) {
    return refuse();
  }
  for (const char* c = rest; c != end; ++c) {
    if (*c != ' ') {
      quantity.unit.push_back(*c);
    }
  }
  return quantity;
}

const std::map<std::string, double, std::less<>>& byte_units() {
  static const std::map<std::string, double, std::less<>> units = {{"", 1},
                                                                   {"B", 1},
                                                                   {"KB", 1e3},
                                                                   {"kB", 1e3},
                                                                   {"MB", 1e6},
                                                                   {"GB", 1e9},
                                                                   {"TB", 1e12},
                                                                   {"KiB", 1024},
                                                                   {"MiB", 1048576},
                                                                   {"GiB", 1073741824.0},
                                                                   {"TiB", 1099511627776.0}};
  return units;
}

Result<double> parse(std::string_view text, const std::map<std::string, double, std::less<>>& units,
                     std::string_view wanted) {
  MOTLEY_ASSIGN(const Quantity quantity, split(text, wanted));
  const auto found = units.find(quantity.unit);
  if (found == units.end()) {
    return fail(ErrorCode::kInvalidInput, "'{}' is not {}", text, wanted);
  }
  return quantity.number * found->second;
}

}  // namespace

Result<double> parse_bytes(std::string_view text) {
  return parse(text, byte_units(), "a size such as '64 KB', '512 MiB' or '16 GB'");
}

Result<double> parse_bytes_per_second(std::string_view text) {
  static const std::map<std::string, double, std::less<>> units = [] {
    std::map<std::string, double, std::less<>> created;
    for (const auto& [prefix, factor] :
         std::map<std::string, double>{{"", 1}, {"K", 1e3}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}}) {
      created[prefix + "b/s"] = created[prefix + "bps"] = created[prefix + "bit/s"] = created[prefix + "bit"] =
          factor / 8;
      created[prefix + "B/s"] = created[prefix + "Bps"] = factor;
    }
    return created;
  }();
  return parse(text, units, "a rate such as '1 Gb/s' (bits) or '10 GB/s' (bytes)");
}

Result<double> parse_seconds(std::string_view text) {
  static const std::map<std::string, double, std::less<>> units = {{"", 1},      {"s", 1},     {"ms", 1e-3},
                                                                   {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9},
                                                                   {"min", 60},  {"h", 3600},  {"d", 86400}};
  return parse(text, units, "a time such as '250 ms', '10 s', '5 min' or a number of seconds");
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (std::abs(bytes) >= 1000 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string format_seconds(double seconds) {
  if (!(std::abs(seconds) < 1e12)) {
    return fmt::format("{:.3g} s", seconds);
  }
  if (seconds < 1e-3) {
    return fmt::format("{:.3g} us", seconds * 1e6);
  }
  if (seconds < 1) {
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

}  // namespace motley
