// The bytes of a connection on its socket, without blocking: as they are, or within TLS.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"

namespace motley::net {

class Tls;

class Channel {
 public:
  Channel(Descriptor socket);  // NOLINT: a socket is a channel in the clear
  Channel(Descriptor socket, std::unique_ptr<Tls> tls);
  ~Channel();
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) = delete;

  const Descriptor& socket() const { return socket_; }
  bool is_encrypted() const { return tls_ != nullptr; }
  const Tls* tls() const { return tls_.get(); }  // null: in the clear

  // How many bytes of the parts were taken; fewer than all where the socket has no more room. Without parts, what was
  // taken before is sent as far as that goes.
  Result<std::size_t> write(std::span<const iovec> parts);
  // Taken, and not yet in the socket.
  std::size_t unsent() const;
  // How many bytes have come into the parts; 0: none are here. The end of the stream is kPeerLost.
  Result<std::size_t> read(std::span<const iovec> parts);
  // Can read() return something that the socket does not have any more, so that a poll would not wake for it?
  bool has_input() const;
  // Nothing more will be written; the peer sees the end of the stream after all that was.
  void finish_sending();
  void close();  // idempotent

 private:
  Result<std::size_t> write_encrypted(std::span<const iovec> parts);
  Result<std::size_t> read_encrypted(std::span<const iovec> parts);
  Status send_output();

  Descriptor socket_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace motley::net
