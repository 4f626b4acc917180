// How a rank joins its job at the servers: which servers, how they divide the model, and the memory that all share
// where one server and all ranks are on one host.
#pragma once

#include <memory>

#include "motley/collective/gradient_reducer.h"
#include "motley/net/region.h"
#include "motley/ps/client/control_connections.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/protocol/divided_model.h"

namespace motley::ps {

// Memory of one host; all empty where gradients go over channels.
struct SharedMemory {
  std::unique_ptr<net::Region> gradients = nullptr;  // of this rank
  std::unique_ptr<net::Region> of_server = nullptr;  // which made it for the job
  ServerRegion region = {};                          // what is in it
};

struct Joined {
  DividedModel model;
  SharedMemory memory;
  bool may_spin = false;  // every thread has a core
};

// Connects, and returns once all ranks have joined; collective. kInvalidInput names what servers do not do for a job of
// these options.
Result<Joined> join_servers(net::Session& session, const ServerOptions& options, const collective::Layout& layout,
                            ControlConnections& controls, const Deadline& deadline);

}  // namespace motley::ps
