// Measures what the formulas of planning/cost/server_balance.h ask for, and prints what they say.
#include "motley/cli/server_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/update_ablation.h"
#include "motley/base/units.h"
#include "motley/cli/planning_input.h"
#include "motley/cluster/machine.h"
#include "motley/model/profile.h"
#include "motley/model/tables.h"
#include "motley/net/link_speed.h"

namespace motley::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kBytesPerGigabit = 1e9 / 8;
constexpr int kMeasuredWorkers = 4;
constexpr std::size_t kMeasuredBytes = 64 << 20;  // of weights: with gradients and state more than caches hold
constexpr int kPlacementWorkers = 8;

// The model, and where its seconds come from.
struct Asked {
  planning::ServedModel model;
  std::string source;
};

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

Result<Asked> asked_of(const ServerCheck& check) {
  Asked asked;
  model::Graph graph;
  if (!check.profile.empty()) {
    MOTLEY_ASSIGN(model::Profile profile, model::read_profile(check.profile));
    const double batch = check.batch > 0 ? check.batch : profile.batch;
    asked.model.seconds_per_batch = fastest_seconds(profile, batch);
    asked.source = fmt::format("profile {}, batch {}", check.profile, batch);
    graph = std::move(profile.graph);
  } else {
    MOTLEY_ASSIGN(graph, model::table(check.model));
    if (const auto published = planning::published_compute(check.model)) {
      asked.model.seconds_per_batch = published->seconds_per_batch;
      asked.source = fmt::format("published for batch {} on a GTX 1080 Ti", published->batch);
    }
  }
  if (check.seconds_per_batch > 0) {
    asked.model.seconds_per_batch = check.seconds_per_batch;
    asked.source = "as given";
  }
  if (!(asked.model.seconds_per_batch > 0)) {
    return fail(ErrorCode::kInvalidInput,
                "--seconds-per-batch: how long a worker computes for a batch of '{}' is not known; accepted: seconds "
                "above 0, or a profile",
                check.model);
  }
  for (const model::Layer& layer : graph.layers) asked.model.bytes += layer.parameters * sizeof(float);
  if (!(asked.model.bytes > 0)) {
    return fail(ErrorCode::kInvalidInput, "the model '{}' has no dense parameters for a server", graph.name);
  }
  asked.model.state_arrays = check.optimizer == "sgd" ? 0 : check.optimizer == "momentum" ? 1 : 2;
  asked.model.wire_fraction = check.wire == "float32" ? 1 : 0.5;
  return asked;
}

struct MeasuredServer {
  planning::ServerMachine machine;
  std::string links;
};

Result<MeasuredServer> measure(const ServerCheck& check) {
  const cluster::Machine machine = cluster::detect_machine();
  const auto bytes = std::min(kMeasuredBytes, static_cast<std::size_t>(machine.memory_bytes / 16));
  // SGD with momentum: gradients are read, weights and momentum read and written.
  const auto touched = static_cast<double>(bytes) * (kMeasuredWorkers + 4);
  const auto rate = [&](int threads) {
    return touched / bench::seconds_per_pass(bench::UpdateVariant::kFused, kMeasuredWorkers, bytes, threads);
  };
  MeasuredServer measured;
  measured.machine.cores = machine.cores;
  measured.machine.core_bytes_per_second = rate(1);
  measured.machine.memory_bytes_per_second =
      machine.cores > 1 ? rate(machine.cores) : measured.machine.core_bytes_per_second;
  measured.machine.memory_bytes = machine.memory_bytes;
  // Two threads, each of which sends at this rate and receives at it.
  MOTLEY_ASSIGN(const net::LinkSpeed loopback, net::measure_loopback());
  measured.machine.core_seconds_per_byte = std::min(machine.cores, 2) / (4 * loopback.bytes_per_second);
  if (check.link_gbps > 0) {
    measured.machine.link_bytes_per_second = check.link_gbps * kBytesPerGigabit;
    measured.links = "as given";
    return measured;
  }
  for (const cluster::NetworkCard& card : cluster::network_cards("/sys/class/net")) {
    measured.machine.link_bytes_per_second += card.bytes_per_second;
    measured.links += (measured.links.empty() ? "" : ", ") + card.name;
  }
  if (measured.links.empty()) {
    measured.machine.link_bytes_per_second = loopback.bytes_per_second;
    measured.links = "loopback: no card says its speed; --link-gbps sets one";
  }
  return measured;
}

std::string amount(planning::Resource resource, double value) {
  switch (resource) {
    case planning::Resource::kLink:
      return fmt::format("{:.3g} Gb/s", value / kBytesPerGigabit);
    case planning::Resource::kMemoryBandwidth:
      return fmt::format("{:.3g} GB/s", value / 1e9);
    case planning::Resource::kCores:
      return fmt::format("{:.3g}", value);
    case planning::Resource::kMemory:
      return format_bytes(value);
  }
  return "";
}

