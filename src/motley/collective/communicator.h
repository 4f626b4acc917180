// Collective operations on buffers of the caller, in the background: what a process group of torch.distributed needs. A
// GradientReducer owns its buffers and knows their layout beforehand; a communicator takes any, in any order, as long
// as all ranks start the same operations in the same order.
//
// Operations are numbered from 1 in the order of their start. One thread of the communicator carries them out, one
// after the other, and calls `done` of each, in that order. Sums are taken in the order of the ranks, so that they are
// bitwise the same on all ranks, from run to run, and over shared memory and TCP.
//
// An error is final: it ends all operations under way, here and, told by the session, on the other ranks. Where a rank
// is missing at an operation's deadline the error names it, the operation and its number.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/collective/element_type.h"
#include "motley/net/session.h"

namespace motley::collective {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,      // output: in place; input: the same memory
  kReduceScatter,  // input: a part for each rank, in rank order; output: this rank's part of the sum
  kAllGather,      // input: this rank's values; output: all ranks', in rank order
  kBroadcast,      // output: root's values; input: on root the same memory, else empty
  kBarrier,        // neither
};
const char* to_string(CollectiveKind kind);
enum class Reduction : std::uint8_t { kSum, kAverage };
const char* to_string(Reduction reduction);

struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ElementType type = ElementType::kByte;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  std::span<const std::byte> input;  // in whole elements; must live, and stay as it is, until done
  std::span<std::byte> output;
  double seconds = 60;  // in which it must end
  // Called once, by the communicator's thread. It may start operations, but not wait for any: they come after it.
  std::function<void(const Status&)> done;
};

enum class Transport {
  kAuto,  // shared memory where all ranks are on one host, else TCP
  kTcp,
};

class Communicator {
 public:
  // Collective. The session must outlive the communicator.
  static Result<std::unique_ptr<Communicator>> create(net::Session& session, Transport transport,
                                                      const Deadline& deadline);

  // Ends when all operations have, by themselves or by their deadlines.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Never blocks for other ranks; may copy some megabytes. Any thread, one at a time where the order matters. The
  // operation's number.
  std::uint64_t start(Collective collective);
  // Ends all operations with this error, those to come as well, on all ranks.
  void abort(const Error& error);
  // The error that has ended it, or a rank's loss that will.
  Status health() const;
  // Whether this is the thread that carries out operations, and calls `done` of each.
  bool is_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Memory for buffers from which and into which nothing is copied, if there is such. It is kept by its last reference,
  // also beyond the communicator's life.
  virtual bool allocates() const { return false; }
  virtual Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) {
    return fail(ErrorCode::kUnavailable, "over {} there is no memory for {} bytes", transport(), bytes);
  }
  virtual const char* transport() const = 0;  // "shared-memory", "tcp"

 protected:
  struct Pending {
    Collective what;
    std::uint64_t number = 0;
    Deadline deadline = Deadline::after(0);
    std::uint64_t first_segment = 0;  // an operation is cut into segments, which are numbered through
    std::uint64_t segments = 1;
    std::uint64_t announced = 0;  // segments of which the other ranks have been told

    std::string name() const { return fmt::format("{}, operation {}", to_string(what.kind), number); }
  };

  explicit Communicator(net::Session& session);
  // Once the derived object is complete, and before it is destroyed.
  void begin();
  void end();

  // Segments that an operation is cut into, the same on all ranks.
  virtual std::uint64_t count_segments(const Collective& collective) const = 0;
  // An operation was queued. Under the mutex; never blocks.
  virtual void queued() = 0;
  // Carries out the oldest operation, waiting for other ranks as long as its deadline allows. By the communicator's
  // thread, without the mutex.
  virtual Status finish(Pending& pending) = 0;

  // To be asked at least every 20 ms of a wait: the error that ends it. `missing` gives the ranks that are waited for.
  Status check(const Pending& pending, const std::function<std::vector<int>()>& missing) const;

  net::Session& session_;
  const int rank_;
  const int size_;

  std::mutex mutex_;  // guards all below
  std::deque<Pending> queue_;

 private:
  void run();
  void break_with(const Error& error);

  std::condition_variable wake_;
  std::uint64_t started_ = 0;
  std::uint64_t next_segment_ = 0;
  bool ending_ = false;
  mutable std::mutex broken_mutex_;  // guards broken_
  std::optional<Error> broken_;
  std::atomic<bool> is_broken_ = false;
  std::thread thread_;
};

Result<std::unique_ptr<Communicator>> make_tcp_communicator(net::Session& session, const Deadline& deadline);
Result<std::unique_ptr<Communicator>> make_shared_memory_communicator(net::Session& session, const Deadline& deadline);

}  // namespace motley::collective
