#include "motley/planning/simulate/prediction.h"

#include "motley/cluster/cluster.h"
#include "motley/model/profile.h"
#include "motley/planning/cost/problem.h"

namespace motley::planning {

Result<PredictedStep> read_prediction(const std::filesystem::path& folder, const PredictionFiles& files) {
  PredictedStep prediction;
  MOTLEY_ASSIGN(prediction.plan, read_plan(folder / files.plan));
  if (files.profile.empty()) {
    prediction.why_not = "the profile that the plan was made from is not in the run's folder";
    return prediction;
  }
  MOTLEY_ASSIGN(const model::Profile profile, model::read_profile(folder / files.profile));
  cluster::Cluster cluster;
  if (!files.cluster.empty()) {
    MOTLEY_ASSIGN(cluster, cluster::read_cluster(folder / files.cluster));
  }
  const auto problem = problem_of_plan(profile, cluster, prediction.plan);
  auto timeline = problem ? simulate(*problem, prediction.plan) : fail(problem.error());
  if (timeline) {
    prediction.timeline = std::move(*timeline);
  } else {
    prediction.why_not = timeline.error().message;
  }
  return prediction;
}

}  // namespace motley::planning
