// The groups of rows of the bench `ps`, a file each, and what they have in common: a model of 46.8 MB in buckets of
// about 4 MB, float32, SGD with momentum on the server. Workers compute nothing: a round is all gradients in and all
// weights out. Whatever is compared takes turns, in processes that stay alive; the median of the pairs' ratios is
// reported.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/exchange_job.h"
#include "bench/row_list.h"
#include "bench/server_process.h"

namespace motley::bench {

Result<std::vector<BenchRow>> ps_memory_rows(const BenchOptions& options);   // ranks on the server's host
Result<std::vector<BenchRow>> ps_network_rows(const BenchOptions& options);  // over loopback and shaped links
Result<std::vector<BenchRow>> ps_auto_rows(const BenchOptions& options);     // what gradient_sync.method auto chooses
Result<std::vector<BenchRow>> ps_train_rows(const BenchOptions& options);    // whole steps; long

inline constexpr std::size_t kModelBytes = 46'800'000;
inline constexpr int kServerCores = 2;  // as the limits have two threads
inline constexpr double kLinkBytesPerSecond = 125e6;

// Sizes for `motley bench-worker exchange`: the model, or `bytes`, in equal buckets.
std::string model_buckets();
std::string split_into_buckets(std::size_t bytes, int buckets);
// Ranks without a place of their own.
std::vector<ExchangeJob::Place> here(int ranks);
// Ranks on this host that use the server.
Result<ExchangeJob> served_job(const BenchOptions& options, const ServerProcess& server, const std::string& method,
                               int ranks, const std::string& name = "bench");
inline int pairs(const BenchOptions& options) {
  return options.quick ? 3 : 9;
}

}  // namespace motley::bench
