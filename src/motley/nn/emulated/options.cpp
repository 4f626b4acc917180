#include "motley/nn/emulated/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "motley/base/text.h"
#include "motley/base/units.h"

namespace motley::nn::emulated {
namespace {

constexpr std::string_view kVariable = "MOTLEY_EMULATED";

struct Key {
  std::string_view name;
  double Options::* value;
  Result<double> (*parse)(std::string_view);
};

Result<double> parse_rate(std::string_view text) {
  const auto number = parse_number<double>(text);
  if (!number || *number < 0) {
    return fail(ErrorCode::kInvalidInput, "'{}' is no number of operations in a second; accepted: such as '2e9'", text);
  }
  return *number;
}

constexpr Key kKeys[] = {{"memory", &Options::memory_bytes, parse_bytes},
                         {"host_link", &Options::link_bytes_per_second, parse_bytes_per_second},
                         {"host_link_latency", &Options::link_seconds, parse_seconds},
                         {"flops", &Options::flops_per_second, parse_rate},
                         {"memory_bandwidth", &Options::memory_bytes_per_second, parse_bytes_per_second},
                         {"kernel_overhead", &Options::kernel_seconds, parse_seconds}};

}  // namespace

Result<Options> Options::parse(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = trimmed(pair.substr(0, equals));
    const std::string_view value = trimmed(pair.substr(std::min(pair.size(), equals + 1)));
    if (name == "devices") {
      const auto count = parse_number<int>(value);
      if (!count || *count < 1 || *count > 16) {
        return fail(ErrorCode::kInvalidInput, "{}: devices is '{}'; accepted: 1 to 16", kVariable, value);
      }
      options.devices = *count;
      continue;
    }
    if (name == "omit" || name == "survey") {
      (name == "omit" ? options.omit : options.survey) = value;
      continue;
    }
    if (name == "pageable" && (value == "refused" || value == "allowed")) {
      options.refuses_pageable = value == "refused";
      continue;
    }
    const auto key = std::ranges::find(kKeys, name, &Key::name);
    if (key == std::end(kKeys)) {
      std::vector<std::string_view> names = {"devices", "pageable=refused", "omit", "survey"};
      for (const Key& accepted : kKeys) names.push_back(accepted.name);
      return fail(ErrorCode::kInvalidInput, "{}: '{}' is no key; accepted: {}", kVariable, name,
                  fmt::join(names, ", "));
    }
    const auto parsed = key->parse(value);
    if (!parsed) return fail(parsed.error().within(fmt::format("{}: {}", kVariable, name)));
    options.*key->value = *parsed;
  }
  if (options.memory_bytes < 1) {
    return fail(ErrorCode::kInvalidInput, "{}: memory is 0; accepted: what a device holds, such as '1GB'", kVariable);
  }
  return options;
}

}  // namespace motley::nn::emulated
