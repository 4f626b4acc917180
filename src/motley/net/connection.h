// Bytes between two processes: an authenticated, framed, ordered stream. One thread uses a Connection at a time.
//
// After the handshake each side knows the other's Identity. A frame carries a type, a tag (what it belongs to, such as
// step and bucket), and a payload. Large payloads are sent from and received into the caller's memory without a copy in
// Motley: post_send and post_receive only note the buffers, progress() moves bytes as far as the socket allows without
// blocking, and a deadline belongs to whoever waits. send() and receive() are the blocking forms for small messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"

namespace motley::net {

// Who a peer says it is; proved by the job's secret in the handshake.
struct Identity {
  std::string job;     // at most 255 bytes
  std::string tenant;  // at most 255 bytes
  int rank = 0;
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  std::uint32_t purpose = 0;  // which of several connections between two ranks this is (control, ring lane 0, 1, ...)
};

struct FrameHeader {
  std::uint16_t type = 0;
  std::uint64_t tag = 0;
  std::uint64_t length = 0;  // payload bytes
};

struct Message {
  FrameHeader header;
  std::vector<std::byte> payload;
};

class Connection {
 public:
  virtual ~Connection() = default;

  virtual const Identity& peer() const = 0;
  // "rank 2 at 10.0.0.5:4711", for messages.
  virtual std::string peer_name() const = 0;

  // Sends one small frame, or receives the next one, waiting at most until the deadline. `what` says in a timeout's
  // message what was waited for ("the shares of step 12"). May not be mixed with posted operations still under way.
  virtual Status send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload,
                      const Deadline& deadline, const std::string& what) = 0;
  virtual Result<Message> receive(const Deadline& deadline, const std::string& what) = 0;

  // Queues a frame; `payload` must live until pending_sends() has dropped below the count at posting. Never blocks.
  virtual void post_send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload) = 0;
  // Queues a buffer for the next frame not yet spoken for; frames fill buffers in order. The frame's tag and length
  // must equal `tag` and into.size(), else progress() fails with both sides' values.
  virtual void post_receive(std::uint16_t type, std::uint64_t tag, std::span<std::byte> into) = 0;

  // Moves bytes without blocking. True if any byte moved or any operation ended. An error is final: close and rebuild.
  virtual Result<bool> progress() = 0;
  virtual std::size_t pending_sends() const = 0;
  virtual std::size_t pending_receives() const = 0;
  // Bytes of the front posted receive's payload that have landed, to work on a large frame while it arrives.
  virtual std::size_t front_receive_landed() const = 0;

  // So far, frames' headers included. May be asked by any thread.
  virtual std::uint64_t bytes_sent() const = 0;

  virtual int descriptor() const = 0;       // for poll/epoll
  virtual bool wants_to_write() const = 0;  // unsent bytes are waiting for the socket
  virtual void close() = 0;                 // idempotent; the peer sees end of stream
};

}  // namespace motley::net
