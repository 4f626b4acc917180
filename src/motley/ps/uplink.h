// How the servers of a job's racks meet: each is a worker of a further job, between the racks, which all of them serve.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "motley/collective/server_protocol.h"
#include "motley/net/handshake.h"
#include "motley/net/tcp_connection.h"

namespace motley::ps {

// What is put behind a job's name to name the one between its racks.
inline constexpr const char* kBetweenRacks = " (between racks)";

struct Uplinks {
  using Lanes = std::vector<std::unique_ptr<net::TcpConnection>>;  // by rack
  int cores = 0;                                                   // of each server that the job uses
  Lanes controls;
  std::vector<Lanes> lanes;  // by core
};

std::string server_name(const collective::RackPlan& racks, int rack);  // "server at 10.0.0.5:4711"

// Blocks until all racks' servers have joined, or the plan's seconds have passed; the error names who was waited for.
// `join`: of the rack's ranks. `claim`: the job between the racks, and the rack as its rank.
Result<Uplinks> meet_racks(const collective::ServerJoin& join, net::Claim claim, const net::Secret& token,
                           bool payload_checksum, const std::atomic<bool>& cancelled);

}  // namespace motley::ps
