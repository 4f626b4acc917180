// Which workers compute a job, by which plan, and how long they wait for each other.
#pragma once

#include <cstdint>
#include <string>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

inline constexpr const char* kAutoPlan = "auto";  // in ExecutionSpec::plan: the best that there is, found first

// Who computes, by which plan and on what; keys without a prefix.
struct ExecutionSpec {
  std::int64_t workers = 0;
  std::string cluster;
  std::string plan;
  std::string profile;
  bool replan = true;
  std::string emulation;
  std::string device = "cpu";
  std::int64_t threads = 1;
  bool deterministic = true;

  static const OptionTable<ExecutionSpec>& options();
  Status check() const;
};

// How long others are waited for, key deadline.
struct DeadlineSpec {
  double join = 60;  // seconds
  double step = 60;  // seconds

  static const OptionTable<DeadlineSpec>& options();
};

}  // namespace motley::train
