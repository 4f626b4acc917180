#include "motley/cli/server_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "motley/base/units.h"
#include "motley/cli/planning_flags.h"

namespace motley::cli {
namespace {

using nlohmann::ordered_json;

using app::kBytesPerGigabit;
using app::MeasuredServer;
using app::RackWay;
using app::ServedModel;

constexpr int kPlacementWorkers = 8;

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

void print_server(const ServedModel& asked, const MeasuredServer& measured, const std::string& name) {
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

ordered_json server_json(const ServedModel& asked, const MeasuredServer& measured, const std::string& name) {
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

void print_racks(const app::ServerCheck& check, const ServedModel& asked, const std::string& name) {
  const app::RackWays racks = app::compare_rack_ways(check, asked);
  const double best = std::ranges::min(racks.ways, {}, &RackWay::seconds).seconds;
  std::printf("%s on %d racks of %d workers: %s of weights, %s a batch (%s)\n\n", name.c_str(), check.racks,
              check.workers_per_rack, format_bytes(asked.model.bytes).c_str(),
              format_seconds(asked.model.seconds_per_batch).c_str(), asked.source.c_str());
  std::printf("%-44s %14s %16s\n", "", "exchange", "of computing");
  for (const RackWay& way : racks.ways) {
    std::printf("%-44s %14s %15.0f%%%s\n", way.name, format_seconds(way.seconds).c_str(),
                100 * way.seconds / asked.model.seconds_per_batch, way.seconds == best ? "  fastest" : "");
  }
  std::printf(
      "\nthe switches have %.0f slots of %.0f bytes for the job and need %.0f for the links' full rate; they add\n"
      "integers of 32 bits, and the workers take the optimizer's step\n",
      check.sum_switch.slots, check.sum_switch.payload_bytes, std::ceil(racks.slots_for_full_rate));
}

ordered_json racks_json(const app::ServerCheck& check, const ServedModel& asked, const std::string& name) {
  const app::RackWays racks = app::compare_rack_ways(check, asked);
  ordered_json json = {{"model", name},
                       {"model_bytes", asked.model.bytes},
                       {"seconds_per_batch", asked.model.seconds_per_batch},
                       {"racks", check.racks},
                       {"workers_per_rack", check.workers_per_rack}};
  for (const RackWay& way : racks.ways) {
    json["ways"].push_back({{"name", way.name}, {"gradient_sync_seconds", way.seconds}});
  }
  json["switch_slots_for_full_rate"] = racks.slots_for_full_rate;
  return json;
}

}  // namespace

void add_server_check(CLI::App& command, ServerCheckArguments& arguments) {
  app::ServerCheck& check = arguments.check;
  command.add_flag("--server", arguments.server,
                   "How many workers this machine can serve as a parameter server, and what runs out first");
  CLI::Option* model = command.add_option("--model", check.model, "A table's name")->capture_default_str();
  command
      .add_option("--seconds-per-batch", check.seconds_per_batch,
                  "How long a worker computes for a batch; default: of the profile, or as published for the model")
      ->check(above_zero());
  command.add_option("--profile", check.profile, "A profile.json instead of a model")->excludes(model);
  command.add_option("--batch-size", check.batch, "Samples of a worker's batch; default: the profile's")
      ->check(above_zero())
      ->needs("--profile");
  command.add_option("--optimizer", check.optimizer, "What the server keeps state for")
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  command.add_option("--comm-dtype", check.wire, "Type on the wire")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command
      .add_option("--link-gbps", check.link_gbps,
                  "All links of this machine together, each direction; default: what its network cards say")
      ->check(above_zero());
  command.add_flag("--json", arguments.json, "With --server or --racks: print JSON");
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

Status run_server_check(const ServerCheckArguments& arguments) {
  const app::ServerCheck& check = arguments.check;
  MOTLEY_ASSIGN(const ServedModel asked, app::read_served_model(check));
  const std::string& name = check.profile.empty() ? check.model : check.profile;
  ordered_json json;
  if (arguments.server) {
    MOTLEY_ASSIGN(const MeasuredServer measured, app::measure_server(check));
    if (arguments.json) {
      json["server"] = server_json(asked, measured, name);
    } else {
      print_server(asked, measured, name);
    }
  }
  if (check.racks > 0) {
    if (arguments.json) {
      json["racks"] = racks_json(check, asked, name);
    } else {
      std::printf("%s", arguments.server ? "\n" : "");
      print_racks(check, asked, name);
    }
  }
  if (arguments.json) std::printf("%s\n", json.dump(2).c_str());
  return {};
}

}  // namespace motley::cli
