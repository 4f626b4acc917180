// One rank of the exchange benchmark, as a process of its own.
#pragma once

#include <string>
#include <vector>

namespace motley::bench {

// `motley-bench exchange-worker RANK SIZE HOST:PORT METHOD BYTES[,BYTES...] [BIND-HOST]`, where the secret stands in
// MOTLEY_BENCH_SECRET and METHOD is one of
//   shared-memory, tcp-ring            a round reduces one bucket (tcp-ring-barrier: all ranks begin it at once)
//   shared-memory-step, tcp-ring-step, tcp-ring-bfloat16-step   a round is a step of SGD with momentum over all buckets
//   ps-memory, ps-tcp, ps-tcp-bfloat16, ps-tcp-int8   the same, taken by the servers of MOTLEY_SERVERS
//   ps-tcp-top-k                       the same without momentum
//   ps-colocated                       the same, by a server in the first rank of every host
//   auto, auto-bfloat16                the same by whichever of these the exchange chooses
// Rank 0 prints the address it listens on, then "ready" and the exchange's name, and reads commands: "round INDEX COUNT
// [MILLISECONDS]" does COUNT rounds (of the INDEX-th bucket; whole steps after a sleep of so many milliseconds each,
// which counts), "stream BYTES [BUFFER]" sends plain bytes to the right neighbour while receiving as many from the left
// one, from and into memory of BUFFER bytes; each prints the slowest rank's seconds (of one round). `arguments` are
// those after "exchange-worker". Returns the exit code.
int exchange_worker_main(const std::vector<std::string>& arguments);

}  // namespace motley::bench
