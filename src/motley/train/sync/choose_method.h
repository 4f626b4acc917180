// The one place where gradient synchronisation is chosen among all that there is, between the ranks and through
// parameter servers: which method finishes a step soonest, from what links and memory are measured to carry, and which
// type on the wire to a server pays. The choices themselves are pure functions, so that they can be explained, tested
// and predicted; docs/explanation/parameter-server.md has the formulas.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/ps/client/server_optimizer.h"
#include "motley/ps/client/server_options.h"

namespace motley::train {

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
  collective::Method method = collective::Method::kAuto;
  double seconds = 0;   // of a step's exchange and update
  std::string because;  // "2 x 3/4 x 46.8 MB at 125 MB/s, then the optimizer"
};

struct MethodChoice {
  collective::Method method = collective::Method::kAuto;
  std::vector<MethodEstimate> estimates;  // fastest first
  std::string explanation() const;        // "parameter-server: 0.374 s (...); tcp-ring: 0.562 s (...)"
};

// Of equal ones the first of shared memory, ring, server.
MethodChoice choose_method(const MethodQuestion& question);

// Answers gradient_sync.method auto where there are servers: measures what links and memory carry, by a few rounds of a
// small model with each method that is possible, and chooses. Collective; all ranks leave with the same choice. Takes
// some seconds at most where links carry 10 MB/s and more. `options.servers` may be empty.
Result<MethodChoice> measure_and_choose(net::Session& session, collective::Group& group,
                                        const ps::ServerOptions& options, const collective::Layout& layout,
                                        const Deadline& deadline);

// Seconds of a round of the same values in each type.
struct WireTrial {
  collective::WireType type = collective::WireType::kNative;
  double seconds = 0;
};

// A type is taken instead of one that loses less only where it saves a tenth of the time.
inline constexpr double kMaxTimeRatio = 0.9;

// From the trials, of which each type loses more than those before it.
collective::WireType best_wire(std::span<const WireTrial> trials);

// Answers WireType::kAuto: exchanges of each type are tried, on the links and with the processors that the job will
// use. Collective. Rank 0 logs what was chosen and why. kNative where nothing is sent at all. Top-k is not among the
// choices: how many more steps it costs is for the job to know.
Result<collective::WireType> choose_wire(net::Session& session, collective::Group& group,
                                         const ps::ServerOptions& options, const collective::Layout& layout,
                                         const Deadline& deadline);

struct SyncMethod {
  std::unique_ptr<collective::GradientReducer> reducer;
  ps::ServerOptimizer* server_optimizer = nullptr;  // part of the reducer; null where each rank takes the step itself
};

// The reducer of options.method. One rank alone gets one that does nothing, unless it is to use a parameter server. The
// session must outlive it.
Result<SyncMethod> make_reducer(net::Session& session, const ps::ServerOptions& options);

}  // namespace motley::train
