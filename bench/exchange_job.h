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
  // Gloo itself, in C++, with each of its algorithms, for one size; they answer "COUNT 0".
  static Result<std::vector<ExchangeJob>> start_gloo_algorithms(int ranks, std::size_t bytes);
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

// Those that are compared, by the names that bench/peers/gloo_collectives.cpp has for them.
// Those of small models only come last.
inline constexpr const char* kGlooAlgorithms[] = {"ring-chunked", "halving-doubling", "allreduce",
                                                  "ring-chunked-polling", "halving-doubling-polling"};

// A program of bench/peers that was built with this one. The error says which package was missing then.
Result<std::string> built_peer(const std::string& name);

// What alternating batches of two gave: medians in seconds, and the median of the pairs' ratios.
struct Comparison {
  double ours = 0;
  double peer = 0;
  double ratio = 0;
  int best = 0;  // which of several peers
};

// Ours against the best of several peers, the one with the least median: all are called in turn, the first round only
// to warm up, every other round in the opposite order.
template <class Ours, class Peer>
Result<Comparison> compare_with_best(int rounds, Ours ours, int peers, Peer peer) {
  std::vector<std::vector<double>> times(static_cast<std::size_t>(peers) + 1);  // ours first
  for (int round = 0; round < rounds + 1; ++round) {
    for (int turn = 0; turn <= peers; ++turn) {
      const int which = round % 2 == 0 ? turn : peers - turn;
      MOTLEY_ASSIGN(const double seconds, which == 0 ? Result<double>(ours()) : Result<double>(peer(which - 1)));
      if (round > 0) times[static_cast<std::size_t>(which)].push_back(seconds);
    }
  }
  std::size_t best = 1;
  for (std::size_t which = 2; which < times.size(); ++which) {
    if (median(times[which]) < median(times[best])) best = which;
  }
  std::vector<double> ratios;
  for (std::size_t round = 0; round < times[0].size(); ++round) ratios.push_back(times[0][round] / times[best][round]);
  return Comparison{median(times[0]), median(times[best]), median(ratios), static_cast<int>(best) - 1};
}

// The same with one peer.
template <class Ours, class Peer>
Result<Comparison> compare(int pairs, Ours ours, Peer peer) {
  return compare_with_best(pairs, ours, 1, [&](int) { return peer(); });
}

}  // namespace motley::bench
