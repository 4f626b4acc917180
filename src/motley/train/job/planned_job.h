// A job that runs by a plan: the plan that its key names, and what follows from it for the workers.
#pragma once

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/job/job.h"

namespace motley::train {

// The plan, read and held against the job's keys. Errors (kInvalidInput) name the key and what would be accepted.
Result<planning::Plan> plan_of(const Job& job);

// Sets the keys that the plan decides where the job leaves them open: exchange.method, where a stage meets at a
// parameter server. Does nothing to a job without a plan.
Status follow_plan(Job& job);

// A worker for each of the plan's replicas, stage by stage. Where the cluster describes workers, each replica is the
// next of its type; else it is any process of this machine.
Result<cluster::Cluster> planned_cluster(const Job& job, const planning::Plan& plan, cluster::Cluster described);

}  // namespace motley::train
