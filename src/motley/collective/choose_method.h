// Which exchange finishes a step soonest, from what links and memory were measured to carry: a pure function, so that
// the choice can be explained, tested and predicted. docs/parameter-server.md has the formulas.
#pragma once

#include <string>
#include <vector>

#include "motley/collective/exchange.h"

namespace motley::collective {

// Rates are in bytes per second; a link's hold in each of its two directions while all ranks use theirs.
struct MethodQuestion {
  int ranks = 1;
  double bytes = 0;          // of the gradient in memory, and of the weights
  double wire_share = 1;     // of these that travel: 0.5 with 16 bits on the wire
  int state_arrays = 0;      // of the optimizer, each as large as the weights
  bool one_host = false;     // all ranks
  bool ring_allowed = true;  // the ring can carry the wire's type
  double rank_link = 0;      // to the next rank; not asked for on one host
  double rank_memory = 0;    // what one rank reads and writes while all do
  double latency = 0;        // of a message, seconds

  int servers = 0;                    // 0: there are none
  bool server_shares_memory = false;  // with all ranks
  bool server_steps = true;           // it takes the optimizer's step; else each rank does
  double server_link = 0;             // of each server, all its work on the way included
  double rank_to_server_link = 0;     // of each rank
  double server_memory = 0;           // what its cores read and write; where memory is shared
};

struct MethodEstimate {
  Method method = Method::kAuto;
  double seconds = 0;   // of a step's exchange and update
  std::string because;  // "2 x 3/4 x 46.8 MB at 125 MB/s, then the optimizer"
};

struct MethodChoice {
  Method method = Method::kAuto;
  std::vector<MethodEstimate> estimates;  // fastest first
  std::string explanation() const;        // "parameter-server: 0.374 s (...); tcp-ring: 0.562 s (...)"
};

const char* to_string(Method method);

// Of equal ones the first of shared memory, ring, server.
MethodChoice choose_method(const MethodQuestion& question);

}  // namespace motley::collective
