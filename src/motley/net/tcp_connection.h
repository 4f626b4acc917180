// A Connection over one TCP socket.
#pragma once

#include <atomic>
#include <deque>
#include <optional>

#include "motley/base/os/descriptor.h"
#include "motley/net/connection.h"
#include "motley/net/frame.h"

namespace motley::net {

class TcpConnection final : public Connection {
 public:
  // Takes over a socket whose handshake is done. Frames carry and must carry peer.session and peer.epoch.
  // `payload_checksum`: adds a CRC-32C to payloads that this side sends; what arrives is checked where it has one.
  TcpConnection(Descriptor socket, Identity peer, bool payload_checksum);

  const Identity& peer() const override { return peer_; }
  std::string peer_name() const override { return name_; }
  Status send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload, const Deadline& deadline,
              const std::string& what) override;
  Result<Message> receive(const Deadline& deadline, const std::string& what) override;
  void post_send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload) override;
  void post_receive(std::uint16_t type, std::uint64_t tag, std::span<std::byte> into) override;
  Result<bool> progress() override;
  std::size_t pending_sends() const override { return sends_.size(); }
  std::size_t pending_receives() const override { return receives_.size(); }
  std::size_t front_receive_landed() const override { return receives_.empty() ? 0 : landed_; }
  std::uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  int descriptor() const override { return socket_.get(); }
  bool wants_to_write() const override { return !sends_.empty(); }
  void close() override { socket_.close(); }

  const Descriptor& socket() const { return socket_; }
  // Like post_send, and keeps the payload until it is sent.
  void post_owned(std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload);
  // The next small frame, if all of it is here. Never blocks; no receive may be posted.
  Result<std::optional<Message>> try_receive();
  // Says that nothing more will be sent; the peer sees end of stream after all that was sent.
  void finish_sending();
  // Lets at most about so many bytes stand in the socket that have not been sent yet, instead of megabytes.
  void keep_unsent_below(std::size_t bytes);

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

  Descriptor socket_;
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
