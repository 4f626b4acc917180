// How many workers a dedicated parameter server can serve, and what runs out first; and how gradients are best summed
// over racks. Closed forms only, after PHub (Luo, Nelson, Ceze, Phanishayee, Krishnamurthy, SoCC 2018), whose rule is
// that links, memory and cores of such a machine are to run out together. docs/how-to/run-a-shared-parameter-server.md
// states them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace motley::planning {

struct ServedModel {
  double bytes = 0;              // of its weights as float32: M
  double seconds_per_batch = 0;  // that a worker computes for a step, which the exchange is to keep up with: T
  int state_arrays = 1;          // of the optimizer: S
  double wire_fraction = 1;      // of float32's bytes that a value takes on the wire
};

// What PHub's authors had for a batch of one worker (a GTX 1080 Ti); none for a model that they did not report.
struct PublishedCompute {
  std::string_view model;
  double seconds_per_batch;
  int batch;
};
std::optional<PublishedCompute> published_compute(std::string_view model);

struct ServerMachine {
  double cores = 1;
  double core_bytes_per_second = 0;    // memory that one core sums and updates, all arrays that it touches counted
  double core_seconds_per_byte = 0;    // that moving a byte in or out over a socket costs
  double memory_bytes_per_second = 0;  // of all cores together, counted like that of one
  double memory_bytes = 0;
  double link_bytes_per_second = 0;  // in each direction, of all links together
};

enum class Resource { kLink, kMemoryBandwidth, kCores, kMemory };
const char* to_string(Resource resource);

// What so many workers need of a resource, in the units of ServerMachine. A worker's gradient lands in memory, is read,
// and goes out as weights, which touches 3 wire_fraction M (memory or, mostly, caches); weights and state are read and
// written once for all, and each core has room for four segments of each worker, of 256 KB:
//   link              N M_wire / T
//   memory bandwidth  (3 N M_wire + (2 + 2 S) M) / T
//   cores             ((N + 2 + 2 S) M / core_bytes_per_second + 2 N M_wire core_seconds_per_byte) / T
//   memory            (1 + S) M + N cores wire_fraction 1 MB, and M_wire more where the wire is narrower
double needed(Resource resource, const ServedModel& model, const ServerMachine& machine, double workers);
double available(Resource resource, const ServerMachine& machine);

struct ServerLimit {
  Resource resource = Resource::kLink;
  double workers = 0;  // that it is enough for, not rounded; never below zero
};
// Of every resource, what runs out first in front.
std::vector<ServerLimit> server_limits(const ServedModel& model, const ServerMachine& machine);

// Where the servers are: on the workers' machines or on machines of their own, one or as many as there are workers.
enum class ServerSite { kColocatedCentral, kColocatedSharded, kDedicatedCentral, kDedicatedSharded };
const char* to_string(ServerSite site);
std::vector<ServerSite> every_server_site();
// Bytes a second, in and out together, at the link of a machine with a server, the exchange hidden behind computing.
double site_demand(ServerSite site, const ServedModel& model, int workers);

// Racks of workers under switches. Rates are bytes a second in each direction.
struct Racks {
  int racks = 1;             // r
  int workers_per_rack = 1;  // N
  double worker_rate = 0;    // of a worker's link
  double server_rate = 0;    // of a rack's server, all its links together
  double uplink_rate = 0;    // of a rack to the others
};

// What a switch that sums packets can do, as SwitchML and ATP are limited: a slot holds one packet's partial sums until
// all workers' packets have come and the result is acknowledged, a round trip in all.
struct SumSwitch {
  double slots = 512;                // that the job may use
  double payload_bytes = 256;        // of values in a packet
  double header_bytes = 52;          // around them
  double port_rate = 12.5e9;         // bytes a second
  double round_trip_seconds = 1e-5;  // of a packet
};

// Seconds for all gradients to be summed and the result to be back, M bytes on the wire:
//   flat sharded    max(2 M (r N - 1) / (r N worker), 2 N M (r - 1) / (r uplink))
//   hierarchical    max(M / worker, N M / server) + 2 M (r - 1) / (r min(server, uplink))
//   pipelined       the larger of these two summands: chunks go on as soon as they are summed
//   in the switches M / min(payload part of min(worker, port, uplink if r > 1), slots payload / round trip); values are
//                   fixed-point integers of 32 bits there, and the optimizer's step is left to the workers
struct RackSeconds {
  double flat = 0;
  double hierarchical = 0;
  double pipelined = 0;
  double in_switches = 0;
};
RackSeconds rack_seconds(double wire_bytes, const Racks& racks, const SumSwitch& sum_switch);

// Slots with which the switch's window does not limit it.
double slots_for_full_rate(const Racks& racks, const SumSwitch& sum_switch);

}  // namespace motley::planning
