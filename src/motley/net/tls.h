// TLS 1.3 between two processes that share a secret, or know each other by certificates, from OpenSSL. A state machine
// without sockets while the handshake lasts: bytes in, bytes out, so that it can be tested and fuzzed as a function.
//
// Without certificates a key that follows from the secret is the pre-shared key (psk_dhe_ke alone), so that each side
// knows after the handshake that the other one has the secret. The identity of the key, which is sent in the clear,
// says for which tenant the secret is to be looked up. Fresh Diffie-Hellman keys keep what was recorded closed to who
// learns a secret or a certificate's key later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/certificates.h"
#include "motley/net/secret.h"

struct ssl_ctx_st;
struct ssl_st;

namespace motley::net {

inline constexpr std::size_t kTlsHeaderBytes = 5;      // of a record
inline constexpr std::size_t kTlsRecordBytes = 16384;  // of plaintext, at most
inline constexpr std::byte kTlsHandshakeRecord{0x16};  // what a connector sends first

// Bytes of the record that follow its header. kCorrupt where that is none, or longer than anything in a handshake, with
// certificates or without.
Result<std::size_t> decode_tls_header(std::span<const std::byte, kTlsHeaderBytes> bytes, bool has_certificates = false);
// Tells a connector that nobody speaks TLS here.
std::span<const std::byte> tls_refusal();

class Tls {
 public:
  using FindSecret = std::function<Secret(const std::string& tenant)>;
  static std::unique_ptr<Tls> connector(const Secret& secret, const std::string& tenant);
  // The secret that is found for a tenant that nobody knows must be one that nobody knows.
  static std::unique_ptr<Tls> acceptor(FindSecret find_secret);
  // By certificates. The acceptor's must be for the `host`, if any is given.
  static std::unique_ptr<Tls> connector(std::shared_ptr<const Certificates> certificates, const std::string& host = {});
  static std::unique_ptr<Tls> acceptor(std::shared_ptr<const Certificates> certificates);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Bytes that have come, of a handshake's records or, once established(), of what the peer says.
  Status feed(std::span<const std::byte> bytes);
  // Has the peer proved that it knows the secret, or that its certificate is its own?
  bool established() const { return established_; }
  // kRefused where the peer's certificate does not speak for the tenant. For an established one, by certificates.
  Status check_peer_speaks_for(const std::string& tenant) const;
  // For whom it speaks; nothing where the peer has shown none. For an established one.
  std::optional<Represented> peer() const;
  // A value that only the two ends of this connection know; who passes on what two others say has two different ones.
  Proof exporter() const;

  // What is to be sent. Stays until sent() has said how much of it has gone.
  std::span<const std::byte> output() const { return std::span(io_.output).subspan(io_.gone); }
  void sent(std::size_t bytes);

  // From here on bytes come from a socket, as many as it has at a time.
  void read_from(int socket);
  // What the peer has said, of one record at most. 0: more bytes have to come first, or, before it is established, more
  // of the handshake has.
  Result<std::size_t> read(std::span<std::byte> into);
  // Is something here that read() has not returned? A poll of the socket would not wake for it.
  bool has_input() const;
  // Adds one record to the output; at most kTlsRecordBytes.
  Status write(std::span<const std::byte> bytes);
  // Nothing more will be written.
  void end();
  // What is written from now on is under a new key, and the peer learns that.
  void change_key();

 private:
  // Where OpenSSL reads and writes.
  struct Io {
    int socket = -1;
    std::span<const std::byte> input;
    std::vector<std::byte> output;
    std::size_t gone = 0;  // bytes of the output
    bool ended = false;
    std::string problem;
    std::size_t received = 0;     // bytes
    std::size_t key_changes = 0;  // by the peer, after the handshake
  };
  struct Callbacks;

  Tls(bool accepts, ssl_ctx_st* context);
  Status continue_handshake();
  tl::unexpected<Error> broken();

  const bool accepts_;
  FindSecret find_secret_;
  std::string identity_;          // of the connector
  std::optional<Secret> secret_;  // the one looked for, once it is
  std::shared_ptr<const Certificates> certificates_;
  std::string refused_;  // the peer's certificate, and why
  ssl_st* ssl_ = nullptr;
  Io io_;
  bool established_ = false;
  bool starved_ = false;     // the last read had to wait for bytes
  std::size_t records_ = 0;  // written under this key
  std::optional<Error> failure_;
};

}  // namespace motley::net
