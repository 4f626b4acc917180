// The flags that schedule's commands share: the cluster, and what a policy aims at.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "motley/scheduling/simulator/policy.h"

namespace motley::cli {

struct MachinesArguments {
  std::string machines;
  double inside = 0;   // Gb/s; 0: as the cluster file has it, else no limit
  double between = 0;  // likewise
};

CLI::Option* add_machines(CLI::App& command, MachinesArguments& arguments);  // returns --machines
// Those that --machines names, or `otherwise`; with the links of --inside and --between.
Result<scheduling::Machines> machines_of(const MachinesArguments& arguments, scheduling::Machines otherwise = {});

const std::map<std::string, scheduling::Objective>& objectives();  // by name
void add_objective(CLI::App& command, std::string& objective);

}  // namespace motley::cli
