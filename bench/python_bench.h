// The bench `python`: the Python package against the same scripts without it. Each part is a script of bench/python,
// which prints its rows.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// Four ranks at emulated speeds.
Result<std::vector<BenchRow>> python_speeds(const BenchOptions& options);
// Two ranks, one of which has half a processor.
Result<std::vector<BenchRow>> python_pinned(const BenchOptions& options);
// What the package costs where all ranks are equally fast.
Result<std::vector<BenchRow>> python_overhead(const BenchOptions& options);
// How far training is from one process that computes each batch whole.
Result<std::vector<BenchRow>> python_equality(const BenchOptions& options);
// The backend of torch.distributed against gloo.
Result<std::vector<BenchRow>> python_backend(const BenchOptions& options);
// Four ranks whose optimizer's step a parameter server takes.
Result<std::vector<BenchRow>> python_server(const BenchOptions& options);
// A click model of a script, its embeddings at a parameter server, against the program's.
Result<std::vector<BenchRow>> python_embeddings(const BenchOptions& options);

}  // namespace motley::bench
