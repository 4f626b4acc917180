// The benchmark "plan", in parts: what exact plans are held against and how fast they come; all methods on published
// profiles, replayed; problems with a thousand devices and more; how far the other methods are from exact plans; and
// whether predictions hold.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> plan_exact_rows(const BenchOptions& options);
Result<std::vector<BenchRow>> plan_peer_rows(const BenchOptions& options);
Result<std::vector<BenchRow>> plan_large_rows(const BenchOptions& options);  // none with --quick
Result<std::vector<BenchRow>> plan_model_rows(const BenchOptions& options);
Result<std::vector<BenchRow>> plan_prediction_rows(const BenchOptions& options);  // none with --quick

}  // namespace motley::bench
