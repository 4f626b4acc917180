#include "motley/schedule/machines.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace motley::schedule {

int Machines::devices() const {
  return std::transform_reduce(servers.begin(), servers.end(), 0, std::plus<>(),
                               [](const Server& server) { return server.devices; });
}

int Machines::largest_server() const {
  return servers.empty() ? 0 : std::ranges::max(servers, {}, &Server::devices).devices;
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

Result<Machines> parse_machines(const std::string& text) {
  constexpr int kMost = 1'000'000;
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (const char separator : {'x', '/', '\0'}) {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 1 || number > kMost) {
      numbers.clear();
      break;
    }
    numbers.push_back(number);
    at = rest;
    if (at == end) break;
    if (*at != separator) {
      numbers.clear();
      break;
    }
    ++at;
  }
  if (at != end || numbers.empty() || (numbers.size() > 1 && numbers[0] > kMost / numbers[1])) {
    return fail(ErrorCode::kInvalidInput,
                "machines: '{}' is not understood; accepted: a number of devices such as 128, servers of some devices "
                "each such as 16x8, or these in racks of some servers each such as 16x8/4, of up to {} devices",
                text, kMost);
  }
  if (numbers.size() == 1) return pool(numbers[0]);
  return uniform(numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0);
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

}  // namespace motley::schedule
