// The flags that schedule's commands share: the cluster, and what a policy aims at.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "motley/app/schedule_topology.h"
#include "motley/scheduling/simulator/policy.h"

namespace motley::cli {

CLI::Option* add_cluster(CLI::App& command, app::ClusterRequest& request);  // returns --cluster

const std::map<std::string, scheduling::Objective>& objectives();  // by name
void add_objective(CLI::App& command, std::string& objective);

}  // namespace motley::cli
