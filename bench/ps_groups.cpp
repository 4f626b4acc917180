// What the parts of the bench `ps` have in common.
#include "bench/ps_groups.h"

namespace motley::bench {

std::string split_into_buckets(std::size_t bytes, int buckets) {
  std::string text;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t part = bytes / static_cast<std::size_t>(buckets) / 4 * 4;
    text += fmt::format("{}{}", text.empty() ? "" : ",", part);
  }
  return text;
}

std::string model_buckets() {
  return split_into_buckets(kModelBytes, 12);
}

std::vector<ExchangeJob::Place> here(int ranks) {
  return std::vector<ExchangeJob::Place>(static_cast<std::size_t>(ranks));
}

Result<ExchangeJob> served_job(const BenchOptions& options, const ServerProcess& server, const std::string& method,
                               int ranks, const std::string& name) {
  return ExchangeJob::start(options, method, model_buckets(), here(ranks), server.environment(), name);
}

}  // namespace motley::bench
