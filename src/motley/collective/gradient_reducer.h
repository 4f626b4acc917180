// Gradient synchronisation. Every method (shared memory, ring over TCP, parameter server) stands behind this one
// interface; what a parameter server does beyond it, the optimizer's step, is ps/client/server_optimizer.h's.
//
// The reduced gradient of a bucket is sum_i(w_i g_i) / sum_i(w_i), where g_i is worker i's mean gradient and w_i >= 0
// its weight, the number of its samples (house rule 1). Gradients live in memory that the reducer owns: buffer(b) is
// where the worker writes g_i and where the result stands afterwards, unless the layout says otherwise, so that nothing
// is copied between processes that share memory. One thread calls prepare/start/wait; a reducer may have a thread of
// its own to make progress while the worker computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/net/region.h"
#include "motley/net/session.h"

namespace motley::collective {

enum class DataType { kFloat32, kFloat64 };  // of gradients in memory; sums are taken in this type
// As sent over TCP; shared memory is never converted. The last three are for a parameter server (wire_form.h).
enum class WireType { kNative, kBfloat16, kFloat16, kInt8, kTopK, kAuto };
constexpr std::size_t byte_size(DataType type) {
  return type == DataType::kFloat32 ? 4 : 8;
}

// Sizes of the buckets in elements, in the order in which they are usually ready (last layer first).
struct Layout {
  DataType type = DataType::kFloat32;
  std::vector<std::size_t> bucket_elements;
};

// Where each bucket's values begin in a memory of all, in bytes and 64-byte aligned; one more entry for the end.
std::vector<std::size_t> value_offsets(std::span<const std::size_t> bucket_elements, std::size_t bytes_per_element);

struct Outcome {
  double total_weight = 0;         // sum of w_i; 0 leaves the bucket all zero. Asynchronous: this rank's own
  std::uint64_t version = 0;       // the step whose gradients are in it; asynchronous: this rank's newest
  int staleness = 0;               // steps by which the slowest rank's newest part is older; 0 where all go together
  std::vector<int> missing_ranks;  // ranks whose part of this step is not in it yet; empty where all go together
};

// sum_i(w_i g_i) / sum_i(w_i) as (sum of coefficient * g) * scale over the ranks whose weight is not zero, in rank
// order. Equal weights get the coefficient 1, so that their products are exact.
struct Mean {
  double total_weight = 0;
  std::vector<int> ranks;
  std::vector<double> coefficients;
  double scale = 0;
};
Mean weighted_mean(std::span<const double> weights);
// kernels::weighted_sum of values of this type that start `begin` bytes into buffers; coefficients are rounded to it.
void sum_as(DataType type, std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
            std::span<std::byte* const> outputs, std::size_t begin, std::size_t count);

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  // Allocates and maps the buffers for this layout, among all ranks of the session; collective. Once.
  virtual Status prepare(const Layout& layout, const Deadline& deadline) = 0;

  // The bucket's memory, 64-byte aligned, bucket_elements[bucket] values. Between start and the return of wait it
  // belongs to the reducer.
  virtual std::span<std::byte> buffer(int bucket) = 0;

  // Announces that this rank's gradient of `bucket` for `step` stands in its buffer. Never blocks. All ranks start the
  // same buckets in the same order. `weight` is this rank's number of samples in the step (0: nothing to add; the
  // buffer's content is then ignored).
  virtual Status start(std::uint64_t step, int bucket, double weight) = 0;

  // Waits until the bucket's reduced gradient stands in its buffer. On failure names the rank waited for, the step
  // and the bucket. Buckets are waited for in the order in which they were started.
  virtual Result<Outcome> wait(int bucket, const Deadline& deadline) = 0;

  // Wakes every wait, here and on peers, with this error.
  virtual void abort(const Error& error) = 0;

  virtual std::string name() const = 0;  // "shared-memory", "tcp-ring", "single", "parameter-server"

  // By this rank over TCP since prepare(), frames' headers included. In shared memory nothing is sent.
  virtual std::uint64_t bytes_sent() const { return 0; }
};

// The memory of its buckets, of which there are `count`.
std::vector<std::span<std::byte>> list_buffers(GradientReducer& reducer, int count);

enum class Method { kAuto, kSharedMemory, kTcpRing, kParameterServer };
const char* to_string(Method method);

struct ReducerOptions {
  Method method = Method::kAuto;      // auto: shared memory when all ranks are on one host, else the ring
                                      // (measure_and_choose says more where there are servers)
  WireType wire = WireType::kNative;  // kAuto: choose_wire (train/sync) says which before the reducer is made
  bool background_progress = true;    // a thread reduces buckets while the worker computes
  std::size_t segment_bytes = 0;      // pipelining unit of the ring; 0 chooses
};

// Any method but kParameterServer. One rank alone gets a reducer that does nothing. The session must outlive the
// reducer.
Result<std::unique_ptr<GradientReducer>> make_reducer(net::Session& session, const ReducerOptions& options);
// What it chooses from, for two ranks or more: for ranks on one host; and a segmented ring for large buckets, all to
// all for small ones.
std::unique_ptr<GradientReducer> make_shared_memory_reducer(net::Session& session, const ReducerOptions& options);
std::unique_ptr<GradientReducer> make_tcp_ring_reducer(net::Session& session, const ReducerOptions& options);

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
  // round trip to rank 0 otherwise. Used by work pulling. Counter ids 0..7, all zero at first.
  virtual Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) = 0;
  // True if every rank is known to have a core of its own, so that a short spin costs nobody anything.
  virtual bool may_spin() const { return false; }
};
// Collective, as the following.
Result<std::unique_ptr<Group>> make_group(net::Session& session);
// For ranks on one host. `name` tells groups of one session apart while they are being made.
Result<std::unique_ptr<Group>> make_shared_group(net::Session& session, const std::string& name,
                                                 const Deadline& deadline);
// Where each rank's region is, rank by rank.
Result<std::vector<net::RegionAddress>> all_addresses(Group& group, const net::Region& own, const Deadline& deadline);

}  // namespace motley::collective
