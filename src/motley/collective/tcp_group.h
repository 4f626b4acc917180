// A Group over TCP: rank 0 collects and hands out; a thread of rank 0 serves the shared counters.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "motley/collective/exchange.h"
#include "motley/net/connection.h"

namespace motley::collective {

class TcpGroup final : public Group {
 public:
  static Result<std::unique_ptr<TcpGroup>> create(net::Session& session, const Deadline& deadline);
  ~TcpGroup() override;

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override;
  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override;
  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override;
  Status barrier(const Deadline& deadline) override;
  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) override;
  Status store(int counter, std::int64_t value, const Deadline& deadline) override;

 private:
  enum class Operation : std::uint16_t { kAllGather = 0x110, kBroadcast, kBarrier, kFetchAdd, kStore, kReduce };
  struct Request {
    std::int64_t counter;
    std::int64_t value;
  };

  explicit TcpGroup(net::Session& session) : session_(session) {}
  std::string name(Operation operation) const;
  Status send(int peer, Operation operation, std::span<const std::byte> bytes, const Deadline& deadline);
  Status receive(int peer, Operation operation, std::span<std::byte> into, const Deadline& deadline);
  Status gather(Operation operation, std::span<const double> values, std::span<double> all, const Deadline& deadline);
  Status reduce_part(std::span<double> values, const Deadline& deadline);
  Status broadcast_part(std::span<std::byte> bytes, int root, const Deadline& deadline);
  Result<std::int64_t> ask(Operation operation, const Request& request, const Deadline& deadline);
  std::int64_t answer(Operation operation, const Request& request);
  void serve();

  net::Session& session_;
  std::vector<std::unique_ptr<net::Connection>> peers_;     // by rank; rank 0 has all, the others rank 0's only
  std::vector<std::unique_ptr<net::Connection>> counters_;  // the same, for the shared counters
  std::uint64_t sequence_ = 0;
  std::uint64_t requests_ = 0;
  std::array<std::atomic<std::int64_t>, 8> values_{};  // rank 0's
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

}  // namespace motley::collective
