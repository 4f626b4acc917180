// The rows of the bench `ps` about types on the wire: how long a round takes in each, beside the bytes that it moves.
#pragma once

#include "bench/bench.h"
#include "bench/exchange_job.h"

namespace motley::bench {

// Of workers at these places behind shaped links, of a model in buckets of these sizes in bytes (separated by commas);
// `server`: the variables that tell them where their server is.
Result<std::vector<BenchRow>> compression_rows(const BenchOptions& options,
                                               const std::vector<ExchangeJob::Place>& places, const std::string& bytes,
                                               const std::vector<std::string>& server);

}  // namespace motley::bench
