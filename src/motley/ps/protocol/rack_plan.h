// Which ranks share a rack, and which server is theirs: what a job with a server in each rack says of itself.
// docs/explanation/parameter-server.md tells how racks meet.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::ps {

// Racks are numbered in the order of their lowest ranks, so that rank 0 is in rack 0.
struct RackPlan {
  std::vector<int> rank_racks;       // empty: racks are not told apart
  std::vector<std::string> servers;  // of the racks, "host:port"
  bool between_servers = false;      // the racks' servers are the ranks: size and rank count racks
  double seconds = 0;                // that the racks' servers may take to meet

  bool empty() const { return rank_racks.empty(); }
  int racks() const { return static_cast<int>(servers.size()); }
  std::vector<int> list_ranks(int rack) const;
  bool operator==(const RackPlan& other) const {
    return rank_racks == other.rank_racks && servers == other.servers && between_servers == other.between_servers;
  }
};

// `rank_racks`: for each rank the index of its server. kInvalidInput where that is no server, or a server has no
// rank.
Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rank_racks, int size);

}  // namespace motley::ps
