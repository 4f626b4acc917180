// A Group over TCP: rank 0 collects and hands out; a thread of rank 0 serves the shared counters.
//
// A star around rank 0, for values too small to be worth more.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/collective/methods.h"
#include "motley/collective/purposes.h"
#include "motley/collective/waiting.h"
#include "motley/net/connection.h"

namespace motley::collective {
namespace {

constexpr std::size_t kPartBytes = 512 << 10;  // of one frame; transport takes up to 1 MiB
constexpr double kHealthSeconds = 0.02;        // between two looks at the session while waiting
constexpr double kServeSeconds = 5;            // for a counter's request to arrive whole, and its answer to leave

class TcpGroup final : public Group {
 public:
  static Result<std::unique_ptr<TcpGroup>> create(net::Session& session, const Deadline& deadline) {
    std::unique_ptr<TcpGroup> group(new TcpGroup(session));
    const int rank = session.membership().rank;
    const int size = session.membership().size();
    group->peers_.resize(static_cast<std::size_t>(size));
    group->counters_.resize(static_cast<std::size_t>(size));
    for (int peer = rank == 0 ? 1 : 0; peer < (rank == 0 ? size : 1); ++peer) {
      MOTLEY_ASSIGN(group->peers_[peer], session.connect(peer, kGroupPurpose, deadline));
      MOTLEY_ASSIGN(group->counters_[peer], session.connect(peer, kCounterPurpose, deadline));
    }
    if (rank == 0) group->server_ = std::thread([raw = group.get()] { raw->serve(); });
    return group;
  }

  ~TcpGroup() override {
    stop_ = true;
    if (server_.joinable()) server_.join();
  }

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override {
    const std::size_t size = peers_.size();
    const std::size_t most = std::max<std::size_t>(1, kPartBytes / sizeof(double) / size);
    std::vector<double> all(values.size() * size);
    std::size_t begin = 0;
    do {
      const auto part = values.subspan(begin, std::min(most, values.size() - begin));
      std::vector<double> parts(part.size() * size);
      MOTLEY_TRY(gather(Operation::kAllGather, part, parts, deadline));
      for (std::size_t rank = 0; rank < size; ++rank) {
        std::copy_n(parts.begin() + static_cast<std::ptrdiff_t>(rank * part.size()), part.size(),
                    all.begin() + static_cast<std::ptrdiff_t>(rank * values.size() + begin));
      }
      begin += part.size();
    } while (begin < values.size());
    return all;
  }

  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override {
    constexpr std::size_t kMost = kPartBytes / sizeof(double);
    for (std::size_t begin = 0; begin < values.size(); begin += kMost) {
      MOTLEY_TRY(reduce_part(values.subspan(begin, std::min(kMost, values.size() - begin)), deadline));
    }
    return {};
  }

  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override {
    std::size_t begin = 0;
    do {
      const auto part = bytes.subspan(begin, std::min(kPartBytes, bytes.size() - begin));
      MOTLEY_TRY(broadcast_part(part, root, deadline));
      begin += part.size();
    } while (begin < bytes.size());
    return {};
  }

  Status barrier(const Deadline& deadline) override { return gather(Operation::kBarrier, {}, {}, deadline); }

  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) override {
    return ask(Operation::kFetchAdd, {counter, amount}, deadline);
  }

  Status store(int counter, std::int64_t value, const Deadline& deadline) override {
    MOTLEY_TRY(ask(Operation::kStore, {counter, value}, deadline));
    return {};
  }

 private:
  enum class Operation : std::uint16_t { kAllGather = 0x110, kBroadcast, kBarrier, kFetchAdd, kStore, kReduce };
  struct Request {
    std::int64_t counter;
    std::int64_t value;
  };

  explicit TcpGroup(net::Session& session) : session_(session) {}

  std::string name(Operation operation) const {
    const char* const names[] = {"all_gather", "broadcast", "barrier", "fetch_add", "store", "all_reduce"};
    const char* const word = names[static_cast<int>(operation) - static_cast<int>(Operation::kAllGather)];
    return fmt::format("{}, operation {} of the group", word, sequence_);
  }

  Status send(int peer, Operation operation, std::span<const std::byte> bytes, const Deadline& deadline) {
    const std::string what = name(operation);
    const Status sent = peers_[peer]->send(static_cast<std::uint16_t>(operation), sequence_, bytes, deadline, what);
    return sent ? sent : fail(find_cause(session_, sent.error()).within(what));
  }

  // The next message of a rank's connection.
  Result<net::Message> next_message(net::Connection& from, int peer, const std::string& what,
                                    const Deadline& deadline) const {
    for (;;) {
      auto message = from.receive(Deadline::after(std::min(kHealthSeconds, deadline.remaining())), what);
      if (message) return message;
      if (message.error().code != ErrorCode::kTimeout) return fail(find_cause(session_, message.error()).within(what));
      MOTLEY_TRY(check_wait(session_, deadline, what, [peer] { return std::vector<int>{peer}; }));
    }
  }

  Status receive(int peer, Operation operation, std::span<std::byte> into, const Deadline& deadline) {
    const std::string what = name(operation);
    MOTLEY_ASSIGN(const net::Message message, next_message(*peers_[peer], peer, what, deadline));
    const net::Message::Header& header = message.header;
    if (header.type != static_cast<std::uint16_t>(operation) || header.tag != sequence_ ||
        message.payload.size() != into.size()) {
      return fail(Error{ErrorCode::kInvalidInput,
                        fmt::format("{} with {} bytes: rank {} came with operation type {}, number {} and {} bytes",
                                    what, into.size(), peer, header.type, header.tag, message.payload.size()),
                        peer});
    }
    std::ranges::copy(message.payload, into.begin());
    return {};
  }

