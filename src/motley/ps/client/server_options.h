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

// Of a job whose ranks come and go (Session::regroup): who it is at its servers through all its epochs, and where they
// go on.
struct ElasticJob {
  std::uint64_t session = 0;  // of all ranks
  std::uint64_t epoch = 1;
  std::uint64_t updates = 0;  // as in ElasticJoin
  double kept_seconds = 60;   // the same
  // Whether each server's state is kept by the next one, too; none: where they are not all on the ranks' host.
  std::optional<bool> replicates;
  bool has_replicas = false;       // whether it is, as an epoch before has shown
  std::vector<int> server_cores;   // by server, as they were at first; empty: not known yet
  std::optional<int> lost_server;  // whose part the next one has kept, and has now
};

// What every method has, and what only servers have.
struct ServerOptions : collective::ReducerOptions {
  std::vector<ServerAddress> servers;
  std::vector<double> server_speeds;   // of their links, in any unit, to divide the model by; empty: by their cores
  std::vector<int> rank_racks;         // hierarchical: for each rank, which of the servers is in its rack
  kernels::UpdateOptions update;       // kSum: the servers only add up
  std::size_t chunk_bytes = 32 << 10;  // unit of aggregation
  // Whether an update can be taken back, where gradients go over memory and servers take the optimizer's step; weights
  // and its state then take twice the memory there.
  bool reversible = false;
  bool servers_share_memory = true;  // with ranks on their host
  // Steps that a rank may be ahead of the slowest (kAnyStaleness: any number); none: all take each step together.
  std::optional<std::uint32_t> staleness;
  double top_k = 0.01;     // kTopK: the share of a gradient's values that is sent
  std::string job_suffix;  // of the job's name at the servers, for a reducer beside its own
  std::optional<ElasticJob> elastic;

  collective::WireForm wire_form() const { return {wire, wire == collective::WireType::kTopK ? top_k : 0}; }
};

}  // namespace motley::ps
