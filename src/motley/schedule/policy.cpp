#include "motley/schedule/policy.h"

#include <algorithm>
#include <numeric>

#include "motley/schedule/policies.h"

namespace motley::schedule {

double State::run_seconds(int job) const {
  const Progress& one = progress[static_cast<std::size_t>(job)];
  return one.run_seconds + (one.runs() ? now - one.since : 0);
}

double State::device_seconds(int job) const {
  const Progress& one = progress[static_cast<std::size_t>(job)];
  return one.device_seconds + (one.runs() ? (now - one.since) * workers_of(one.placement) : 0);
}

namespace {

Placement place_anywhere(const Machines& machines, const Occupancy& occupancy, int workers) {
  Placement placement;
  for (int server = 0; server < static_cast<int>(machines.servers.size()) && workers > 0; ++server) {
    const int taken = std::min(workers, occupancy.free_on(server));
    if (taken <= 0) continue;
    placement.push_back({server, taken});
    workers -= taken;
  }
  return placement;
}

Placement place_together(const Machines& machines, const Occupancy& occupancy, int workers) {
  const auto count = static_cast<int>(machines.servers.size());
  const auto size_of = [&](int server) { return machines.servers[static_cast<std::size_t>(server)].devices; };
  Placement placement;
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (workers > std::ranges::max(machines.servers, {}, &Server::devices).devices) {
    std::ranges::stable_sort(order, std::greater(), size_of);
    for (const int server : order) {
      const int size = size_of(server);
      if (size > workers || occupancy.free_on(server) < size) continue;
      placement.push_back({server, size});
      workers -= size;
    }
  }
  if (workers > 0) {
    const auto has_room = [&](int server) {
      return occupancy.free_on(server) >= workers &&
             std::ranges::find(placement, server, &Part::server) == placement.end();
    };
    std::ranges::sort(order);
    const auto found = std::ranges::find_if(order, has_room);
    if (found == order.end()) return {};
    placement.push_back({*found, workers});
  }
  std::ranges::sort(placement, {}, &Part::server);
  return placement;
}

}  // namespace

Placement place(const Machines& machines, const Occupancy& occupancy, int workers, Packing packing) {
  if (workers > occupancy.free()) return {};
  return packing == Packing::kAnywhere ? place_anywhere(machines, occupancy, workers)
                                       : place_together(machines, occupancy, workers);
}

std::vector<std::string> policy_names() {
  return {"fifo", "las", "srtf"};
}

Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const PolicyOptions& options) {
  if (name == "fifo") return make_fifo(options);
  if (name == "las") return make_las(options);
  if (name == "srtf") return make_srtf(options);
  return fail(ErrorCode::kInvalidInput, "--policy: there is no '{}'; accepted: {}", name,
              fmt::join(policy_names(), ", "));
}

}  // namespace motley::schedule
