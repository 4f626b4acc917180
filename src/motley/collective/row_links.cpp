// The lanes are the connections; a waiting worker moves the bytes itself, and a helper does while it computes.
#include "motley/collective/row_links.h"

#include <algorithm>

namespace motley::collective {
namespace {

constexpr std::uint16_t kRowsFrame = 0x104;

}  // namespace

Result<std::unique_ptr<RowLinks>> RowLinks::connect(net::Session& session, const std::vector<int>& peers,
                                                    const Deadline& deadline, std::uint32_t purpose) {
  std::unique_ptr<RowLinks> links(new RowLinks(session));
  // In the order of the ranks: no two ranks wait for each other's later links.
  std::vector<int> ordered = peers;
  std::ranges::sort(ordered);
  for (const int peer : ordered) {
    MOTLEY_ASSIGN(links->links_[peer].connection, session.connect(peer, purpose, deadline));
  }
  MOTLEY_TRY(links->driver_.begin(/*may_spin=*/false, /*with_helper=*/true));
  return links;
}

// Whatever is queued is always worth a helper: the worker may compute for long before it looks again.
void RowLinks::queued() {
  patience_ = {};
  driver_.started(patience_);
}

RowLinks::Link& RowLinks::link(int peer) {
  const auto found = links_.find(peer);
  MOTLEY_INVARIANT(found != links_.end(), "there is no link to rank {}", peer);
  return found->second;
}

Status RowLinks::send(int peer, std::uint64_t tag, std::span<const std::byte> rows, std::shared_ptr<void> owner) {
  const auto lock = driver_.lock();
  MOTLEY_TRY(driver_.status());
  Link& to = link(peer);
  to.connection->post_send(kRowsFrame, tag, rows);
  to.sending.push_back(std::move(owner));
  queued();
  return {};
}

Result<std::uint64_t> RowLinks::receive(int peer, std::uint64_t tag, std::span<std::byte> into) {
  const auto lock = driver_.lock();
  MOTLEY_TRY(driver_.status());
  Link& from = link(peer);
  from.connection->post_receive(kRowsFrame, tag, into);
  queued();
  return ++from.queued;
}

std::uint64_t RowLinks::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const auto& [peer, link] : links_) bytes += link.connection->bytes_sent();
  return bytes;
}

Status RowLinks::wait(int peer, std::uint64_t number, const Deadline& deadline,
                      const std::function<std::string()>& operation) {
  auto lock = driver_.lock();
  const Link& from = link(peer);
  return driver_.wait(lock, patience_, deadline,
                      {.done = [&] { return from.received() >= number; },
                       .ranks = [&] { return std::vector{peer}; },
                       .operation = operation});
}

bool RowLinks::has_come(int peer, std::uint64_t number) {
  const auto lock = driver_.lock();
  return link(peer).received() >= number;
}

Status RowLinks::flush(const Deadline& deadline) {
  auto lock = driver_.lock();
  const auto busy = [&](const auto& item) { return item.second.connection->pending_sends() > 0; };
  return driver_.wait(lock, patience_, deadline,
                      {.done = [&] { return std::ranges::none_of(links_, busy); },
                       .ranks =
                           [&] {
                             std::vector<int> peers;
                             for (const auto& item : links_) {
                               if (busy(item)) peers.push_back(item.first);
                             }
                             return peers;
                           },
                       .operation = [] { return std::string("sending rows"); }});
}

Result<bool> RowLinks::advance() {
  bool moved = false;
  for (auto& [peer, link] : links_) {
    if (link.sending.empty() && link.connection->pending_receives() == 0) continue;
    MOTLEY_ASSIGN(const bool one, link.connection->progress());
    while (link.sending.size() > link.connection->pending_sends()) link.sending.pop_front();
    moved = moved || one;
  }
  return moved;
}

bool RowLinks::idle() const {
  return std::ranges::all_of(links_, [](const auto& item) {
    return item.second.sending.empty() && item.second.connection->pending_receives() == 0;
  });
}

void RowLinks::list_descriptors(std::vector<pollfd>& descriptors) const {
  for (const auto& [peer, link] : links_) {
    const short reads = link.connection->pending_receives() > 0 ? POLLIN : 0;
    const short writes = link.connection->wants_to_write() ? POLLOUT : 0;
    if (reads != 0 || writes != 0) {
      descriptors.push_back({link.connection->descriptor(), static_cast<short>(reads | writes), 0});
    }
  }
}

}  // namespace motley::collective
