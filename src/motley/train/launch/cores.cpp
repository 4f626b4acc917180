#include "motley/train/launch/cores.h"

#include <sched.h>

#include "motley/base/os/file.h"

namespace motley::train {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Status pin_to_cores(const cluster::Worker& worker) {
  if (worker.cores.empty()) {
    return {};
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::int64_t core : worker.cores) {
    CPU_SET(static_cast<std::size_t>(core), &set);
  }
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) {
    return fail(ErrorCode::kInvalidInput, "worker '{}' cannot be pinned to cores [{}]: {}", worker.name,
                fmt::join(worker.cores, ", "), errno_text());
  }
  return {};
}

}  // namespace motley::train