void print_server(const Asked& asked, const MeasuredServer& measured, const std::string& name) {
  const auto limits = planning::server_limits(asked.model, measured.machine);
  const double workers = std::floor(limits[0].workers);
  std::printf("%s: %s of weights, %s a batch (%s)\n", name.c_str(), format_bytes(asked.model.bytes).c_str(),
              format_seconds(asked.model.seconds_per_batch).c_str(), asked.source.c_str());
  std::printf("links: %s\n\n", measured.links.c_str());
  std::printf("as a server of its own this machine can serve %.0f workers; what runs out first is: %s\n\n", workers,
              planning::to_string(limits[0].resource));
  const double twice = 2 * std::max(workers, 1.0);
  std::printf("%-18s %14s %12s %16s %16s\n", "", "there is", "enough for", "used by these",
              fmt::format("{:.0f} would need", twice).c_str());
  for (const planning::ServerLimit& limit : limits) {
    const double there = planning::available(limit.resource, measured.machine);
    const double used = planning::needed(limit.resource, asked.model, measured.machine, workers);
    const double need = planning::needed(limit.resource, asked.model, measured.machine, twice);
    std::printf("%-18s %14s %12.0f %15.0f%% %16s%s\n", planning::to_string(limit.resource),
                amount(limit.resource, there).c_str(), std::floor(limit.workers), 100 * used / there,
                amount(limit.resource, need).c_str(), need > there ? "  has to grow" : "");
  }
  std::printf("\nbandwidth at a server's machine, in and out, for %d workers:\n", kPlacementWorkers);
  for (const planning::ServerSite site : planning::every_server_site()) {
    std::printf("  %-28s %10.3g Gb/s\n", planning::to_string(site),
                planning::site_demand(site, asked.model, kPlacementWorkers) / kBytesPerGigabit);
  }
}

ordered_json server_json(const Asked& asked, const MeasuredServer& measured, const std::string& name) {
  const auto limits = planning::server_limits(asked.model, measured.machine);
  ordered_json json = {{"model", name},
                       {"model_bytes", asked.model.bytes},
                       {"seconds_per_batch", asked.model.seconds_per_batch},
                       {"seconds_source", asked.source},
                       {"workers", std::floor(limits[0].workers)},
                       {"runs_out_first", planning::to_string(limits[0].resource)},
                       {"links", measured.links},
                       {"core_bytes_per_second", measured.machine.core_bytes_per_second},
                       {"core_seconds_per_byte", measured.machine.core_seconds_per_byte}};
  for (const planning::ServerLimit& limit : limits) {
    const auto need = [&](double workers) {
      return planning::needed(limit.resource, asked.model, measured.machine, workers);
    };
    json["resources"].push_back({{"name", planning::to_string(limit.resource)},
                                 {"available", planning::available(limit.resource, measured.machine)},
                                 {"workers", limit.workers},
                                 {"needed_for_all", need(0)},
                                 {"needed_for_each_worker", need(1) - need(0)}});
  }
  for (const planning::ServerSite site : planning::every_server_site()) {
    json["placements"].push_back({{"server_on", planning::to_string(site)},
                                  {"workers", kPlacementWorkers},
                                  {"bytes_per_second", planning::site_demand(site, asked.model, kPlacementWorkers)}});
  }
  return json;
}

struct RackWay {
  const char* name;
  double seconds;
};

std::vector<RackWay> rack_ways(const ServerCheck& check, const Asked& asked, double& full_rate_slots) {
  const planning::Racks racks = {.racks = check.racks,
                                 .workers_per_rack = check.workers_per_rack,
                                 .worker_rate = check.worker_gbps * kBytesPerGigabit,
                                 .server_rate = check.rack_server_gbps * kBytesPerGigabit,
                                 .uplink_rate = check.uplink_gbps * kBytesPerGigabit};
  planning::SumSwitch sum_switch = check.sum_switch;
  sum_switch.port_rate = check.switch_gbps * kBytesPerGigabit;
  sum_switch.round_trip_seconds = check.switch_round_trip_microseconds * 1e-6;
  full_rate_slots = planning::slots_for_full_rate(racks, sum_switch);
  const double bytes = asked.model.bytes * asked.model.wire_fraction;
  planning::RackSeconds seconds = planning::rack_seconds(bytes, racks, sum_switch);
  // Switches add integers of 32 bits, whatever the wire could carry elsewhere.
  seconds.in_switches /= asked.model.wire_fraction;
  return {{"flat, sharded over all workers", seconds.flat},
          {"a server in each rack, then between racks", seconds.hierarchical},
          {"the same, chunks going on at once", seconds.pipelined},
          {"summed in the switches", seconds.in_switches}};
}

