// Numbering racks.
#include "motley/ps/protocol/rack_plan.h"

#include <algorithm>

namespace motley::ps {

std::vector<int> RackPlan::list_ranks(int rack) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < rank_racks.size(); ++rank) {
    if (rank_racks[rank] == rack) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rank_racks, int size) {
  if (static_cast<int>(rank_racks.size()) != size) {
    return fail(ErrorCode::kInvalidInput, "racks: {} numbers are given for {} workers; accepted: one for each",
                rank_racks.size(), size);
  }
  RackPlan plan;
  std::vector<int> number(servers.size(), -1);
  for (std::size_t rank = 0; rank < rank_racks.size(); ++rank) {
    const int server = rank_racks[rank];
    if (server < 0 || server >= static_cast<int>(servers.size())) {
      return fail(ErrorCode::kInvalidInput,
                  "racks: worker {} is given server {}; accepted: 0 to {}, in the order of gradient_sync.servers", rank,
                  server, static_cast<int>(servers.size()) - 1);
    }
    int& rack = number[static_cast<std::size_t>(server)];
    if (rack < 0) {
      rack = plan.racks();
      plan.servers.push_back(servers[static_cast<std::size_t>(server)]);
    }
    plan.rank_racks.push_back(rack);
  }
  if (const auto unused = std::ranges::find(number, -1); unused != number.end()) {
    return fail(ErrorCode::kInvalidInput, "racks: no worker is given the server {}; accepted: one or more for each",
                servers[static_cast<std::size_t>(unused - number.begin())]);
  }
  return plan;
}

}  // namespace motley::ps
