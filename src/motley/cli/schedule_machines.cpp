#include "motley/cli/schedule_machines.h"

#include "motley/scheduling/trace/cluster_machines.h"

namespace motley::cli {

CLI::Option* add_machines(CLI::App& command, MachinesArguments& arguments) {
  CLI::Option* machines = command.add_option(
      "--machines", arguments.machines,
      "Devices: 128 in one place, 16x8 on 16 servers of 8, 16x8/4 in racks of 4 servers, 8x4:v100,16x4:k80 of unlike "
      "types, or a cluster.yaml with nodes");
  command.add_option("--inside", arguments.inside, "Gb/s between devices of one server [no limit]")
      ->check(CLI::PositiveNumber);
  command.add_option("--between", arguments.between, "Gb/s of a server's link to the others [no limit]")
      ->check(CLI::PositiveNumber);
  return machines;
}

Result<scheduling::Machines> machines_of(const MachinesArguments& arguments, scheduling::Machines otherwise) {
  constexpr double kGigabit = 1e9 / 8;
  scheduling::Machines machines = std::move(otherwise);
  if (arguments.machines.ends_with(".yaml") || arguments.machines.ends_with(".yml")) {
    MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(arguments.machines));
    machines = scheduling::machines_of(cluster);
    if (machines.devices() == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: has no nodes with devices; accepted: one or more", arguments.machines);
    }
  } else if (!arguments.machines.empty()) {
    MOTLEY_ASSIGN(machines, scheduling::parse_machines(arguments.machines));
  }
  if (arguments.inside > 0) machines.network.inside = arguments.inside * kGigabit;
  if (arguments.between > 0) machines.network.between = arguments.between * kGigabit;
  return machines;
}

const std::map<std::string, scheduling::Objective>& objectives() {
  static const std::map<std::string, scheduling::Objective> all = {{"utility", scheduling::Objective::kUtility},
                                                                   {"completion", scheduling::Objective::kCompletion},
                                                                   {"makespan", scheduling::Objective::kMakespan},
                                                                   {"fairness", scheduling::Objective::kFairness}};
  return all;
}

void add_objective(CLI::App& command, std::string& objective) {
  command
      .add_option("--objective", objective,
                  "What gadget-exact aims at: utility of the jobs' own, or, knowing durations, short times to "
                  "completion, a short makespan, or that no job is behind an equal part of the cluster [utility]")
      ->check(CLI::IsMember(objectives()));
}

}  // namespace motley::cli