void print_racks(const ServerCheck& check, const Asked& asked, const std::string& name) {
  double slots = 0;
  const auto ways = rack_ways(check, asked, slots);
  const double best = std::ranges::min(ways, {}, &RackWay::seconds).seconds;
  std::printf("%s on %d racks of %d workers: %s of weights, %s a batch (%s)\n\n", name.c_str(), check.racks,
              check.workers_per_rack, format_bytes(asked.model.bytes).c_str(),
              format_seconds(asked.model.seconds_per_batch).c_str(), asked.source.c_str());
  std::printf("%-44s %14s %16s\n", "", "exchange", "of computing");
  for (const RackWay& way : ways) {
    std::printf("%-44s %14s %15.0f%%%s\n", way.name, format_seconds(way.seconds).c_str(),
                100 * way.seconds / asked.model.seconds_per_batch, way.seconds == best ? "  fastest" : "");
  }
  std::printf(
      "\nthe switches have %.0f slots of %.0f bytes for the job and need %.0f for the links' full rate; they add\n"
      "integers of 32 bits, and the workers take the optimizer's step\n",
      check.sum_switch.slots, check.sum_switch.payload_bytes, std::ceil(slots));
}

ordered_json racks_json(const ServerCheck& check, const Asked& asked, const std::string& name) {
  double slots = 0;
  ordered_json json = {{"model", name},
                       {"model_bytes", asked.model.bytes},
                       {"seconds_per_batch", asked.model.seconds_per_batch},
                       {"racks", check.racks},
                       {"workers_per_rack", check.workers_per_rack}};
  for (const RackWay& way : rack_ways(check, asked, slots)) {
    json["ways"].push_back({{"name", way.name}, {"exchange_seconds", way.seconds}});
  }
  json["switch_slots_for_full_rate"] = slots;
  return json;
}

}  // namespace

void add_server_check(CLI::App& command, ServerCheck& check) {
  command.add_flag("--server", check.server,
                   "How many workers this machine can serve as a parameter server, and what runs out first");
  CLI::Option* model = command.add_option("--model", check.model, "A table's name")->capture_default_str();
  command
      .add_option("--seconds-per-batch", check.seconds_per_batch,
                  "How long a worker computes for a batch; default: of the profile, or as published for the model")
      ->check(above_zero());
  command.add_option("--profile", check.profile, "A profile.json instead of a model")->excludes(model);
  command.add_option("--batch", check.batch, "Samples of a worker's batch; default: the profile's")
      ->check(above_zero())
      ->needs("--profile");
  command.add_option("--optimizer", check.optimizer, "What the server keeps state for")
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  command.add_option("--wire", check.wire, "Type on the wire")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      .add_option("--link-gbps", check.link_gbps,
                  "All links of this machine together, each direction; default: what its network cards say")
      ->check(above_zero());
  command.add_flag("--json", check.json, "With --server or --racks: print JSON");
  command
      .add_option("--racks", check.racks, "Compare ways to sum over so many racks: flat, hierarchical, in the switches")
      ->check(CLI::Range(1, 100'000));
  command.add_option("--workers-per-rack", check.workers_per_rack, "Workers in a rack")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command.add_option("--worker-gbps", check.worker_gbps, "A worker's link")->check(above_zero())->capture_default_str();
  command.add_option("--rack-server-gbps", check.rack_server_gbps, "All links of a rack's server")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--uplink-gbps", check.uplink_gbps, "A rack's links to the others")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--switch-slots", check.sum_switch.slots, "Slots of a summing switch that the job may use")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--switch-payload", check.sum_switch.payload_bytes, "Bytes of values in a packet")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--switch-header", check.sum_switch.header_bytes, "Bytes around them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--switch-gbps", check.switch_gbps, "Line rate at which the switch sums")
      ->check(above_zero())
      ->capture_default_str();
  command
      .add_option("--switch-round-trip", check.switch_round_trip_microseconds,
                  "Microseconds until a slot's result is back")
      ->check(above_zero())
      ->capture_default_str();
}

Status run_server_check(const ServerCheck& check) {
  MOTLEY_ASSIGN(const Asked asked, asked_of(check));
  const std::string& name = check.profile.empty() ? check.model : check.profile;
  ordered_json json;
  if (check.server) {
    MOTLEY_ASSIGN(const MeasuredServer measured, measure(check));
    if (check.json) {
      json["server"] = server_json(asked, measured, name);
    } else {
      print_server(asked, measured, name);
    }
  }
  if (check.racks > 0) {
    if (check.json) {
      json["racks"] = racks_json(check, asked, name);
    } else {
      std::printf("%s", check.server ? "\n" : "");
      print_racks(check, asked, name);
    }
  }
  if (check.json) std::printf("%s\n", json.dump(2).c_str());
  return {};
}

}  // namespace motley::cli
