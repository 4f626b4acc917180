#include "motley/scheduling/service/executor.h"

namespace motley::scheduling {

std::vector<std::pair<std::string, std::string>> variables_of(const Attempt& attempt) {
  int workers = 0;
  std::string nodes;
  for (const NodeShare& share : attempt.nodes) {
    workers += share.workers;
    nodes += fmt::format("{}{}:{}", nodes.empty() ? "" : ",", share.node, share.workers);
  }
  return {{"MOTLEY_JOB", attempt.name},
          {"MOTLEY_ATTEMPT", fmt::format("{}", attempt.number)},
          {"MOTLEY_WORKERS", fmt::format("{}", workers)},
          {"MOTLEY_NODES", nodes}};
}

}  // namespace motley::scheduling
