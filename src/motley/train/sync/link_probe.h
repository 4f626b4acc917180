// How fast the links between a job's workers and its servers are while all of them are in use, to choose where
// gradients are summed.
#pragma once

#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/ps/client/server_options.h"

namespace motley::train {

struct RackSpeeds {                    // bytes a second in each direction
  double worker_bytes_per_second = 0;  // of the slowest worker's link to its rack's server
  double server_bytes_per_second = 0;  // of the server with the slowest link, to its own rack
  double uplink_bytes_per_second = 0;  // of the rack with the slowest link to another
};

// Collective: all ranks talk at once with one server after the other, half a second each. What goes over each server's
// link, or over the ranks' where those are narrower; the same on all ranks.
Result<std::vector<double>> measure_servers(net::Session& session, collective::Group& group,
                                            const std::vector<ps::ServerAddress>& servers, const Deadline& deadline);

// Collective: all ranks talk at once with their own rack's server, and then with the next rack's. Takes about a second.
// A link that is not the narrowest of its way counts as what went over it. `rank_racks` as in ServerOptions, with
// two racks or more.
Result<RackSpeeds> measure_racks(net::Session& session, collective::Group& group,
                                 const std::vector<ps::ServerAddress>& servers, const std::vector<int>& rank_racks,
                                 const Deadline& deadline);

}  // namespace motley::train
