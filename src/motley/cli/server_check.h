// motley check --server and --racks: what this machine would be worth as a parameter server, and how gradients are best
// summed over racks that are only described.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "motley/base/result.h"
#include "motley/planning/cost/server_balance.h"

namespace motley::cli {

struct ServerCheck {
  bool server = false;
  std::string model = "resnet50";
  double seconds_per_batch = 0;  // 0: of the profile, or as published
  std::string profile;
  double batch = 0;  // 0: the profile's
  std::string optimizer = "momentum";
  std::string wire = "float32";
  double link_gbps = 0;  // 0: what this machine's cards say
  bool json = false;

  int racks = 0;  // 0: not asked for
  int workers_per_rack = 8;
  double worker_gbps = 10;
  double rack_server_gbps = 100;
  double uplink_gbps = 40;
  planning::SumSwitch sum_switch;
  double switch_gbps = 100;
  double switch_round_trip_microseconds = 10;

  bool wanted() const { return server || racks > 0; }
};

void add_server_check(CLI::App& command, ServerCheck& check);
Status run_server_check(const ServerCheck& check);

}  // namespace motley::cli
