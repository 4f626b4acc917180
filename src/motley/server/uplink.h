// How the servers of a job's racks meet: each is a worker of a further job, between the racks, which all of them serve.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "motley/exchange/server_protocol.h"
#include "motley/transport/handshake.h"
#include "motley/transport/tcp_connection.h"

namespace motley::server {

// What is put behind a job's name to name the one between its racks.
inline constexpr const char* kBetweenRacks = " (between racks)";

struct Uplinks {
  using Lanes = std::vector<std::unique_ptr<transport::TcpConnection>>;  // by rack
  int cores = 0;                                                         // of each server that the job uses
  Lanes controls;
  std::vector<Lanes> lanes;  // by core
};

std::string server_name(const exchange::RackPlan& racks, int rack);  // "server at 10.0.0.5:4711"

// Blocks until all racks' servers have joined, or the plan's seconds have passed; the error names who was waited for.
// `join`: of the rack's ranks. `claim`: the job between the racks, and the rack as its rank.
Result<Uplinks> meet_racks(const exchange::ServerJoin& join, transport::Claim claim, const transport::Secret& token,
                           bool payload_checksum, const std::atomic<bool>& cancelled);

}  // namespace motley::server
