// How a job's gradients are synchronised where parameter servers may take part, and where those are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/collective/wire_form.h"
#include "motley/kernels/update.h"
#include "motley/net/secret.h"
#include "motley/net/socket.h"

namespace motley::ps {

// Where a server listens, and the token that lets a job in.
struct ServerAddress {
  net::Endpoint endpoint;
  net::Secret token;
};

// What every method has, and what only servers have.
struct ServerOptions : collective::ReducerOptions {
  std::vector<ServerAddress> servers;
  std::vector<double> server_speeds;   // of their links, in any unit, to divide the model by; empty: by their cores
  std::vector<int> rank_racks;         // hierarchical: for each rank, which of the servers is in its rack
  kernels::UpdateOptions update;       // kSum: the servers only add up
  std::size_t chunk_bytes = 32 << 10;  // unit of aggregation
  bool servers_share_memory = true;    // where server and all ranks are on one host
  // Steps that a rank may be ahead of the slowest (kAnyStaleness: any number); none: all take each step together.
  std::optional<std::uint32_t> staleness;
  double top_k = 0.01;     // kTopK: the share of a gradient's values that is sent
  std::string job_suffix;  // of the job's name at the servers, for a reducer beside its own

  collective::WireForm wire_form() const { return {wire, wire == collective::WireType::kTopK ? top_k : 0}; }
};

}  // namespace motley::ps
