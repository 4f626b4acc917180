// Rows of tensors on their way between the stages of a pipeline: sent from the memory that holds them and received into
// the memory that is to hold them, by a thread of their own while the worker computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/collective/waiting.h"
#include "motley/net/session.h"

namespace motley::collective {

// The purposes of such connections, as Session::connect tells them apart. Groups use 0x1000 and 0x1001, exchanges of
// gradients 0x1002 and 0x1100, communicators 0x1005 and 0x1006, memory 0x1007, files 0x1008.
inline constexpr std::uint32_t kRowsPurpose = 0x1003;
inline constexpr std::uint32_t kTiedPurpose = 0x1004;

// Used by one thread. After an error every call returns it, but wait() for rows that have come.
class StageChannels final : private Channels {
 public:
  // Connects this rank with each of these; each of them names this rank and the purpose, too.
  static Result<std::unique_ptr<StageChannels>> connect(net::Session& session, const std::vector<int>& peers,
                                                        const Deadline& deadline, std::uint32_t purpose = kRowsPurpose);

  // Queues rows for a peer, which expects them in the order of the calls. `owner` is let go when they are gone.
  Status send(int peer, std::uint64_t tag, std::span<const std::byte> rows, std::shared_ptr<void> owner);

  // Queues memory for the next rows that the peer sends, which must have this tag and size. It must live until they
  // have come. Returns their number, for wait().
  Result<std::uint64_t> receive(int peer, std::uint64_t tag, std::span<std::byte> into);

  // Until the rows of this number have come from the peer. `operation` ("step 12, micro-batch 3, forward") is for
  // messages, which name the peer and what it was last seen doing.
  Status wait(int peer, std::uint64_t number, const Deadline& deadline, const std::function<std::string()>& operation);

  // To all peers so far, frames' headers included.
  std::uint64_t bytes_sent() const { return driver_.bytes_sent(); }

  // Whether they have come already, so that wait() would not block. Does not wait for whoever moves other rows.
  bool has_come(int peer, std::uint64_t number) const;

  // Until all that was queued with send() is gone.
  Status flush(const Deadline& deadline);

 private:
  struct Channel {
    std::unique_ptr<net::Connection> connection;
    std::deque<std::shared_ptr<void>> sending;  // owners of rows that are not gone
    std::uint64_t queued = 0;                   // receives, ever
    std::atomic<std::uint64_t> received = 0;    // of these; read without the lock, too
  };

  explicit StageChannels(net::Session& session) : session_(session) {}
  void queued();
  const Channel& channel(int peer) const;
  Channel& channel(int peer) { return const_cast<Channel&>(std::as_const(*this).channel(peer)); }
  Result<bool> advance() override;
  bool idle() const override;

  net::Session& session_;
  std::map<int, Channel> channels_;  // by peer
  ChannelDriver::Patience patience_;
  ChannelDriver driver_{session_, *this};  // last: its helper ends first
};

}  // namespace motley::collective
