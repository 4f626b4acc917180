#include "motley/net/link_speed.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "motley/base/statistics.h"
#include "motley/net/connection.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr int kRoundTrips = 400;
constexpr int kStreams = 9;
constexpr std::size_t kStreamBytes = 32 << 20;  // more than caches hold, as gradients are
constexpr std::size_t kFrameBytesAtATime = 1 << 20;
constexpr double kSeconds = 30;

// Sends all of `out` while receiving as much.
Status exchange(Connection& connection, std::span<const std::byte> out, std::span<std::byte> in,
                const Deadline& deadline) {
  for (std::size_t at = 0; at < out.size(); at += kFrameBytesAtATime) {
    connection.post_send(1, at, out.subspan(at, kFrameBytesAtATime));
    connection.post_receive(1, at, in.subspan(at, kFrameBytesAtATime));
  }
  while (connection.pending_sends() > 0 || connection.pending_receives() > 0) {
    MOTLEY_ASSIGN(const bool moved, connection.progress());
    if (moved) continue;
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "measuring the loopback link took longer than {} s", kSeconds);
    }
    wait_for(connection.descriptor(), static_cast<short>(POLLIN | (connection.wants_to_write() ? POLLOUT : 0)), 100);
  }
  return {};
}

// One side: the first to speak measures.
Result<LinkSpeed> talk(Descriptor socket, bool first, const Deadline& deadline) {
  Identity peer;
  peer.rank = first ? 1 : 0;
  Connection connection(std::move(socket), peer, /*payload_checksum=*/false);
  const std::array<std::byte, 8> word{};
  const auto round_trip = [&]() -> Status {
    if (first) MOTLEY_TRY(connection.send(1, 0, word, deadline, "a word"));
    MOTLEY_TRY(connection.receive(deadline, "a word"));
    if (!first) MOTLEY_TRY(connection.send(1, 0, word, deadline, "a word"));
    return {};
  };
  std::vector<double> words;
  for (int i = 0; i < kRoundTrips; ++i) {
    const double begin = monotonic_seconds();
    MOTLEY_TRY(round_trip());
    words.push_back((monotonic_seconds() - begin) / 2);
  }
  std::vector<std::byte> out(kStreamBytes);
  std::vector<std::byte> in(kStreamBytes);
  std::vector<double> streams;
  for (int i = 0; i < kStreams; ++i) {
    MOTLEY_TRY(round_trip());
    const double begin = monotonic_seconds();
    MOTLEY_TRY(exchange(connection, out, in, deadline));
    streams.push_back(monotonic_seconds() - begin);
  }
  return LinkSpeed{static_cast<double>(kStreamBytes) / median(std::move(streams)), median(std::move(words))};
}

}  // namespace

Result<LinkSpeed> measure_loopback() {
  const Deadline deadline = Deadline::after(kSeconds);
  MOTLEY_ASSIGN(const Descriptor listener, listen_at({"127.0.0.1", 0}));
  MOTLEY_ASSIGN(Descriptor near, connect_to(local_endpoint(listener), deadline));
  wait_for(listener.get(), POLLIN, deadline.remaining_milliseconds());
  Descriptor far = accept_from(listener);
  Result<LinkSpeed> answer;
  std::thread other([&] { answer = talk(std::move(far), false, deadline); });
  const Result<LinkSpeed> measured = talk(std::move(near), true, deadline);
  other.join();
  return measured;
}

}  // namespace motley::net
