// What a planned run was meant to be: its plan and, where the run's folder has what the plan was made from, the step
// replayed event by event.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "motley/base/result.h"
#include "motley/planning/plan/plan.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::planning {

struct PredictedStep {
  Plan plan;
  std::optional<Timeline> timeline;
  std::string why_not;  // there is no timeline
};

// The files' names within the folder; empty: there is none. Without a cluster file no link is taken to cost anything.
// Errors are those of files that cannot be read; a profile that does not fit the plan gives no timeline.
struct PredictionFiles {
  std::string plan, profile, cluster;
};
Result<PredictedStep> read_prediction(const std::filesystem::path& folder, const PredictionFiles& files);

}  // namespace motley::planning
