// The closed forms. Every need is affine in the number of workers, so that a limit is found from two of its values.
#include "motley/planning/cost/server_balance.h"

#include <algorithm>
#include <array>

#include "motley/base/result.h"

namespace motley::planning {
namespace {

constexpr double kPlaceBytes = 4 * (256 << 10);  // of a worker's float32 segments at a core

constexpr std::array kResources = {Resource::kLink, Resource::kMemoryBandwidth, Resource::kCores, Resource::kMemory};

// The rate at which a switch could pass values on if it had slots without end.
double value_rate(const Racks& racks, const SumSwitch& it) {
  const double slowest =
      std::min(std::min(racks.worker_rate, it.port_rate), racks.racks > 1 ? racks.uplink_rate : racks.worker_rate);
  return slowest * it.payload_bytes / (it.payload_bytes + it.header_bytes);
}

}  // namespace

std::optional<PublishedCompute> published_compute(std::string_view model) {
  static constexpr PublishedCompute kPublished[] = {
      {"alexnet", 0.016, 32},      {"vgg11", 0.121, 32},    {"vgg19", 0.268, 32},    {"googlenet", 0.100, 32},
      {"inception-v3", 0.225, 32}, {"resnet18", 0.054, 32}, {"resnet50", 0.161, 32}, {"resnet269", 0.350, 16}};
  const auto* const found = std::ranges::find(kPublished, model, &PublishedCompute::model);
  return found == std::end(kPublished) ? std::nullopt : std::optional(*found);
}

const char* to_string(Resource resource) {
  constexpr const char* kNames[] = {"link", "memory bandwidth", "cores", "memory"};
  return kNames[static_cast<int>(resource)];
}

double needed(Resource resource, const ServedModel& model, const ServerMachine& machine, double workers) {
  const double own = 2.0 + 2.0 * model.state_arrays;  // weights and state, read and written
  const double wire = model.bytes * model.wire_fraction;
  switch (resource) {
    case Resource::kLink:
      return workers * wire / model.seconds_per_batch;
    case Resource::kMemoryBandwidth:
      return (3 * workers * wire + own * model.bytes) / model.seconds_per_batch;
    case Resource::kCores:
      return ((workers + own) * model.bytes / machine.core_bytes_per_second +
              2 * workers * wire * machine.core_seconds_per_byte) /
             model.seconds_per_batch;
    case Resource::kMemory:
      return (1.0 + model.state_arrays) * model.bytes + workers * machine.cores * model.wire_fraction * kPlaceBytes +
             (model.wire_fraction < 1 ? wire : 0);
  }
  return 0;
}

double available(Resource resource, const ServerMachine& machine) {
  const double all[] = {machine.link_bytes_per_second, machine.memory_bytes_per_second, machine.cores,
                        machine.memory_bytes};
  return all[static_cast<int>(resource)];
}

std::vector<ServerLimit> server_limits(const ServedModel& model, const ServerMachine& machine) {
  MOTLEY_INVARIANT(model.bytes > 0 && model.seconds_per_batch > 0, "a served model of {} bytes and {} s a batch",
                   model.bytes, model.seconds_per_batch);
  std::vector<ServerLimit> limits;
  for (const Resource resource : kResources) {
    const double none = needed(resource, model, machine, 0);
    const double each = needed(resource, model, machine, 1) - none;
    limits.push_back({resource, std::max((available(resource, machine) - none) / each, 0.0)});
  }
  std::ranges::stable_sort(limits, {}, &ServerLimit::workers);
  return limits;
}

const char* to_string(ServerSite site) {
  constexpr const char* kNames[] = {"one of the workers", "every worker a part", "one machine of its own",
                                    "a machine for each worker"};
  return kNames[static_cast<int>(site)];
}

std::vector<ServerSite> every_server_site() {
  return {ServerSite::kColocatedCentral, ServerSite::kColocatedSharded, ServerSite::kDedicatedCentral,
          ServerSite::kDedicatedSharded};
}

double site_demand(ServerSite site, const ServedModel& model, int workers) {
  const double rate = model.bytes * model.wire_fraction / model.seconds_per_batch;
  const double others = workers - 1;
  switch (site) {
    case ServerSite::kColocatedCentral:
      return 2 * rate * others;
    case ServerSite::kColocatedSharded:
      return 4 * rate * others / workers;
    case ServerSite::kDedicatedCentral:
      return 2 * rate * workers;
    case ServerSite::kDedicatedSharded:
      return 2 * rate;
  }
  return 0;
}

RackSeconds rack_seconds(double wire_bytes, const Racks& it, const SumSwitch& sum_switch) {
  const double racks = it.racks;
  const double workers = it.workers_per_rack;
  const double all = racks * workers;
  const double across = 2 * wire_bytes * (racks - 1) / racks;  // of one sum of a rack, in each direction
  RackSeconds seconds;
  seconds.flat = std::max(2 * wire_bytes * (all - 1) / (all * it.worker_rate), workers * across / it.uplink_rate);
  const double within = std::max(wire_bytes / it.worker_rate, workers * wire_bytes / it.server_rate);
  const double between = across / std::min(it.server_rate, it.uplink_rate);
  seconds.hierarchical = within + between;
  seconds.pipelined = std::max(within, between);
  const double window_rate = sum_switch.slots * sum_switch.payload_bytes / sum_switch.round_trip_seconds;
  seconds.in_switches = wire_bytes / std::min(value_rate(it, sum_switch), window_rate);
  return seconds;
}

double slots_for_full_rate(const Racks& racks, const SumSwitch& it) {
  return value_rate(racks, it) * it.round_trip_seconds / it.payload_bytes;
}

}  // namespace motley::planning
