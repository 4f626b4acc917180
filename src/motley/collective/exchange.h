// How gradients meet. Every method of exchange (shared memory, ring over TCP, later a parameter server) stands behind
// this one interface; the training loop knows nothing else.
//
// The reduced gradient of a bucket is sum_i(w_i g_i) / sum_i(w_i), where g_i is worker i's mean gradient and w_i >= 0
// its weight, the number of its samples (house rule 1). Gradients live in memory that the exchange owns: buffer(b) is
// where the worker writes g_i and where the result stands afterwards, so that nothing is copied between processes that
// share memory. One thread calls prepare/start/wait; an exchange may have a thread of its own to make progress while
// the worker computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/kernels/update.h"
#include "motley/net/session.h"

namespace motley::collective {

enum class DataType { kFloat32, kFloat64 };  // of gradients in memory; sums are taken in this type
// As sent over TCP; shared memory is never converted. The last three are for a parameter server (wire_form.h).
enum class WireType { kNative, kBfloat16, kFloat16, kInt8, kTopK, kAuto };
std::size_t bytes_of(DataType type);

// Sizes of the buckets in elements, in the order in which they are usually ready (last layer first).
struct Layout {
  DataType type = DataType::kFloat32;
  std::vector<std::size_t> bucket_elements;
};

struct Outcome {
  double total_weight = 0;         // sum of w_i; 0 leaves the bucket all zero. Relaxed: this rank's own
  std::uint64_t version = 0;       // the step whose gradients are in it; relaxed: this rank's newest
  int staleness = 0;               // steps by which the slowest rank's newest part is older; 0 where all go together
  std::vector<int> missing_ranks;  // ranks whose part of this step is not in it yet; empty where all go together
};

// What a parameter server holds: flat arrays in the order of the buckets.
struct ServerState {
  std::uint64_t updates = 0;                               // steps of the optimizer made so far
  std::vector<std::vector<float>> weights;                 // [bucket]
  std::vector<std::vector<std::vector<float>>> optimizer;  // [array][bucket]; no array: all zeros
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Allocates and maps the buffers for this layout, among all ranks of the session; collective. Once.
  virtual Status prepare(const Layout& layout, const Deadline& deadline) = 0;

  // The bucket's memory, 64-byte aligned, bucket_elements[bucket] values. Between start and the return of wait it
  // belongs to the exchange.
  virtual std::span<std::byte> buffer(int bucket) = 0;

  // Announces that this rank's gradient of `bucket` for `step` stands in its buffer. Never blocks. All ranks start the
  // same buckets in the same order. `weight` is this rank's number of samples in the step (0: nothing to add; the
  // buffer's content is then ignored).
  virtual Status start(std::uint64_t step, int bucket, double weight) = 0;

  // Waits until the bucket's reduced gradient stands in buffer(bucket). On failure names the rank waited for, the step
  // and the bucket. Buckets are waited for in the order in which they were started.
  virtual Result<Outcome> wait(int bucket, const Deadline& deadline) = 0;

  // Wakes every wait, here and on peers, with this error.
  virtual void abort(const Error& error) = 0;

  virtual std::string name() const = 0;  // "shared-memory", "tcp-ring", "single", "parameter-server"

  // By this rank over TCP since prepare(), frames' headers included. In shared memory nothing is sent.
  virtual std::uint64_t bytes_sent() const { return 0; }

