// One rank of the exchange benchmark, as a process of its own.
#pragma once

#include <string>
#include <vector>

namespace motley::bench {

// `motley bench-worker exchange RANK SIZE HOST:PORT METHOD BYTES[,BYTES...] [BIND-HOST]`, where METHOD is shared-memory
// or tcp-ring (tcp-ring-meet: all ranks begin a round at once) and the secret stands in MOTLEY_BENCH_SECRET. With
// METHOD ps-memory, ps-tcp or ps-tcp-bfloat16 the servers of MOTLEY_SERVERS take steps of SGD with momentum, and a
// round is one over all buckets. Rank 0 prints the address it listens on, then "ready", and reads commands: "round
// INDEX COUNT" reduces the INDEX-th bucket COUNT times, "stream BYTES" sends plain bytes to the right neighbour while
// receiving as many from the left one; each prints the slowest rank's seconds (of one reduction). `arguments` are those
// after "exchange". Returns the exit code.
int exchange_worker_main(const std::vector<std::string>& arguments);

}  // namespace motley::bench
