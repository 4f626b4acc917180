#include "motley/planning/methods.h"

namespace motley::planning {

std::vector<std::unique_ptr<Planner>> planners() {
  std::vector<std::unique_ptr<Planner>> all;
  all.push_back(make_exact());
  all.push_back(make_brute_force());
  all.push_back(make_cpu_only());
  all.push_back(make_gpu_only());
  all.push_back(make_heuristic());
  all.push_back(make_greedy());
  all.push_back(make_genetic());
  all.push_back(make_bayesian());
  all.push_back(make_pipedream());
  return all;
}

}  // namespace motley::planning