  // Whether whoever reduces the gradients also takes the optimizer's step, so that wait() leaves new weights in
  // weights(bucket) and nothing of use in buffer(bucket). The rest is for such an exchange only.
  virtual bool updates_weights() const { return false; }
  // The bucket's weights, not to be written: float32 values, 64-byte aligned. They change between the last rank's
  // start() and the return of wait().
  virtual std::span<const float> weights(int) { return {}; }
  // Of all buckets started from now on; the same on all ranks for the same step.
  virtual void set_learning_rate(double) {}
  // Whether ranks may be at different steps (ExchangeOptions::staleness). Then each rank's part moves the weights by
  // itself, as far as its weight is of a step's, and weights(bucket) are this rank's own copy, which changes between
  // its own start() and the return of its wait().
  virtual bool relaxed() const { return false; }
  // Relaxed, of all buckets started from now on: what the weights of all ranks add up to in a step, and whether wait()
  // is for all ranks' parts of the step, so that all ranks then hold the same weights.
  virtual void begin_step(double, bool) {}
  // Before the first step, collective. All ranks give the same weights and number of updates; the optimizer's state is
  // taken from rank 0.
  virtual Status load(const ServerState&, const Deadline&) { return {}; }
  // Rank 0 only, between its wait() for the last bucket of a step and its next start().
  virtual Result<ServerState> save(const Deadline&) { return ServerState{}; }
};

inline constexpr std::uint32_t kAnyStaleness = std::numeric_limits<std::uint32_t>::max();

enum class Method { kAuto, kSharedMemory, kTcpRing, kParameterServer };

// A parameter server that the job may use, and the token that lets it in.
struct ServerAddress {
  net::Endpoint endpoint;
  net::Secret token;
};

struct ExchangeOptions {
  Method method = Method::kAuto;      // auto: shared memory when all ranks are on one host, else the ring
                                      // (measure_and_choose says more where there are servers)
  WireType wire = WireType::kNative;  // kAuto: choose_wire (wire_choice.h) says which before the exchange is made
  bool background_progress = true;    // a thread reduces buckets while the worker computes
  int tcp_lanes = 0;                  // sockets per neighbour; 0 chooses
  std::size_t segment_bytes = 0;      // pipelining unit of the ring; 0 chooses
  // kParameterServer only.
  std::vector<ServerAddress> servers;
  std::vector<double> server_speeds;   // of their links, in any unit, to divide the model by; empty: by their cores
  std::vector<int> rack_of_rank;       // hierarchical: for each rank, which of the servers is in its rack
  kernels::UpdateOptions update;       // kSum: the servers only add up
  std::size_t chunk_bytes = 32 << 10;  // unit of aggregation
  bool servers_share_memory = true;    // where server and all ranks are on one host
  // Steps that a rank may be ahead of the slowest; none: all take each step together.
  std::optional<std::uint32_t> staleness;
  double top_k = 0.01;     // kTopK: the share of a gradient's values that is sent
  std::string job_suffix;  // of the job's name at the servers, for an exchange beside its own
};

// One rank alone gets an exchange that does nothing, unless it is to use a parameter server. The session must outlive
// the exchange.
Result<std::unique_ptr<Exchange>> make_exchange(net::Session& session, const ExchangeOptions& options);

// Small collectives among all ranks of a session, over shared memory where possible, else over TCP. One thread uses a
// Group at a time, and all ranks call the same operations in the same order. Every failure names the missing rank and
// the operation's sequence number.
class Group {
 public:
  virtual ~Group() = default;
  // Every rank gives `count` values and gets all ranks' values, rank by rank (size x count).
  virtual Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) = 0;
  // In place, element by element, in the order of the ranks (bitwise the same on all of them).
  virtual Status all_reduce_sum(std::span<double> values, const Deadline& deadline) = 0;
  // Root's bytes to all; sizes must agree. Any size.
  virtual Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) = 0;
  virtual Status barrier(const Deadline& deadline) = 0;
  // A counter that all ranks share: adds `amount` and returns the value before, in O(microseconds) on one host, one
  // round trip to rank 0 otherwise. Used by work pulling. Counter ids 0..7; reset with store after a barrier.
  virtual Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) = 0;
  virtual Status store(int counter, std::int64_t value, const Deadline& deadline) = 0;
};
Result<std::unique_ptr<Group>> make_group(net::Session& session);

}  // namespace motley::collective
