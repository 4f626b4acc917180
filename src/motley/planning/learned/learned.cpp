// The list of the planners with policy networks.
#include "motley/planning/learned/learned.h"

namespace motley::planning {

std::vector<std::unique_ptr<Planner>> learned_planners() {
  std::vector<std::unique_ptr<Planner>> planners;
  planners.push_back(make_rl_lstm());
  planners.push_back(make_rl_rnn());
  planners.push_back(make_rl_attention());
  return planners;
}

}  // namespace motley::planning
