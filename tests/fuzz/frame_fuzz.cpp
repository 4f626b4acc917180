// Everything that an unauthenticated peer or a damaged peer may send, through the parsers: frame headers, handshake
// messages, control messages, and the state machines of the handshake and of TLS around it. The first byte chooses
// which.
#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/net/channel_handshake.h"
#include "motley/net/connection.h"
#include "motley/net/messages.h"

namespace {

using namespace motley;
using namespace motley::net;

// Feeds the bytes as a socket would: as many as are wanted at a time, until they end or are refused.
void drive(Handshake::Role role, const ChannelHandshake::Terms& terms, std::span<const std::byte> bytes) {
  static const Secret secret = Secret::generate();
  const Claim own{{.job = "job", .tenant = "local", .rank = 1, .session = 7, .epoch = 1, .purpose = 0}, "f00d"};
  ChannelHandshake handshake(
      role, [](const Claim&) { return secret; }, own, [&own](const Claim& peer) { return check_same_job(own, peer); },
      terms);
  while (!handshake.done() && handshake.wanted() <= bytes.size()) {
    const std::size_t wanted = handshake.wanted();
    if (!handshake.feed(bytes.first(wanted))) {
      break;
    }
    bytes = bytes.subspan(wanted);
  }
  MOTLEY_INVARIANT(!handshake.proved(), "bytes without the secret were taken for a proof");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.empty()) {
    return 0;
  }
  const auto rest = bytes.subspan(1);
  switch (data[0] % 13) {
    case 0:
      if (rest.size() >= kFrameBytes) {
        if (const auto frame = decode_frame(rest.first<kFrameBytes>())) {
          const FrameBytes again = encode_frame(*frame);
          MOTLEY_INVARIANT(*decode_frame(again) == *frame, "a frame changed on its way");
          (void)check_frame(*frame, 1, 1);
        }
      }
      break;
    case 1:
      if (rest.size() >= kHandshakeHeaderBytes) {
        (void)decode_handshake_header(rest.first<kHandshakeHeaderBytes>());
      }
      break;
    case 2:
      (void)decode_greeting(rest);
      break;
    case 3:
      (void)decode_verdict(rest);
      break;
    case 4:
      drive(Handshake::Role::kAcceptor, {Encryption::kAuto, true}, rest);
      break;
    case 5:
      drive(Handshake::Role::kConnector, {Encryption::kAuto, true}, rest);
      break;
    case 6:
      (void)decode_message<JoinMessage>(rest, "join");
      break;
    case 7:
      (void)decode_message<std::vector<int>>(rest, "waiting", kRank);
      break;
    case 8:
      (void)decode_membership(rest);
      break;
    case 9:
      (void)decode_message<std::vector<Heartbeat>>(rest, "heartbeat");
      break;
    case 11:
      drive(Handshake::Role::kAcceptor, {Encryption::kAuto, false}, rest);
      break;
    case 12:
      drive(Handshake::Role::kConnector, {Encryption::kAuto, false}, rest);
      break;
    default:
      (void)decode_message<AbortMessage>(rest, "abort");
  }
  return 0;
}
