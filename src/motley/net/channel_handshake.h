// How a channel begins: TLS where it is wanted, and within it the handshake. A state machine without sockets: bytes in,
// bytes out.
//
// With certificates each side's must speak for the tenant of the connector, besides the proof of that tenant's secret.
//
// What a connector speaks is its own choice, by the setting and by whether the connection is over loopback. The
// acceptor sees it from the first byte and takes it or refuses it; neither falls back to the other, so that nobody
// between them can take the encryption away.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "motley/net/handshake.h"
#include "motley/net/tls.h"

namespace motley::net {

class ChannelHandshake {
 public:
  using Role = Handshake::Role;
  struct Terms {
    Encryption encryption;
    bool over_loopback = false;
  };

  ChannelHandshake(Role role, Handshake::FindSecret find_secret, Claim own, Handshake::Check check, Terms terms);

  // As of Handshake.
  std::size_t wanted() const;
  Status feed(std::span<const std::byte> bytes);
  std::vector<std::byte> take_output();
  bool done() const { return inner_ && inner_->done(); }
  bool proved() const { return inner_ && inner_->proved(); }
  Claim peer() const { return inner_ ? inner_->peer() : Claim{}; }
  // Once done: null for a channel in the clear.
  std::unique_ptr<Tls> take_tls() { return std::move(tls_); }

 private:
  Status begin(std::span<const std::byte> first);
  Status refuse_plain(std::span<const std::byte> first);
  Status feed_tls(std::span<const std::byte> bytes);
  Status talk_within_tls();
  void start_inner(std::span<const std::byte> binding);

  const Role role_;
  Handshake::FindSecret find_secret_;
  Claim own_;
  Handshake::Check check_;
  const Terms terms_;
  bool begun_ = false;           // what the connector speaks is known
  std::vector<std::byte> held_;  // of the message or record that is coming
  std::unique_ptr<Tls> tls_;
  std::size_t record_left_ = 0;  // of a TLS record whose header has come
  std::size_t received_ = 0;
  std::vector<std::byte> said_;  // within TLS, of the message that is coming
  std::optional<Handshake> inner_;
  std::vector<std::byte> output_;
};

}  // namespace motley::net
