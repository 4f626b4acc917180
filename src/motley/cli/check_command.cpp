// motley check: what this machine has, what works, what is missing and how to get it; with --server how many workers it
// could serve, with --racks how gradients are best summed over described ones.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "motley/app/machine_check.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/results.h"
#include "motley/nn/device_speed.h"
#include "motley/serial/json_fields.h"

namespace motley::cli {
namespace {

constexpr int kPlacementWorkers = 8;
constexpr const char* kOfEither = "Flags of --server and --racks";
constexpr const char* kOfServer = "Flags of --server";
constexpr const char* kOfRacks = "Flags of --racks";

std::string amount(planning::Resource resource, double value) {
  switch (resource) {
    case planning::Resource::kLink:
      return fmt::format("{:.3g} Gb/s", value / app::kBytesPerGigabit);
    case planning::Resource::kMemoryBandwidth:
      return fmt::format("{:.3g} GB/s", value / 1e9);
    case planning::Resource::kCores:
      return fmt::format("{:.3g}", value);
    case planning::Resource::kMemory:
      return format_bytes(value);
  }
  return "";
}

std::string describe(const app::ServedModel& asked) {
  return fmt::format("{} of weights, {} per batch ({})", format_bytes(asked.model.bytes),
                     format_seconds(asked.model.seconds_per_batch), asked.source);
}

void print_server(const app::ServedModel& asked, const app::MeasuredServer& measured, const std::string& name) {
  const auto limits = planning::server_limits(asked.model, measured.machine);
  const double workers = std::floor(limits[0].workers);
  std::printf("%s: %s\n", name.c_str(), describe(asked).c_str());
  std::printf("links: %s\n\n", measured.links.c_str());
  std::printf("as a dedicated server this machine can serve %s; what runs out first: %s\n\n",
              format_count(std::llround(workers), "worker").c_str(), planning::to_string(limits[0].resource));
  const double twice = 2 * std::max(workers, 1.0);
  std::printf("%-18s %14s %12s %16s %16s\n", "", "available", "enough for", "used by these",
              fmt::format("{:.0f} would need", twice).c_str());
  for (const planning::ServerLimit& limit : limits) {
    const double there = planning::available(limit.resource, measured.machine);
    const double used = planning::needed(limit.resource, asked.model, measured.machine, workers);
    const double need = planning::needed(limit.resource, asked.model, measured.machine, twice);
    std::printf("%-18s %14s %12.0f %15.0f%% %16s%s\n", planning::to_string(limit.resource),
                amount(limit.resource, there).c_str(), std::floor(limit.workers), 100 * used / there,
                amount(limit.resource, need).c_str(), need > there ? "  too little" : "");
  }
  std::printf("\nbandwidth at a server's machine, in and out, for %d workers:\n", kPlacementWorkers);
  for (const planning::ServerSite site : planning::every_server_site()) {
    std::printf("  %-28s %10.3g Gb/s\n", planning::to_string(site),
                planning::site_demand(site, asked.model, kPlacementWorkers) / app::kBytesPerGigabit);
  }
}

ServerResult make_result(const app::ServedModel& asked, const app::MeasuredServer& measured, const std::string& name) {
  const auto limits = planning::server_limits(asked.model, measured.machine);
  ServerResult result = {.model = name,
                         .model_bytes = asked.model.bytes,
                         .seconds_per_batch = asked.model.seconds_per_batch,
                         .seconds_source = asked.source,
                         .workers = std::floor(limits[0].workers),
                         .runs_out_first = planning::to_string(limits[0].resource),
                         .links = measured.links,
                         .core_bytes_per_second = measured.machine.core_bytes_per_second,
                         .core_seconds_per_byte = measured.machine.core_seconds_per_byte,
                         .resources = {},
                         .placements = {}};
  for (const planning::ServerLimit& limit : limits) {
    const auto need = [&](double workers) {
      return planning::needed(limit.resource, asked.model, measured.machine, workers);
    };
    result.resources.push_back({.name = planning::to_string(limit.resource),
                                .available = planning::available(limit.resource, measured.machine),
                                .workers = limit.workers,
                                .needed_for_all = need(0),
                                .needed_for_each_worker = need(1) - need(0)});
  }
  for (const planning::ServerSite site : planning::every_server_site()) {
    result.placements.push_back({.server_on = planning::to_string(site),
                                 .workers = kPlacementWorkers,
                                 .bytes_per_second = planning::site_demand(site, asked.model, kPlacementWorkers)});
  }
  return result;
}

void print_racks(const app::ServerCheck& check, const app::ServedModel& asked, const std::string& name) {
  const app::RackWays racks = app::compare_rack_ways(check, asked);
  const double best = std::ranges::min(racks.ways, {}, &app::RackWay::seconds).seconds;
  std::printf("%s on %d racks of %d workers: %s\n\n", name.c_str(), check.racks, check.workers_per_rack,
              describe(asked).c_str());
  std::printf("%-44s %16s %16s\n", "", "synchronisation", "of computation");
  for (const app::RackWay& way : racks.ways) {
    std::printf("%-44s %16s %15.0f%%%s\n", way.name, format_seconds(way.seconds).c_str(),
                100 * way.seconds / asked.model.seconds_per_batch, way.seconds == best ? "  fastest" : "");
  }
  std::printf(
      "\nthe switches have %.0f slots of %.0f bytes for the job and need %.0f for the links' full rate; they add\n"
      "32-bit integers, and the workers take the optimizer's step\n",
      check.switch_slots, check.switch_payload, std::ceil(racks.slots_for_full_rate));
}

RacksResult make_result(const app::ServerCheck& check, const app::ServedModel& asked, const std::string& name) {
  const app::RackWays racks = app::compare_rack_ways(check, asked);
  RacksResult result = {.model = name,
                        .model_bytes = asked.model.bytes,
                        .seconds_per_batch = asked.model.seconds_per_batch,
                        .racks = check.racks,
                        .workers_per_rack = check.workers_per_rack,
                        .ways = {},
                        .switch_slots_for_full_rate = racks.slots_for_full_rate};
  for (const app::RackWay& way : racks.ways) result.ways.push_back({way.name, way.seconds});
  return result;
}

// Memory and speed of each, as measured; of the CPU with all of its cores and memory.
Result<std::vector<CheckedDevice>> measure_devices(const app::MachineCheck& check) {
  MOTLEY_ASSIGN(const auto speeds, nn::measure_devices(check.machine.cores));
  std::vector<CheckedDevice> devices;
  for (const nn::DeviceSpeed& speed : speeds) {
    devices.push_back({.device = speed.device,
                       .memory_bytes = speed.device == "cpu" ? check.machine.memory_bytes : speed.memory_bytes,
                       .memory_bytes_per_second = speed.memory_bytes_per_second,
                       .flops_per_second = speed.flops_per_second});
  }
  return devices;
}

void print_devices(const std::vector<CheckedDevice>& devices) {
  std::printf("\n%-14s %12s %18s %22s\n", "device", "memory", "memory bandwidth", "products of matrices");
  for (const CheckedDevice& device : devices) {
    std::printf("%-14s %12s %18s %22s\n", device.device.c_str(),
                device.memory_bytes > 0 ? format_bytes(device.memory_bytes).c_str() : "not known",
                fmt::format("{:.3g} GB/s", device.memory_bytes_per_second / 1e9).c_str(),
                fmt::format("{:.3g} GFLOP/s", device.flops_per_second / 1e9).c_str());
  }
}

MachineResult make_result(const app::MachineCheck& check, std::vector<CheckedDevice> devices) {
  MachineResult result{.works = check.works.has_value(), .items = {}, .devices = std::move(devices)};
  for (const cluster::CheckItem& item : check.items) {
    result.items.push_back(
        {.name = item.name, .works = item.works, .needed = item.needed, .found = item.found, .advice = item.advice});
  }
  return result;
}

struct CheckArguments {
  bool as_cluster = false;
  bool server = false;
  app::ServerCheck check;
  bool json = false;

