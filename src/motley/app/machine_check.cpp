#include "motley/app/machine_check.h"

#include <algorithm>
#include <cmath>

#include "motley/model/profile.h"
#include "motley/model/tables.h"
#include "motley/ps/dense/update_speed.h"

namespace motley::app {
namespace {

// The seconds of a whole batch on the fastest device type of a profile.
double fastest_seconds(const model::Profile& profile, double batch) {
  double fastest = INFINITY;
  for (const model::DeviceProfile& device : profile.devices) {
    double seconds = 0;
    for (const model::LayerTime& layer : device.layers) seconds += layer.forward.at(batch) + layer.backward.at(batch);
    fastest = std::min(fastest, seconds);
  }
  return fastest;
}

}  // namespace

const OptionTable<ServerCheck>& ServerCheck::options() {
  using enum OptionKind;
  static const OptionTable<ServerCheck> options = {
      {{"model", kText, "published model that the workers train"}, &ServerCheck::model},
      {{"batch_time", kSeconds, "how long a worker computes for a batch; default: the profile's, or as published",
        1e-9},
       &ServerCheck::seconds_per_batch},
      {{"profile", kPath, "profile of the model, a file of 'motley profile', instead of --model"},
       &ServerCheck::profile},
      {{"batch_size", kReal, "samples of a worker's batch; default: the profile's", 1e-9}, &ServerCheck::batch},
      {choice("optimizer", "optimizer whose state the server keeps", {"sgd", "momentum", "adam"}),
       &ServerCheck::optimizer},
      {choice("comm_dtype", "data type of gradients and weights on the wire", {"float32", "bfloat16", "float16"}),
       &ServerCheck::wire},
      {{"link_bandwidth", kBytesPerSecond,
        "bandwidth of all links of this machine together, in each direction; default: what its network cards report",
        1},
       &ServerCheck::link_bandwidth},
      {{"racks", kInteger, "compare ways to sum over this many racks: flat, hierarchical, in the switches", 1, 1e5},
       &ServerCheck::racks},
      {{"workers_per_rack", kInteger, "workers in a rack", 1, 1e5}, &ServerCheck::workers_per_rack},
      {{"worker_bandwidth", kBytesPerSecond, "bandwidth of a worker's link", 1}, &ServerCheck::worker_bandwidth},
      {{"rack_server_bandwidth", kBytesPerSecond, "bandwidth of all links of a rack's server together", 1},
       &ServerCheck::rack_server_bandwidth},
      {{"uplink_bandwidth", kBytesPerSecond, "bandwidth of a rack's uplinks together", 1},
       &ServerCheck::uplink_bandwidth},
      {{"switch_slots", kReal, "slots of a summing switch that the job may use", 1}, &ServerCheck::switch_slots},
      {{"switch_payload", kBytes, "bytes of values in a packet", 1}, &ServerCheck::switch_payload},
      {{"switch_header", kBytes, "bytes of headers in a packet"}, &ServerCheck::switch_header},
      {{"switch_bandwidth", kBytesPerSecond, "rate at which the switch sums", 1}, &ServerCheck::switch_bandwidth},
      {{"switch_round_trip", kSeconds, "time until the result of a slot is back", 1e-9},
       &ServerCheck::switch_round_trip},
  };
  return options;
}

Result<ServedModel> read_served_model(const ServerCheck& check) {
  ServedModel served;
  model::Graph graph;
  if (!check.profile.empty()) {
    MOTLEY_ASSIGN(model::Profile profile, model::read_profile(check.profile));
    const double batch = check.batch > 0 ? check.batch : profile.batch;
    served.model.seconds_per_batch = fastest_seconds(profile, batch);
    served.source = fmt::format("profile {}, batch {}", check.profile, batch);
    graph = std::move(profile.graph);
  } else {
    MOTLEY_ASSIGN(graph, model::table(check.model));
    if (const auto published = planning::published_compute(check.model)) {
      served.model.seconds_per_batch = published->seconds_per_batch;
      served.source = fmt::format("published for batch {} on a GTX 1080 Ti", published->batch);
    }
  }
  if (check.seconds_per_batch > 0) {
    served.model.seconds_per_batch = check.seconds_per_batch;
    served.source = "as given";
  }
  if (!(served.model.seconds_per_batch > 0)) {
    return fail(
        ErrorCode::kInvalidInput,
        "--batch-time: how long a worker computes for a batch of '{}' is not known; accepted: a duration such as "
        "'350ms', or a profile",
        check.model);
  }
  for (const model::Layer& layer : graph.layers) served.model.bytes += layer.parameters * sizeof(float);
  if (!(served.model.bytes > 0)) {
    return fail(ErrorCode::kInvalidInput, "the model '{}' has no dense parameters for a server", graph.name);
  }
  served.model.state_arrays = check.optimizer == "sgd" ? 0 : check.optimizer == "momentum" ? 1 : 2;
  served.model.wire_fraction = check.wire == "float32" ? 1 : 0.5;
  return served;
}

Result<MeasuredServer> measure_server(const ServerCheck& check) {
  const cluster::Machine machine = cluster::detect_machine();
  MOTLEY_ASSIGN(const ps::MachineSpeed speed, ps::measure_machine(machine.cores, machine.memory_bytes));
  MeasuredServer measured;
  measured.machine = {.cores = static_cast<double>(machine.cores),
                      .core_bytes_per_second = speed.core_bytes_per_second,
                      // Two threads, each of which sends at the loopback's rate and receives at it.
                      .core_seconds_per_byte = std::min(machine.cores, 2) / (4 * speed.loopback_bytes_per_second),
                      .memory_bytes_per_second = speed.memory_bytes_per_second,
                      .memory_bytes = machine.memory_bytes};
  if (check.link_bandwidth > 0) {
    measured.machine.link_bytes_per_second = check.link_bandwidth;
    measured.links = "as given";
    return measured;
  }
  for (const cluster::NetworkCard& card : cluster::network_cards("/sys/class/net")) {
    measured.machine.link_bytes_per_second += card.bytes_per_second;
    measured.links += (measured.links.empty() ? "" : ", ") + card.name;
  }
  if (measured.links.empty()) {
    measured.machine.link_bytes_per_second = speed.loopback_bytes_per_second;
    measured.links = "loopback: no network card reports its speed; --link-bandwidth sets one";
  }
  return measured;
}

RackWays compare_rack_ways(const ServerCheck& check, const ServedModel& served) {
  const planning::Racks racks = {.racks = check.racks,
                                 .workers_per_rack = check.workers_per_rack,
                                 .worker_rate = check.worker_bandwidth,
                                 .server_rate = check.rack_server_bandwidth,
                                 .uplink_rate = check.uplink_bandwidth};
  const planning::SumSwitch sum_switch = {.slots = check.switch_slots,
                                          .payload_bytes = check.switch_payload,
                                          .header_bytes = check.switch_header,
                                          .port_rate = check.switch_bandwidth,
                                          .round_trip_seconds = check.switch_round_trip};
  const double bytes = served.model.bytes * served.model.wire_fraction;
  planning::RackSeconds seconds = planning::rack_seconds(bytes, racks, sum_switch);
  // Switches add integers of 32 bits, whatever the wire could carry elsewhere.
  seconds.in_switches /= served.model.wire_fraction;
  return {.ways = {{"flat, sharded over all workers", seconds.flat},
                   {"a server per rack, then between racks", seconds.hierarchical},
                   {"the same, pipelined by chunks", seconds.pipelined},
                   {"summed in the switches", seconds.in_switches}},
          .slots_for_full_rate = planning::slots_for_full_rate(racks, sum_switch)};
}

MachineCheck check_this_machine(const std::string& torch_version) {
  cluster::Machine machine = cluster::detect_machine();
  MachineCheck check{.items = cluster::check_machine(machine, torch_version), .text = "", .machine = {}, .works = {}};
  check.machine = std::move(machine);
  check.text = cluster::to_text(check.items);
  for (const cluster::CheckItem& item : check.items) {
    if (!item.needed || item.works || !check.works) continue;
    check.works = fail(ErrorCode::kUnavailable, "{} does not work here: {}", item.name, item.advice);
  }
  return check;
}

std::string describe_this_machine() {
  return cluster::to_yaml(cluster::default_cluster(cluster::detect_machine()));
}

}  // namespace motley::app
