// Seconds that a step's exchange takes for each way to place parameter servers, from the speeds of the links alone, and
// which way is fastest. Pure; docs/parameter-server.md tells the placements.
//
// All links carry as much in both directions at once, and pieces follow each other so closely that a time is that of
// the link with most to carry (bytes over it in one direction / its bytes per second).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::planning {

enum class Placement { kCentral, kSharded, kColocated, kHierarchical, kRing };
const char* to_string(Placement placement);  // "central", "sharded", "colocated", "hierarchical", "ring"

// M bytes are pushed and pulled by each worker. One rack: its uplink carries nothing.
struct PlacementProblem {
  double model_bytes = 0;              // M, as they are on the wire
  std::vector<int> rack_workers;       // N of each rack
  double worker_bytes_per_second = 0;  // B_w, a worker's link, each way
  double server_bytes_per_second = 0;  // B_p, a server's
  double uplink_bytes_per_second = 0;  // B_c, a rack's
  int servers = 0;                     // dedicated; sharded: spread evenly over the racks
  bool a_server_in_each_rack = false;  // what the hierarchy needs

  int racks() const { return static_cast<int>(rack_workers.size()); }
  int workers() const;
};

// One dedicated server in the first rack: max(M / B_w, W M / B_p, what the racks' uplinks carry). W: all workers.
double central_seconds(const PlacementProblem& problem);

// k dedicated servers, spread evenly over r racks: max(M / B_w, W M / (k B_p), uplinks). A rack of N workers sends
// N M (r-1)/r of pushes and (W - N) M / r of weights: 2 N M (r-1)/r where all racks are equal.
double sharded_seconds(const PlacementProblem& problem);

// A server in every worker's host: max(2 M (W-1) / (W B_w), uplinks), T_flat of PHub (Luo et al., SoCC 2018). A rack of
// N workers sends N M (W-N)/W of pushes and as much of weights: 2 N M (r-1)/r where all racks are equal.
double colocated_seconds(const PlacementProblem& problem);

// A server in each rack sums its workers' gradients, and the racks' servers meet as equal shards: T_hier, where
// pieces of the two follow each other, max(M / B_w, N M / B_p, 2 M (r-1) / (r min(B_p, B_c))).
double hierarchical_seconds(const PlacementProblem& problem);
// The same where one is over before the other begins: their sum.
double unpipelined_hierarchical_seconds(const PlacementProblem& problem);

// A ring through all workers, rack by rack, so that each uplink is crossed once in each direction:
// 2 M (W-1) / (W min(B_w, B_c)).
double ring_seconds(const PlacementProblem& problem);

struct PlacementSeconds {
  Placement placement;
  double seconds;
};
// The placements that are possible with these servers, fastest first; of equals the one with fewer parts, which is the
// order of Placement. Errors: kInvalidInput for numbers that are no cluster's.
Result<std::vector<PlacementSeconds>> rank_placements(const PlacementProblem& problem,
                                                      std::span<const Placement> among);

// "hierarchical 749 ms, sharded 1.5 s; worker links 125 MB/s, servers' 1.2 GB/s, 2 racks' uplinks 62 MB/s".
std::string explain(std::span<const PlacementSeconds> ranked, const PlacementProblem& problem);

}  // namespace motley::planning