  static const OptionTable<CheckArguments>& options() {
    using enum OptionKind;
    static const OptionTable<CheckArguments> options = {
        {{"as_cluster", kBoolean, "print this machine as a cluster file"}, &CheckArguments::as_cluster},
        {{"server", kBoolean, "how many workers this machine can serve as a parameter server, and what runs out first"},
         &CheckArguments::server},
        {"", &CheckArguments::check},
        {json_option(), &CheckArguments::json},
    };
    return options;
  }
};

Status check_server(const CheckArguments& arguments, const JsonOutput& json) {
  const app::ServerCheck& check = arguments.check;
  MOTLEY_ASSIGN(const app::ServedModel asked, app::read_served_model(check));
  const std::string& name = check.profile.empty() ? check.model : check.profile;
  CheckResult result;
  if (arguments.server) {
    MOTLEY_ASSIGN(const app::MeasuredServer measured, app::measure_server(check));
    result.server = make_result(asked, measured, name);
    if (!json.is_asked()) print_server(asked, measured, name);
  }
  if (check.racks > 0) {
    result.racks = make_result(check, asked, name);
    if (!json.is_asked()) {
      std::printf("%s", arguments.server ? "\n" : "");
      print_racks(check, asked, name);
    }
  }
  return json.print(write_json(std::move(result)));
}

Status run_check(const CheckArguments& arguments) {
  const JsonOutput json(arguments.json);
  if (arguments.server || arguments.check.racks > 0) return check_server(arguments, json);
  if (arguments.as_cluster) {
    std::printf("%s", app::describe_this_machine().c_str());
    return {};
  }
  const app::MachineCheck check = app::check_this_machine(MOTLEY_TORCH_VERSION);
  if (!json.is_asked()) std::printf("%s", check.text.c_str());
  std::fflush(stdout);  // as measuring takes its time
  auto devices = measure_devices(check);
  if (devices && !json.is_asked()) print_devices(*devices);
  MachineResult machine = make_result(check, devices ? std::move(*devices) : std::vector<CheckedDevice>());
  MOTLEY_TRY(json.print(write_json(CheckResult{.machine = std::move(machine), .server = {}, .racks = {}})));
  if (!check.works) return check.works;
  return devices ? Status() : fail(devices.error());
}

}  // namespace

void add_check(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<CheckArguments>(
      app, line, "check", "What this machine has, what works, what is missing and how to get it",
      "Examples:\n"
      "  motley check --as-cluster > cluster.yaml\n"
      "  motley check --server --model resnet50 --link-bandwidth 100Gbps\n"
      "  motley check --racks 8 --workers-per-rack 16 --worker-bandwidth 10Gbps --rack-server-bandwidth 100Gbps \\\n"
      "      --uplink-bandwidth 40Gbps",
      run_check);
  for (const char* flag : {"--model", "--batch-time", "--profile", "--batch-size", "--optimizer", "--comm-dtype"}) {
    command.get_option(flag)->group(kOfEither);
  }
  command.get_option("--link-bandwidth")->group(kOfServer);
  for (const char* flag :
       {"--workers-per-rack", "--worker-bandwidth", "--rack-server-bandwidth", "--uplink-bandwidth", "--switch-slots",
        "--switch-payload", "--switch-header", "--switch-bandwidth", "--switch-round-trip"}) {
    command.get_option(flag)->group(kOfRacks);
  }
  command.get_option("--profile")->excludes("--model");
  command.get_option("--batch-size")->needs("--profile");
  command.get_option("--json")->excludes("--as-cluster");
}

}  // namespace motley::cli
