// Bytes between two processes: an authenticated, framed, ordered stream over a channel. One thread uses a Connection
// at a time.
//
// After the handshake each side knows the other's Identity. A frame carries a type, a tag (what it belongs to, such as
// step and bucket), and a payload. Large payloads are sent from and received into the caller's memory without a copy in
// Motley: post_send and post_receive only note the buffers, progress() moves bytes as far as the socket allows without
// blocking, and a deadline belongs to whoever waits. send() and receive() are the blocking forms for small messages.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/net/channel.h"

namespace motley::net {

// The header that stands before every payload, written and read by pure functions. Bytes from the network go through
// decode_frame before anything is believed: magic, version, checksum, then session and epoch.
//
// Layout, little-endian, 48 bytes (docs/reference/wire-format.md):
//   0 magic u32 | 4 version u8 | 5 flags u8 | 6 type u16 | 8 payload CRC-32C u32 | 12 header CRC-32C u32
//   16 session u64 | 24 epoch u64 | 32 tag u64 | 40 length u64
// The header's checksum is taken over its 48 bytes with the checksum's own field zero.
inline constexpr std::size_t kFrameBytes = 48;
inline constexpr std::uint32_t kFrameMagic = 0x464c544dU;  // "MTLF"
inline constexpr std::uint8_t kProtocolVersion = 6;
// What receive() allocates at most for one frame. Larger payloads need a posted buffer of exactly their size.
inline constexpr std::uint64_t kMaxReceiveBytes = 1 << 20;

struct Frame {
  bool has_payload_checksum = false;
  std::uint16_t type = 0;
  std::uint32_t payload_checksum = 0;
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t tag = 0;
  std::uint64_t length = 0;  // payload bytes

  bool operator==(const Frame&) const = default;
};

using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode_frame(const Frame& frame);
// kCorrupt for bytes that are no frame, kRefused for another version of the protocol.
Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes);
// kRefused, with both values, for a frame of another session or of another epoch.
Status check_frame(const Frame& frame, std::uint64_t session, std::uint64_t epoch);

// Who a peer says it is; proved by the job's secret in the handshake.
struct Identity {
  std::string job;     // at most 255 bytes
  std::string tenant;  // at most 255 bytes
  int rank = 0;        // -1 of a service, which has none
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  // Which of several connections between two ranks this is (control, ring channel 0, 1, ...).
  std::uint32_t purpose = 0;
};

struct Message {
  struct Header {
    std::uint16_t type = 0;
    std::uint64_t tag = 0;
    std::uint64_t length = 0;  // payload bytes
  };
  Header header;
  std::vector<std::byte> payload;
};

class Connection {
 public:
  // Takes over a channel whose handshake is done. Frames carry and must carry peer.session and peer.epoch.
  // `payload_checksum`: adds a CRC-32C to payloads that this side sends in the clear; what arrives is checked where it
  // has one.
  Connection(Channel channel, Identity peer, bool payload_checksum);

  const Identity& peer() const { return peer_; }
  // "rank 2 at 10.0.0.5:4711" or "the service at 10.0.0.5:4711", for messages.
  const std::string& peer_name() const { return name_; }

  // Sends one small frame, or receives the next one, waiting at most until the deadline. `what` says in a timeout's
  // message what was waited for ("the shares of step 12"). May not be mixed with posted operations still under way.
  // `cancelled` is asked every 20 ms while the socket is full; kPeerLost where it was so.
  Status send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload, const Deadline& deadline,
              const std::string& what, const std::function<bool()>& cancelled = {});
  Result<Message> receive(const Deadline& deadline, const std::string& what);
  // The next small frame, if all of it is here. Never blocks; no receive may be posted.
  Result<std::optional<Message>> try_receive();

  // Queues a frame; `payload` must live until pending_sends() has dropped below the count at posting. Never blocks.
  void post_send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload);
  // Likewise, and keeps the payload until it is sent.
  void post_owned(std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload);
  // Queues a buffer for the next frame not yet spoken for; frames fill buffers in order. The frame's tag and length
  // must equal `tag` and into.size(), else progress() fails with both sides' values.
  void post_receive(std::uint16_t type, std::uint64_t tag, std::span<std::byte> into);

  // Moves bytes without blocking. True if any byte moved or any operation ended. An error is final: close and rebuild.
  Result<bool> progress();
  // Sends what was posted, waiting at most until the deadline, after which the connection is of no more use, nor is it
  // where the wait was cancelled.
  Status flush(const Deadline& deadline, const std::string& what, const std::function<bool()>& cancelled = {});
  std::size_t pending_sends() const { return sends_.size(); }
  std::size_t pending_receives() const { return receives_.size(); }

  // So far, frames' headers included. May be asked by any thread.
  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  const Descriptor& socket() const { return channel_.socket(); }
  int descriptor() const { return socket().get(); }  // for poll/epoll
  bool is_encrypted() const { return channel_.is_encrypted(); }
  // Unsent bytes are waiting for the socket.
  bool wants_to_write() const { return !sends_.empty() || channel_.unsent() > 0; }
  // Bytes have come that are no longer in the socket, so that a poll would not wake for them.
  bool has_input() const { return channel_.has_input(); }
  // Lets at most about so many bytes stand in the socket that have not been sent yet, instead of megabytes.
  void keep_unsent_below(std::size_t bytes);
  // To be called now and then: ends the connection, so that every later call is kPeerLost, where it is unanswered
  // (is_unanswered of socket.h).
  void end_if_unanswered();
  // Says that nothing more will be sent; the peer sees end of stream after all that was sent.
  void finish_sending();
  void close() { channel_.close(); }  // idempotent; the peer sees end of stream
  // Holds on to this until the connection goes: what it counts as, where connections are counted.
  void keep(std::shared_ptr<void> place) { place_ = std::move(place); }

 private:
  struct Outgoing {
    FrameBytes header;
    bool sealed = false;  // the header is written, with the payload's checksum
    std::uint16_t type;
    std::uint64_t tag;
    std::span<const std::byte> payload;
    std::vector<std::byte> owned;
  };
  struct Posted {
    std::uint16_t type;
    std::uint64_t tag;
    std::span<std::byte> into;
  };

  tl::unexpected<Error> broken(ErrorCode code, const std::string& why);
  void seal(Outgoing& frame) const;
  Result<bool> write_some();
  Result<bool> read_posted();
  // Reads into the rest of the header and, if the payload's place is known, into it. Bytes read; 0: none are here.
  Result<std::size_t> read_into(std::span<std::byte> payload);
  Status check_header();
  Status finish_frame();

  std::shared_ptr<void> place_;
  Channel channel_;
  Identity peer_;
  std::string name_;
  bool payload_checksum_;
  std::optional<Error> failure_;

  std::deque<Outgoing> sends_;
  std::size_t sent_ = 0;  // bytes of the front frame, header and payload together
  std::atomic<std::uint64_t> bytes_sent_ = 0;

  std::deque<Posted> receives_;
  FrameBytes header_;
  std::size_t header_filled_ = 0;
  Frame frame_;             // valid once header_filled_ is kFrameBytes
  std::size_t landed_ = 0;  // bytes of the payload
  std::uint32_t checksum_ = 0;
  std::vector<std::byte> inbox_;  // the payload of a frame for try_receive()
};

}  // namespace motley::net
