// Which ranks share a rack, and which server is theirs: what a job with a server in each rack says of itself.
// docs/parameter-server.md tells how racks meet.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/bytes.h"

namespace motley::collective {

// Racks are numbered in the order of their lowest ranks, so that rank 0 is in rack 0.
struct RackPlan {
  std::vector<int> rack_of_rank;     // empty: racks are not told apart
  std::vector<std::string> servers;  // of the racks, "host:port"
  bool between_servers = false;      // the racks' servers are the ranks: size and rank count racks
  double seconds = 0;                // that the racks' servers may take to meet

  bool empty() const { return rack_of_rank.empty(); }
  int racks() const { return static_cast<int>(servers.size()); }
  std::vector<int> ranks_of(int rack) const;
  bool operator==(const RackPlan& other) const {
    return rack_of_rank == other.rack_of_rank && servers == other.servers && between_servers == other.between_servers;
  }
};

// `rack_of_rank`: for each rank the index of its server. kInvalidInput where that is no server, or a server has no
// rank.
Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rack_of_rank, int size);

// As a part of a message; what is decoded is a plan that make_rack_plan could have made, or the reader has failed.
void encode(net::ByteWriter& writer, const RackPlan& plan);
Result<RackPlan> decode_rack_plan(net::ByteReader& reader);

}  // namespace motley::collective
