#include "motley/scheduling/simulator/policy.h"

#include <algorithm>

namespace motley::scheduling {

double State::run_seconds(int number) const {
  const Progress& one = progress[static_cast<std::size_t>(number)];
  return one.run_seconds + (one.runs() ? now - one.since : 0);
}

double State::device_seconds(int number) const {
  const Progress& one = progress[static_cast<std::size_t>(number)];
  return one.device_seconds + (one.runs() ? (now - one.since) * count_workers(one.placement) : 0);
}

double State::done_seconds(int number) const {
  const Progress& one = progress[static_cast<std::size_t>(number)];
  return one.done_seconds + (one.runs() ? one.speed * std::max(0.0, now - std::max(one.since, one.resumes)) : 0);
}

Status check_alike(const State& state, const std::string& policy) {
  if (!state.failed.empty()) {
    return fail(ErrorCode::kInvalidInput, "--policy: '{}' knows no failures; accepted: without, or another policy",
                policy);
  }
  for (const int number : state.arrived) {
    if (state.job(number).type_speeds.empty()) continue;
    return fail(ErrorCode::kInvalidInput,
                "--policy: '{}' knows one type of devices only, and job '{}' is not as fast on all; accepted: another "
                "policy",
                policy, state.job(number).name);
  }
  return {};
}

}  // namespace motley::scheduling
