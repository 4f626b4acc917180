// Two ends of a TLS handshake in memory, for tests.
#pragma once

#include <functional>
#include <vector>

#include "motley/net/channel_handshake.h"

namespace motley::net {

// Takes whoever knows the secret.
inline Status anybody(const Claim&) {
  return {};
}

// Feeds what one side says to the other one, as many bytes at a time as are wanted.
inline Status feed_all(ChannelHandshake& handshake, const std::vector<std::byte>& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    if (handshake.done()) return fail(ErrorCode::kCorrupt, "bytes after the end of a handshake");
    const std::size_t size = handshake.wanted();
    if (size > bytes.size() - at) return fail(ErrorCode::kCorrupt, "short");
    MOTLEY_TRY(handshake.feed(std::span(bytes).subspan(at, size)));
    at += size;
  }
  return {};
}

struct BothSides {
  Status connector;
  Status acceptor;
};
// Until both are done, or one has failed and the other has heard of it. `between` may see and change what goes by.
using Between = std::function<void(bool from_connector, std::vector<std::byte>& bytes)>;
inline BothSides run(ChannelHandshake& connector, ChannelHandshake& acceptor, const Between& between = {}) {
  BothSides both;
  for (bool moved = true; moved;) {
    moved = false;
    for (const bool from_connector : {true, false}) {
      ChannelHandshake& from = from_connector ? connector : acceptor;
      ChannelHandshake& to = from_connector ? acceptor : connector;
      Status& heard = from_connector ? both.acceptor : both.connector;
      auto bytes = from.take_output();
      if (bytes.empty()) continue;
      if (between) between(from_connector, bytes);
      if (heard) heard = feed_all(to, bytes);
      moved = true;
    }
  }
  return both;
}

}  // namespace motley::net
