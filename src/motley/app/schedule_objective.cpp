#include "motley/app/schedule_objective.h"

#include <map>

namespace motley::app {
namespace {

const std::map<std::string, scheduling::Objective> kObjectives = {{"utility", scheduling::Objective::kUtility},
                                                                  {"completion", scheduling::Objective::kCompletion},
                                                                  {"makespan", scheduling::Objective::kMakespan},
                                                                  {"fairness", scheduling::Objective::kFairness}};

}  // namespace

OptionText objective_option() {
  return choice("objective",
                "what gadget-exact optimises: the jobs' own utilities, or, knowing durations, completion times, the "
                "makespan, or finish-time fairness (no job behind an equal part of the cluster)",
                {"utility", "completion", "makespan", "fairness"});
}

scheduling::Objective parse_objective(const std::string& word) {
  return kObjectives.at(word);
}

}  // namespace motley::app
