// The groups, one after the other.
#include "bench/ps_bench.h"

#include "bench/ps_groups.h"
#include "bench/racks_bench.h"
#include "bench/sparse_bench.h"
#include "bench/sparse_net_bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> ps_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  for (const Bench group :
       {ps_memory_rows, ps_network_rows, racks_rows, ps_auto_rows, ps_train_rows, sparse_rows, sparse_net_rows}) {
    MOTLEY_ASSIGN(const std::vector<BenchRow> some, group(options));
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

std::string buckets_of(std::size_t bytes, int buckets) {
  std::string text;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t part = bytes / static_cast<std::size_t>(buckets) / 4 * 4;
    text += fmt::format("{}{}", text.empty() ? "" : ",", part);
  }
  return text;
}

std::string model_buckets() {
  return buckets_of(kModelBytes, 12);
}

std::vector<ExchangeJob::Place> here(int ranks) {
  return std::vector<ExchangeJob::Place>(static_cast<std::size_t>(ranks));
}

Result<ExchangeJob> served_job(const BenchOptions& options, const ServerProcess& server, const std::string& method,
                               int ranks, const std::string& name) {
  return ExchangeJob::start(options, method, model_buckets(), here(ranks), server.environment(), name);
}

}  // namespace motley::bench
