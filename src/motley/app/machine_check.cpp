#include "motley/app/machine_check.h"

#include "motley/cluster/machine.h"

namespace motley::app {

MachineCheck check_this_machine(const std::string& torch_version) {
  const auto items = cluster::check_machine(cluster::detect_machine(), torch_version);
  MachineCheck check{cluster::to_text(items), {}};
  for (const cluster::CheckItem& item : items) {
    if (!item.needed || item.works || !check.works) continue;
    check.works = fail(ErrorCode::kUnavailable, "{} does not work here: {}", item.name, item.advice);
  }
  return check;
}

std::string describe_this_machine() {
  return cluster::to_yaml(cluster::default_cluster(cluster::detect_machine()));
}

}  // namespace motley::app
