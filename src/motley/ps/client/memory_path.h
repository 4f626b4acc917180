// Gradients and weights in memory that the server and all ranks of one host map: only counters move. A rank announces a
// bucket in the server's region and wakes cores that sleep; the cores count the segments that they have updated.
#pragma once

#include <memory>
#include <vector>

#include "motley/net/session.h"
#include "motley/ps/client/server_join.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {

class MemoryPath final : public ServerPath {
 public:
  // What is referred to must outlive the path. `wakeups`: a connection to each core.
  MemoryPath(net::Session& session, const ServerOptions& options, ControlConnections& controls, Joined& joined,
             std::vector<std::unique_ptr<net::TcpConnection>> wakeups);

  std::byte* gradients() const override { return memory_.gradients->data(); }
  std::byte* weights() const override {
    return is_async_ ? memory_.region.rank_values(rank_) : memory_.region.values();
  }
  std::byte* own_weights() const override { return is_async_ ? weights() : nullptr; }
  Status start(int bucket, const Round& round) override;
  Result<Answer> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error&) override {}  // waits ask the session
  std::uint64_t bytes_sent() const override;

 private:
  Status wait_for_bucket(int bucket, const Deadline& deadline);
  Status check_wait(int bucket, const Deadline& deadline);

  net::Session& session_;
  ControlConnections& controls_;
  const DividedModel& model_;
  const SharedMemory memory_;
  const int rank_;
  const int size_;
  const bool is_async_;
  const bool adds_up_only_;
  const bool may_spin_;
  const std::vector<std::unique_ptr<net::TcpConnection>> wakeups_;
  std::vector<Round> rounds_;  // by bucket
  int last_started_ = 0;
};

}  // namespace motley::ps
