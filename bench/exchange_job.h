// Processes of one exchange, ours or a peer's, that do batches of rounds on command; and taking turns with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/child_process.h"

namespace motley::bench {

class ExchangeJob {
 public:
  // Where a rank runs: what stands before its command, and the address that it is bound to, if any.
  struct Place {
    std::vector<std::string> prefix;
    std::string address;
  };
  // Our ranks, as `motley-bench exchange-worker` does it. `bytes`: sizes, separated by commas. `environment` is added.
  static Result<ExchangeJob> start(const BenchOptions& options, const std::string& method, const std::string& bytes,
                                   const std::vector<Place>& places, const std::vector<std::string>& environment = {},
                                   const std::string& name = "bench");
  // PyTorch's Gloo. `flags` of bench/peers/gloo_allreduce.py.
  static Result<ExchangeJob> start_gloo(const BenchOptions& options, int ranks, const std::string& bytes,
                                        const std::vector<std::string>& flags = {});
  // Any program that starts its own ranks, prints "ready", and answers lines.
  static Result<ExchangeJob> start_peer(const std::vector<std::string>& command);

  // What our ranks exchange with, as they say it.
  const std::string& method() const { return method_; }
  // The answer to one command, in seconds.
  Result<double> run(const std::string& command);
  // The same in two parts, so that several jobs can work at once.
  Status begin(const std::string& command);
  Result<double> end();

 private:
  std::vector<std::unique_ptr<ChildProcess>> processes_;
  std::string method_;
};

// A program of bench/peers that was built with this one. The error says which package was missing then.
Result<std::string> built_peer(const std::string& name);

// What alternating batches of two gave: medians in seconds, and the median of the pairs' ratios.
struct Comparison {
  double ours = 0;
  double peer = 0;
  double ratio = 0;
};

// Calls both in turn, the first pair only to warm up. Both return Result<double>.
template <class Ours, class Peer>
Result<Comparison> compare(int pairs, Ours ours, Peer peer) {
  std::vector<double> our_times;
  std::vector<double> peer_times;
  std::vector<double> ratios;
  for (int pair = 0; pair < pairs + 1; ++pair) {
    double our_time = 0;
    double peer_time = 0;
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == pair % 2) {
        MOTLEY_ASSIGN(our_time, ours());
      } else {
        MOTLEY_ASSIGN(peer_time, peer());
      }
    }
    if (pair == 0) continue;
    our_times.push_back(our_time);
    peer_times.push_back(peer_time);
    ratios.push_back(our_time / peer_time);
  }
  return Comparison{median(our_times), median(peer_times), median(ratios)};
}

}  // namespace motley::bench
