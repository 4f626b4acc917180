// What this machine would be worth as a parameter server, and how gradients are best summed over racks that are only
// described: measures what the formulas of planning/cost/server_balance.h ask for.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/planning/cost/server_balance.h"

namespace motley::app {

inline constexpr double kBytesPerGigabit = 1e9 / 8;

struct ServerCheck {
  std::string model = "resnet50";
  double seconds_per_batch = 0;  // 0: of the profile, or as published
  std::string profile;
  double batch = 0;  // 0: the profile's
  std::string optimizer = "momentum";
  std::string wire = "float32";
  double link_gbps = 0;  // 0: what this machine's cards say

  int racks = 0;  // 0: not asked for
  int workers_per_rack = 8;
  double worker_gbps = 10;
  double rack_server_gbps = 100;
  double uplink_gbps = 40;
  planning::SumSwitch sum_switch;
  double switch_gbps = 100;
  double switch_round_trip_microseconds = 10;
};

// The model, and where its seconds come from.
struct ServedModel {
  planning::ServedModel model;
  std::string source;
};
// Errors (kInvalidInput): how long a batch takes is not known, or the model has nothing for a server.
Result<ServedModel> read_served_model(const ServerCheck& check);

struct MeasuredServer {
  planning::ServerMachine machine;
  std::string links;  // where their speed comes from
};
Result<MeasuredServer> measure_server(const ServerCheck& check);

struct RackWay {
  const char* name;
  double seconds;
};
struct RackWays {
  std::vector<RackWay> ways;
  double slots_for_full_rate = 0;  // of the switches, for the links' full rate
};
RackWays compare_rack_ways(const ServerCheck& check, const ServedModel& served);

}  // namespace motley::app
