// How two processes prove to each other that they hold the job's secret, before any frame is read. A state machine
// without sockets: bytes in, bytes out, so that it can be tested and fuzzed as a function.
//
//   connector                                   acceptor
//     hello     nonce, who I am           ->
//                                         <-    challenge  nonce, who I am
//     proof     HMAC(secret, "connector",
//               hello, challenge, TLS)    ->
//                                         <-    verdict    accepted or the reason, and
//                                               HMAC(secret, "acceptor", hello, challenge, TLS, proof, verdict)
//
// Within TLS (tls.h) a value that only its two ends know stands in both proofs too, so that nobody between them can
// pass proofs on. Both messages with nonces stand in both proofs, so that neither can be replayed; the role is part of
// what is proved, so that neither can be reflected. Everything claimed (job, tenant, rank, session, epoch, purpose,
// fingerprint, protocol version) is covered. What a peer claims is looked at only after its proof was good; a verdict
// that refuses the secret itself cannot be proved and only tells the other side what to say to its user.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/connection.h"
#include "motley/net/secret.h"

namespace motley::net {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMaxNameBytes = 255;
inline constexpr std::size_t kMaxFingerprintBytes = 1024;
inline constexpr std::size_t kHandshakeHeaderBytes = 12;
inline constexpr std::size_t kMaxHandshakeBytes = 2048;  // of a message's body; longer ones are refused unread

struct Claim {
  Identity identity;
  std::string fingerprint;  // of the effective job, such as "seed=7; optimizer.name=adam"; at most 1024 bytes
};

enum class HandshakeKind : std::uint16_t { kHello = 1, kChallenge = 2, kProof = 3, kVerdict = 4, kEncrypt = 5 };
enum class VerdictCode : std::uint16_t { kAccepted = 0, kSecretDiffers = 1, kRefused = 2 };

struct HandshakeHeader {
  HandshakeKind kind = HandshakeKind::kHello;
  std::uint32_t length = 0;
};
struct Greeting {  // a hello or a challenge
  std::array<std::byte, kNonceBytes> nonce{};
  Claim claim;
};
struct Verdict {
  VerdictCode code = VerdictCode::kAccepted;
  std::string reason;  // at most 1024 bytes
  Proof proof{};       // over all before it in the message
};

// The message, without a body, of an acceptor that takes nothing in the clear.
std::vector<std::byte> encryption_demand();

// Whether bytes are the first ones of a handshake in the clear.
Status check_handshake_magic(std::span<const std::byte> first);
// The parsers of what an unauthenticated peer may send. Bodies must be used up entirely.
Result<HandshakeHeader> decode_handshake_header(std::span<const std::byte, kHandshakeHeaderBytes> bytes);
Result<Greeting> decode_greeting(std::span<const std::byte> body);
Result<Verdict> decode_verdict(std::span<const std::byte> body);

// One side of one handshake. Feed it exactly wanted() bytes at a time, send what take_output() gives after each step
// (also after a failed one: the other side shall learn why), until done() or an error.
class Handshake {
 public:
  enum class Role { kConnector, kAcceptor };
  // `check` judges a peer whose proof was good; its error's message is told to the peer when this side accepts.
  using Check = std::function<Status(const Claim& peer)>;

  // The secret that a peer must prove to know, by what it claims; asked for once its greeting has come. A peer that
  // nobody knows must get one that nobody knows, so that it is refused as for a wrong secret.
  using FindSecret = std::function<Secret(const Claim& peer)>;

  // `binding`: what both sides know of the connection that carries the handshake, and nobody else does; empty where
  // that is in the clear.
  Handshake(Role role, FindSecret find_secret, Claim own, Check check, std::span<const std::byte> binding = {});
  Handshake(Role role, const Secret& secret, Claim own, Check check, std::span<const std::byte> binding = {})
      : Handshake(role, [secret](const Claim&) { return secret; }, std::move(own), std::move(check), binding) {}

  std::size_t wanted() const { return wanted_; }
  Status feed(std::span<const std::byte> bytes);
  std::vector<std::byte> take_output() { return std::exchange(output_, {}); }
  bool done() const { return done_; }
  // Has the peer proved that it knows the secret?
  bool proved() const { return proved_; }
  // What the peer claimed; to be believed once proved().
  const Claim& peer() const { return peer_; }

 private:
  void say(HandshakeKind kind, std::span<const std::byte> body);
  Status on_greeting(std::span<const std::byte> body);
  Status on_proof(std::span<const std::byte> body);
  Status on_verdict(std::span<const std::byte> body);
  Proof connector_proof() const;
  Proof acceptor_proof(std::span<const std::byte> verdict) const;

  Role role_;
  FindSecret find_secret_;
  Claim own_;
  Check check_;
  const std::vector<std::byte> binding_;
  std::array<std::byte, kNonceBytes> nonce_;
  HandshakeKind expected_;
  bool reading_header_ = true;
  std::size_t wanted_ = kHandshakeHeaderBytes;
  bool done_ = false;
  bool proved_ = false;
  Claim peer_;
  std::vector<std::byte> hello_;  // bodies, as sent, for the proofs
  std::vector<std::byte> challenge_;
  std::vector<std::byte> output_;
};

// kInvalidInput where a name in it is too long, or has control characters or bytes that are not UTF-8.
Status check_names(const Claim& claim);

tl::unexpected<Error> secret_differs(const Secret& ours);

// Peers must agree on job, tenant and fingerprint. Where they do not, the keys that differ are named, with both values.
Status check_same_job(const Claim& own, const Claim& peer);

}  // namespace motley::net