  Status gather(Operation operation, std::span<const double> values, std::span<double> all, const Deadline& deadline) {
    ++sequence_;
    const auto bytes = std::as_writable_bytes(all);
    if (session_.membership().rank != 0) {
      MOTLEY_TRY(send(0, operation, std::as_bytes(values), deadline));
      return receive(0, operation, bytes, deadline);
    }
    std::ranges::copy(values, all.begin());
    for (std::size_t peer = 1; peer < peers_.size(); ++peer) {
      const auto place = bytes.subspan(peer * values.size_bytes(), values.size_bytes());
      MOTLEY_TRY(receive(static_cast<int>(peer), operation, place, deadline));
    }
    for (std::size_t peer = 1; peer < peers_.size(); ++peer) {
      MOTLEY_TRY(send(static_cast<int>(peer), operation, bytes, deadline));
    }
    return {};
  }

  // Rank 0 adds, in the order of the ranks, so that the sum is bitwise the same from run to run.
  Status reduce_part(std::span<double> values, const Deadline& deadline) {
    ++sequence_;
    const auto bytes = std::as_writable_bytes(values);
    if (session_.membership().rank != 0) {
      MOTLEY_TRY(send(0, Operation::kReduce, bytes, deadline));
      return receive(0, Operation::kReduce, bytes, deadline);
    }
    std::vector<double> part(values.size());
    for (std::size_t peer = 1; peer < peers_.size(); ++peer) {
      MOTLEY_TRY(
          receive(static_cast<int>(peer), Operation::kReduce, std::as_writable_bytes(std::span(part)), deadline));
      std::ranges::transform(values, part, values.begin(), std::plus<>());
    }
    for (std::size_t peer = 1; peer < peers_.size(); ++peer) {
      MOTLEY_TRY(send(static_cast<int>(peer), Operation::kReduce, bytes, deadline));
    }
    return {};
  }

  Status broadcast_part(std::span<std::byte> bytes, int root, const Deadline& deadline) {
    ++sequence_;
    const int rank = session_.membership().rank;
    if (rank == root && root != 0) return send(0, Operation::kBroadcast, bytes, deadline);
    if (rank != root) MOTLEY_TRY(receive(rank == 0 ? root : 0, Operation::kBroadcast, bytes, deadline));
    for (int peer = 1; rank == 0 && peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer != root) MOTLEY_TRY(send(peer, Operation::kBroadcast, bytes, deadline));
    }
    return {};
  }

  Result<std::int64_t> ask(Operation operation, const Request& request, const Deadline& deadline) {
    MOTLEY_INVARIANT(request.counter >= 0 && request.counter < std::ssize(values_), "there is no shared counter {}",
                     request.counter);
    if (session_.membership().rank == 0) return answer(operation, request);
    ++requests_;
    const std::string what =
        fmt::format("{} on counter {}, request {}", operation == Operation::kStore ? "store" : "fetch_add",
                    request.counter, requests_);
    MOTLEY_TRY(counters_[0]->send(static_cast<std::uint16_t>(operation), requests_,
                                  std::as_bytes(std::span(&request, 1)), deadline, what));
    MOTLEY_ASSIGN(const net::Message message, next_message(*counters_[0], 0, what, deadline));
    std::int64_t value = 0;
    if (message.payload.size() != sizeof(value)) {
      return fail(
          Error{ErrorCode::kCorrupt, fmt::format("{}: the answer has {} bytes", what, message.payload.size()), 0});
    }
    std::memcpy(&value, message.payload.data(), sizeof(value));
    return value;
  }

  std::int64_t answer(Operation operation, const Request& request) {
    auto& value = values_[static_cast<std::size_t>(request.counter)];
    return operation == Operation::kStore ? value.exchange(request.value) : value.fetch_add(request.value);
  }

  // Answers requests until the group ends. A peer that leaves, or says something that is no request, is served no more;
  // it notices by its closed connection.
  void serve() {
    while (!stop_) {
      std::vector<pollfd> descriptors;
      for (const auto& peer : counters_) descriptors.push_back({peer ? peer->descriptor() : -1, POLLIN, 0});
      ::poll(descriptors.data(), descriptors.size(), static_cast<int>(kHealthSeconds * 1000));
      for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
        if (descriptors[rank].revents == 0) continue;
        const auto message = counters_[rank]->receive(Deadline::after(kServeSeconds), "a request");
        Request request{-1, 0};
        if (message && message->payload.size() == sizeof(request)) {
          std::memcpy(&request, message->payload.data(), sizeof(request));
        }
        bool served = request.counter >= 0 && request.counter < std::ssize(values_);
        if (served) {
          const std::int64_t value = answer(static_cast<Operation>(message->header.type), request);
          served = counters_[rank]
                       ->send(message->header.type, message->header.tag, std::as_bytes(std::span(&value, 1)),
                              Deadline::after(kServeSeconds), "an answer")
                       .has_value();
        }
        if (!served) counters_[rank].reset();
      }
    }
  }

  net::Session& session_;
  std::vector<std::unique_ptr<net::Connection>> peers_;     // by rank; rank 0 has all, the others rank 0's only
  std::vector<std::unique_ptr<net::Connection>> counters_;  // the same, for the shared counters
  std::uint64_t sequence_ = 0;
  std::uint64_t requests_ = 0;
  std::array<std::atomic<std::int64_t>, 8> values_{};  // rank 0's
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_tcp_group(net::Session& session, const Deadline& deadline) {
  return TcpGroup::create(session, deadline);
}

}  // namespace motley::collective
