// The channels are the connections; a waiting worker moves the bytes itself, and a helper does while it computes.
#include "motley/collective/stage_channels.h"

#include <algorithm>

namespace motley::collective {

static constexpr std::uint16_t kRowsFrame = 0x104;

Result<std::unique_ptr<StageChannels>> StageChannels::connect(net::Session& session, const std::vector<int>& peers,
                                                              const Deadline& deadline, std::uint32_t purpose) {
  std::unique_ptr<StageChannels> channels(new StageChannels(session));
  // In the order of the ranks: no two ranks wait for each other's later links.
  std::vector<int> ordered = peers;
  std::ranges::sort(ordered);
  for (const int peer : ordered) {
    auto& connection = channels->channels_[peer].connection;
    MOTLEY_ASSIGN(connection, session.connect(peer, purpose, deadline));
    channels->driver_.add(*connection);
  }
  MOTLEY_TRY(channels->driver_.begin(/*may_spin=*/false, /*with_helper=*/true));
  return channels;
}

// Whatever is queued is always worth a helper: the worker may compute for long before it looks again.
void StageChannels::queued() {
  patience_ = {};
  driver_.started(patience_);
}

const StageChannels::Channel& StageChannels::channel(int peer) const {
  const auto found = channels_.find(peer);
  MOTLEY_INVARIANT(found != channels_.end(), "there is no link to rank {}", peer);
  return found->second;
}

Status StageChannels::send(int peer, std::uint64_t tag, std::span<const std::byte> rows, std::shared_ptr<void> owner) {
  const auto lock = driver_.lock();
  MOTLEY_TRY(driver_.status());
  Channel& to = channel(peer);
  to.connection->post_send(kRowsFrame, tag, rows);
  to.sending.push_back(std::move(owner));
  queued();
  return {};
}

Result<std::uint64_t> StageChannels::receive(int peer, std::uint64_t tag, std::span<std::byte> into) {
  const auto lock = driver_.lock();
  MOTLEY_TRY(driver_.status());
  Channel& from = channel(peer);
  from.connection->post_receive(kRowsFrame, tag, into);
  queued();
  return ++from.queued;
}

Status StageChannels::wait(int peer, std::uint64_t number, const Deadline& deadline,
                           const std::function<std::string()>& operation) {
  if (has_come(peer, number)) return {};
  auto lock = driver_.lock();
  const Channel& from = channel(peer);
  return driver_.wait(lock, patience_, deadline,
                      {.done = [&] { return from.received >= number; },
                       .ranks = [&] { return std::vector{peer}; },
                       .operation = operation});
}

bool StageChannels::has_come(int peer, std::uint64_t number) const {
  return channel(peer).received.load(std::memory_order_acquire) >= number;
}

Status StageChannels::flush(const Deadline& deadline) {
  auto lock = driver_.lock();
  const auto busy = [&] {
    std::vector<int> peers;
    for (const auto& [peer, channel] : channels_) {
      if (channel.connection->pending_sends() > 0) peers.push_back(peer);
    }
    return peers;
  };
  return driver_.wait(
      lock, patience_, deadline,
      {.done = [&] { return busy().empty(); }, .ranks = busy, .operation = [] { return std::string("sending rows"); }});
}

Result<bool> StageChannels::advance() {
  bool moved = false;
  for (auto& [peer, channel] : channels_) {
    if (channel.sending.empty() && channel.connection->pending_receives() == 0) continue;
    MOTLEY_ASSIGN(const bool one, channel.connection->progress());
    channel.received.store(channel.queued - channel.connection->pending_receives(), std::memory_order_release);
    while (channel.sending.size() > channel.connection->pending_sends()) channel.sending.pop_front();
    moved = moved || one;
  }
  return moved;
}

bool StageChannels::idle() const {
  return std::ranges::all_of(channels_, [](const auto& item) {
    return item.second.sending.empty() && item.second.connection->pending_receives() == 0;
  });
}

}  // namespace motley::collective
