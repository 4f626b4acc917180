#include "motley/train/job/execution_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<ExecutionSpec>& ExecutionSpec::options() {
  static const OptionTable<ExecutionSpec> options = {
      {{"workers", kInteger, "worker processes; 0: those of the cluster file, else one", 0, 1024},
       &ExecutionSpec::workers},
      {{"cluster", kPath, "cluster file that describes the workers; empty: this machine"}, &ExecutionSpec::cluster},
      {{"plan", kPath,
        "plan file (of `motley plan`) that says which layers each worker computes; auto: profile and plan first; "
        "empty: all of them"},
       &ExecutionSpec::plan},
      {{"profile", kPath,
        "with a plan file: profile that the plan was made from, so that the run can replan and its page show the "
        "predicted step; empty: that of emulation"},
       &ExecutionSpec::profile},
      {{"replan", kBoolean,
        "a planned run whose profile is known moves to a better plan of the same workers when they are not as fast as "
        "that says"},
       &ExecutionSpec::replan},
      {{"emulation", kPath,
        "with a plan file: profile whose times for its device types and layers the workers take, to try a plan for "
        "devices that are not here; empty: they are as fast as they are"},
       &ExecutionSpec::emulation},
      {{"device", kText, "cpu, cuda or cuda:N, where the cluster file does not say"}, &ExecutionSpec::device},
      {{"threads", kInteger, "compute threads of a worker, where the cluster file does not say", 1, 1024},
       &ExecutionSpec::threads},
      {{"deterministic", kBoolean, "only kernels that give the same bits from run to run"},
       &ExecutionSpec::deterministic},
  };
  return options;
}

Status ExecutionSpec::check() const {
  for (const auto& [key, file] : {std::pair{"emulation", &emulation}, std::pair{"profile", &profile}}) {
    if (!file->empty() && (plan.empty() || plan == kAutoPlan)) {
      return fail(ErrorCode::kInvalidInput, "{}: '{}' is given; accepted with a plan file (key plan)", key, *file);
    }
  }
  if (device != "cpu" && device != "cuda" && device.rfind("cuda:", 0) != 0) {
    return fail(ErrorCode::kInvalidInput, "device: '{}' is not accepted; accepted: cpu, cuda or cuda:N", device);
  }
  return {};
}

const OptionTable<DeadlineSpec>& DeadlineSpec::options() {
  static const OptionTable<DeadlineSpec> options = {
      {{"join", kSeconds, "how long workers may take to appear", 0.1, 86400}, &DeadlineSpec::join},
      {{"step", kSeconds, "how long a worker may be waited for within a step", 0.1, 86400}, &DeadlineSpec::step},
  };
  return options;
}

}  // namespace motley::train
