// What `motley check` finds out: what this machine has and what works here, what it could do as a parameter server, and
// how gradients are best summed over racks that are only described, by the formulas of planning/cost/server_balance.h.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/cluster/machine.h"
#include "motley/planning/cost/server_balance.h"
#include "motley/serial/options.h"

namespace motley::app {

inline constexpr double kBytesPerGigabit = 1e9 / 8;

struct ServerCheck {
  std::string model = "resnet50";
  double seconds_per_batch = 0;  // 0: the profile's, or as published
  std::string profile;
  double batch = 0;  // 0: the profile's
  std::string optimizer = "momentum";
  std::string wire = "float32";
  double link_bandwidth = 0;  // bytes per second, as all bandwidths here; 0: what this machine's cards say

  int racks = 0;  // 0: not asked for
  int workers_per_rack = 8;
  double worker_bandwidth = 10 * kBytesPerGigabit;
  double rack_server_bandwidth = 100 * kBytesPerGigabit;
  double uplink_bandwidth = 40 * kBytesPerGigabit;
  double switch_slots = planning::SumSwitch().slots;
  double switch_payload = planning::SumSwitch().payload_bytes;
  double switch_header = planning::SumSwitch().header_bytes;
  double switch_bandwidth = planning::SumSwitch().port_rate;
  double switch_round_trip = planning::SumSwitch().round_trip_seconds;

  static const OptionTable<ServerCheck>& options();
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

struct MachineCheck {
  std::vector<cluster::CheckItem> items;  // the things that Motley uses
  std::string text;                       // a line for each
  cluster::Machine machine;
  Status works;  // error (kUnavailable): the first thing that does not and without which no job runs
};
// `torch_version` is that of the caller's libtorch; "": it has none.
MachineCheck check_this_machine(const std::string& torch_version);

// This machine as a cluster file.
std::string describe_this_machine();

}  // namespace motley::app
