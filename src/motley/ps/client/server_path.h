// The ways between a rank and its servers have one face: memory that both map, or channels over TCP. Gradients go
// there, and weights, or sums of gradients, come back, a bucket at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/ps/client/server_join.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

// One turn of a bucket.
struct Round {
  std::uint32_t number = 0;  // how often the bucket was started, from 1
  Announcement announcement;
};

// What came back with a bucket.
struct Answer {
  double total_weight = 0;                // of all ranks; not of an asynchronous job
  std::span<const std::uint32_t> rounds;  // of an asynchronous job: which of each rank are in the weights
};

// One thread calls all, as in GradientReducer; abort may come from any.
class ServerPath {
 public:
  virtual ~ServerPath() = default;
  // Memory of all buckets' values, as DividedModel lays them out: this rank's gradients, and the weights that it reads.
  virtual std::byte* gradients() const = 0;
  virtual std::byte* weights() const = 0;
  // Where the weights are before the first round; null where the server keeps them.
  virtual std::byte* own_weights() const = 0;
  virtual Status start(int bucket, const Round& round) = 0;
  // Where servers only add up, the sum then stands in the gradients' place.
  virtual Result<Answer> wait(int bucket, const Deadline& deadline) = 0;
  virtual void abort(const Error& error) = 0;
  virtual std::uint64_t bytes_sent() const = 0;
};

// What is referred to must outlive the paths. Over memory, where `channels` only carry wakeups; takes the joined
// memory.
std::unique_ptr<ServerPath> make_memory_path(net::Session& session, const ServerOptions& options,
                                             ControlConnections& controls, Joined& joined,
                                             std::vector<std::unique_ptr<net::Connection>> channels);
// Over TCP, a channel to each core of the servers.
Result<std::unique_ptr<ServerPath>> make_channel_path(net::Session& session, const ServerOptions& options,
                                                      ControlConnections& controls, const Joined& joined,
                                                      std::vector<std::unique_ptr<net::Connection>> channels);

}  // namespace motley::ps
