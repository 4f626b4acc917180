// The models and machines on which planning methods are compared.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/plan/plan.h"

namespace motley::bench {

struct PlanningCase {
  std::string name;
  planning::Problem problem;
  planning::Objective
      objective;  // lowest cost with a minimum throughput of half of what the best single device type can do
};

// Every table of model::table_names() on examples/rent/cluster.yaml, and every published profile of
// ../shared/data/profiles where that is there (its device and one at a third of the speed and a fifth of the price).
Result<std::vector<PlanningCase>> planning_cases(const BenchOptions& options, planning::CostModel cost_model);
// One table by its name.
Result<PlanningCase> planning_case(const BenchOptions& options, const std::string& table,
                                   planning::CostModel cost_model);

// A random problem under kHeterps of so many layers and device types, of each of which there are up to 16 devices.
PlanningCase random_case(int layers, int types, std::uint64_t seed);

// The speeds that a cluster file states for its device types.
std::vector<model::DeviceSpeed> list_speeds(const cluster::Cluster& cluster);

// The folder of published data beside the checkout; empty where there is none.
std::filesystem::path shared_data(const BenchOptions& options);

}  // namespace motley::bench
