#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

std::vector<std::pair<std::string, std::string>> list_variables(const Attempt& attempt) {
  int workers = 0;
  std::string nodes;
  for (const NodeAllocation& allocation : attempt.nodes) {
    workers += allocation.workers;
    nodes += fmt::format("{}{}:{}", nodes.empty() ? "" : ",", allocation.node, allocation.workers);
  }
  return {{"MOTLEY_JOB", attempt.name},
          {"MOTLEY_ATTEMPT", fmt::format("{}", attempt.number)},
          {"MOTLEY_WORKERS", fmt::format("{}", workers)},
          {"MOTLEY_NODES", nodes}};
}

}  // namespace motley::scheduling
