#include "motley/scheduling/trace/machines.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace motley::scheduling {

int Machines::devices(int type) const {
  int devices = 0;
  for (const Server& server : servers) {
    if (type == kAnyType || server.type == type) devices += server.devices;
  }
  return devices;
}

int Machines::largest_server(int type) const {
  int largest = 0;
  for (const Server& server : servers) {
    if (type == kAnyType || server.type == type) largest = std::max(largest, server.devices);
  }
  return largest;
}

std::string Machines::type_name(const Server& server) const {
  return types.empty() ? "" : types[static_cast<std::size_t>(server.type)];
}

int Machines::type_named(const std::string& name) {
  const auto known = std::ranges::find(types, name);
  const auto place = static_cast<int>(known - types.begin());
  if (known == types.end()) types.push_back(name);
  return place;
}

double Machines::rack_uplink(int rack) const {
  return rack_uplinks.empty() ? std::numeric_limits<double>::infinity() : rack_uplinks[static_cast<std::size_t>(rack)];
}

Machines pool(int devices) {
  return {{{"pool", devices, 0}}, 1};
}

Machines uniform(int servers, int devices_each, int servers_a_rack) {
  Machines machines;
  const int in_rack = servers_a_rack > 0 ? servers_a_rack : std::max(1, servers);
  for (int i = 0; i < servers; ++i) {
    machines.servers.push_back({fmt::format("server{}", i), devices_each, i / in_rack});
  }
  machines.racks = (servers + in_rack - 1) / in_rack;
  return machines;
}

namespace {

constexpr int kMostDevices = 1'000'000;

// Of "16x8/4": 16, 8 and 4; nothing where it is not understood.
std::vector<int> numbers_of(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (const char separator : {'x', '/', '\0'}) {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 1 || number > kMostDevices) return {};
    numbers.push_back(number);
    if (rest == end) return numbers;
    if (*rest != separator) return {};
    at = rest + 1;
  }
  return {};
}

// Servers behind those that there are, in racks of their own.
void append(Machines& machines, const Machines& more, int type) {
  for (Server server : more.servers) {
    if (!machines.types.empty()) server.name = fmt::format("server{}", machines.servers.size());
    server.rack += machines.racks;
    server.type = type;
    machines.servers.push_back(std::move(server));
  }
  machines.racks += more.racks;
}

}  // namespace

Result<Machines> parse_machines(const std::string& text) {
  const auto refuse = [&] {
    return fail(ErrorCode::kInvalidInput,
                "machines: '{}' is not understood; accepted: a number of devices such as 128, servers of some devices "
                "each such as 16x8, or these in racks of some servers each such as 16x8/4, of up to {} devices; with "
                "unlike devices these with their types, such as 8x4:v100,16x4:k80",
                text, kMostDevices);
  };
  Machines machines;
  machines.racks = 0;
  std::int64_t devices = 0;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    const std::size_t colon = part.find(':');
    const std::vector<int> numbers = numbers_of(part.substr(0, colon));
    if (numbers.empty()) return refuse();
    devices += std::int64_t{numbers[0]} * (numbers.size() > 1 ? numbers[1] : 1);
    if (devices > kMostDevices) return refuse();
    int type = 0;
    if (colon == std::string_view::npos) {
      if (part.size() != text.size()) return refuse();  // of several parts each has a type
    } else {
      const std::string name(part.substr(colon + 1));
      if (name.empty() || name.find(':') != std::string::npos) return refuse();
      type = machines.type_named(name);
    }
    append(
        machines,
        numbers.size() == 1 ? pool(numbers[0]) : uniform(numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0),
        type);
    at = end + 1;
  }
  return machines;
}

int workers_of(const Placement& placement) {
  int workers = 0;
  for (const Part& part : placement) workers += part.workers;
  return workers;
}

Reach reach_of(const Machines& machines, const Placement& placement) {
  if (placement.size() <= 1) return Reach::kServer;
  const int rack = machines.servers[static_cast<std::size_t>(placement.front().server)].rack;
  const bool in_one = std::ranges::all_of(placement, [&](const Part& part) {
    return machines.servers[static_cast<std::size_t>(part.server)].rack == rack;
  });
  return in_one ? Reach::kRack : Reach::kCluster;
}

int type_of(const Machines& machines, const Placement& placement) {
  if (placement.empty()) return kAnyType;
  const int type = machines.servers[static_cast<std::size_t>(placement.front().server)].type;
  return std::ranges::all_of(placement, [&](const Part& part) { return machines.is_of(part.server, type); }) ? type
                                                                                                             : kAnyType;
}

bool is_of(const Machines& machines, const Placement& placement, int type) {
  return type == kAnyType || type_of(machines, placement) == type;
}

Occupancy::Occupancy(const Machines& machines) : free_(machines.devices()) {
  servers_.reserve(machines.servers.size());
  for (const Server& server : machines.servers) servers_.push_back(server.devices);
}

bool Occupancy::has_room(const Placement& placement) const {
  return std::ranges::all_of(placement, [&](const Part& part) { return part.workers <= free_on(part.server); });
}

void Occupancy::take(const Placement& placement) {
  for (const Part& part : placement) {
    servers_[static_cast<std::size_t>(part.server)] -= part.workers;
    free_ -= part.workers;
  }
}

void Occupancy::give_back(const Placement& placement) {
  for (const Part& part : placement) {
    servers_[static_cast<std::size_t>(part.server)] += part.workers;
    free_ += part.workers;
  }
}

}  // namespace motley::scheduling
