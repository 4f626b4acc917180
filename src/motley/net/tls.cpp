#include "motley/net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "motley/base/os/file.h"
#include "motley/net/handshake.h"
#include "motley/net/tls_context.h"
#include "motley/net/tls_failure.h"

namespace motley::net {
namespace {

// What a handshake's record may hold. OpenSSL's own are shorter, and Motley's messages too.
constexpr std::size_t kMaxHandshakeRecordBytes = 4096;
constexpr std::size_t kMaxCertificateRecordBytes = kTlsRecordBytes + 256;  // any
// What one read of the socket brings at most, so that records come many at a time.
constexpr std::size_t kReadBytes = 32 << 10;
// Under one key AES-GCM is good for 2^24.5 full records (RFC 8446, 5.5).
constexpr std::size_t kRecordsPerKey = 1 << 23;
// A peer may change its key once for so many bytes, and a few times at once: each change costs this side more than that
// side.
constexpr std::size_t kBytesPerKeyChange = 1 << 20;
constexpr std::size_t kKeyChangesAtOnce = 4;

constexpr std::string_view kIdentityPrefix = "motley 1 ";
constexpr std::string_view kExporterLabel = "EXPORTER-motley-1";
constexpr std::array kAes128Gcm = {static_cast<unsigned char>(0x13), static_cast<unsigned char>(0x01)};

std::span<const std::byte> as_raw_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// For pre-shared keys, and the process's lifetime.
SSL_CTX* secret_context(bool accepts) {
  static SSL_CTX* const acceptor = make_tls_context(true);
  static SSL_CTX* const connector = [] {
    SSL_CTX* context = make_tls_context(false);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER,
                       nullptr);  // no certificate is good: it is the pre-shared key or nothing
    return context;
  }();
  return accepts ? acceptor : connector;
}

SSL_SESSION* make_session(SSL* ssl, const Secret& secret) {
  const Proof key = prove(secret, {as_raw_bytes("motley tls 1 pre-shared key")});
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128Gcm.data());  // any cipher with SHA-256 may then be chosen
  const bool good =
      session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  MOTLEY_INVARIANT(good, "OpenSSL makes no session of a pre-shared key");
  return session;
}

}  // namespace

// OpenSSL calls these, with the Tls they belong to.
struct Tls::Callbacks {
  static Tls& of(const SSL* ssl) { return *static_cast<Tls*>(SSL_get_app_data(ssl)); }

  static int use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* size,
                         SSL_SESSION** session) {
    const Tls& tls = of(ssl);
    *identity = reinterpret_cast<const unsigned char*>(tls.identity_.data());
    *size = tls.identity_.size();
    *session = make_session(ssl, *tls.secret_);
    return 1;
  }

  static int find_session(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
    Tls& tls = of(ssl);
    std::string_view tenant(reinterpret_cast<const char*>(identity), std::min(size, kMaxNameBytes));
    if (tenant.starts_with(kIdentityPrefix)) tenant.remove_prefix(kIdentityPrefix.size());
    tls.secret_ = tls.find_secret_(std::string(tenant));
    *session = make_session(ssl, *tls.secret_);
    return 1;
  }

  static int judge(int is_good, X509_STORE_CTX* store) {
    X509* certificate = X509_STORE_CTX_get_current_cert(store);
    if (is_good == 1 || certificate == nullptr) return is_good;
    const auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    of(ssl).refused_ = fmt::format("{} is refused: {}", describe_certificate(certificate),
                                   X509_verify_cert_error_string(X509_STORE_CTX_get_error(store)));
    return 0;
  }

  static void see_message(int is_written, int, int type, const void*, std::size_t, SSL* ssl, void*) {
    Tls& tls = of(ssl);
    if (is_written == 0 && type == SSL3_RT_HANDSHAKE && tls.established()) ++tls.io_.key_changes;
  }

  static int write(BIO* bio, const char* data, std::size_t size, std::size_t* written) {
    Io& io = *static_cast<Io*>(BIO_get_data(bio));
    const auto bytes = std::as_bytes(std::span(data, size));
    io.output.insert(io.output.end(), bytes.begin(), bytes.end());
    *written = size;
    return 1;
  }

  static int read(BIO* bio, char* data, std::size_t size, std::size_t* got) {
    Io& io = *static_cast<Io*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    *got = 0;
    if (io.key_changes > kKeyChangesAtOnce + io.received / kBytesPerKeyChange) {
      io.problem = "it changes its key without end";
      return 0;
    }
    if (!io.input.empty()) {
      *got = std::min(size, io.input.size());
      std::ranges::copy(io.input.first(*got), std::as_writable_bytes(std::span(data, size)).begin());
      io.input = io.input.subspan(*got);
    } else if (io.socket >= 0) {
      ssize_t count;
      do {
        count = ::recv(io.socket, data, size, MSG_DONTWAIT);
      } while (count < 0 && errno == EINTR);
      io.ended = count == 0;
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        io.problem = fmt::format("its connection broke: {}", errno_text());
        return 0;
      }
      *got = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
    io.received += *got;
    if (*got == 0 && !io.ended) BIO_set_retry_read(bio);
    return *got > 0 ? 1 : 0;
  }

  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return static_cast<Io*>(BIO_get_data(bio))->ended ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO_METHOD* make_method() {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "motley");
    MOTLEY_INVARIANT(method != nullptr, "OpenSSL makes no BIO");
    BIO_meth_set_write_ex(method, write);
    BIO_meth_set_read_ex(method, read);
    BIO_meth_set_ctrl(method, control);
    return method;
  }
};

Result<std::size_t> decode_tls_header(std::span<const std::byte, kTlsHeaderBytes> bytes, bool has_certificates) {
  const std::size_t most = has_certificates ? kMaxCertificateRecordBytes : kMaxHandshakeRecordBytes;
  const auto at = [&](std::size_t index) { return std::to_integer<std::size_t>(bytes[index]); };
  const std::size_t size = at(3) << 8 | at(4);
  if (at(0) < SSL3_RT_CHANGE_CIPHER_SPEC || at(0) > SSL3_RT_APPLICATION_DATA || at(1) != SSL3_VERSION_MAJOR ||
      size == 0) {
    return fail(ErrorCode::kCorrupt, "what answers speaks no TLS: its first bytes are {:02x} {:02x} {:02x}", at(0),
                at(1), at(2));
  }
  if (size > most) {
    return fail(ErrorCode::kCorrupt, "a TLS record of {} bytes in a handshake; at most {} are accepted", size, most);
  }
  return size;
}

// A fatal alert, insufficient_security, which OpenSSL itself never sends under TLS 1.3.
std::span<const std::byte> tls_refusal() {
  static constexpr std::array kAlert = {std::byte{SSL3_RT_ALERT},
                                        std::byte{3},
                                        std::byte{3},
                                        std::byte{0},
                                        std::byte{2},
                                        std::byte{SSL3_AL_FATAL},
                                        std::byte{TLS1_AD_INSUFFICIENT_SECURITY}};
  return kAlert;
}

std::unique_ptr<Tls> Tls::connector(const Secret& secret, const std::string& tenant) {
  auto tls = std::unique_ptr<Tls>(new Tls(false, secret_context(false)));
  SSL_set_psk_use_session_callback(tls->ssl_, Callbacks::use_session);
  tls->identity_ = std::string(kIdentityPrefix) + tenant;
  tls->secret_ = secret;
  (void)tls->feed({});
  return tls;
}

std::unique_ptr<Tls> Tls::acceptor(FindSecret find_secret) {
  auto tls = std::unique_ptr<Tls>(new Tls(true, secret_context(true)));
  SSL_set_psk_find_session_callback(tls->ssl_, Callbacks::find_session);
  tls->find_secret_ = std::move(find_secret);
  return tls;
}

std::unique_ptr<Tls> Tls::connector(std::shared_ptr<const Certificates> certificates, const std::string& host) {
  auto tls = std::unique_ptr<Tls>(new Tls(false, certificates->context(false)));
  tls->certificates_ = std::move(certificates);
  SSL_set_verify(tls->ssl_, SSL_VERIFY_PEER, Callbacks::judge);
  X509_VERIFY_PARAM* wanted = SSL_get0_param(tls->ssl_);
  if (!host.empty() && X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) != 1) {  // it is a name
    const bool good =
        SSL_set1_host(tls->ssl_, host.c_str()) == 1 && SSL_set_tlsext_host_name(tls->ssl_, host.c_str()) == 1;
    MOTLEY_INVARIANT(good, "OpenSSL takes no host '{}'", host);
  }
  (void)tls->feed({});
  return tls;
}

std::unique_ptr<Tls> Tls::acceptor(std::shared_ptr<const Certificates> certificates) {
  auto tls = std::unique_ptr<Tls>(new Tls(true, certificates->context(true)));
  tls->certificates_ = std::move(certificates);
  if (tls->certificates_->asks_clients()) {
    SSL_set_verify(tls->ssl_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, Callbacks::judge);
  }
  return tls;
}

Tls::Tls(bool accepts, SSL_CTX* context) : accepts_(accepts), ssl_(SSL_new(context)) {
  static BIO_METHOD* const method = Callbacks::make_method();
  BIO* bio = BIO_new(method);
  MOTLEY_INVARIANT(ssl_ != nullptr && bio != nullptr, "OpenSSL makes no connection");
  BIO_set_data(bio, &io_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  SSL_set_msg_callback(ssl_, Callbacks::see_message);
  if (accepts) {
    SSL_set_accept_state(ssl_);
  } else {
    SSL_set_connect_state(ssl_);
  }
}

Tls::~Tls() {
  SSL_free(ssl_);
}

// Why OpenSSL goes no further, for the one who sees the message.
tl::unexpected<Error> Tls::broken() {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const bool secret_refused =
      accepts_ ? reason == SSL_R_BINDER_DOES_NOT_VERIFY : reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER;
  if (!io_.problem.empty()) {
    failure_ = Error{ErrorCode::kPeerLost, io_.problem, -1};
  } else if (io_.ended) {
    failure_ = Error{ErrorCode::kPeerLost, "its connection was cut off", -1};
  } else if (!established_ && secret_refused && secret_) {
    failure_ = secret_differs(*secret_).value();
  } else if (auto explained = explain_failure({certificates_.get(), accepts_, established_, refused_}, reason)) {
    failure_ = std::move(explained);
  } else if (reason == SSL_R_TLSV1_ALERT_INSUFFICIENT_SECURITY) {
    failure_ =
        Error{ErrorCode::kRefused,
              fmt::format("encryption is 'off' at the peer, and this side encrypts: set it to 'auto' there, or to "
                          "'off' here ({})",
                          kEncryptionSettings),
              -1};
  } else {
    const char* text = ERR_reason_error_string(code);
    failure_ =
        Error{ErrorCode::kCorrupt, fmt::format("TLS: {}", text != nullptr ? text : "the connection is broken"), -1};
  }
  ERR_clear_error();
  return fail(*failure_);
}

Status Tls::continue_handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done != 1 && SSL_get_error(ssl_, done) != SSL_ERROR_WANT_READ) return broken();
  established_ = done == 1;
  starved_ = !established_;
  MOTLEY_INVARIANT(!established_ || certificates_ || SSL_session_reused(ssl_) == 1,
                   "a TLS handshake ended without the pre-shared key");
  return {};
}

Status Tls::feed(std::span<const std::byte> bytes) {
  if (failure_) return fail(*failure_);
  io_.input = bytes;
  return established_ ? Status() : continue_handshake();
}

Status Tls::check_peer_speaks_for(const std::string& tenant) const {
  X509* certificate = SSL_get1_peer_certificate(ssl_);
  MOTLEY_INVARIANT(certificate != nullptr, "a TLS handshake ended without the peer's certificate");
  const Status status = check_speaks_for(
      certificate, tenant, "the certificate of the " + std::string(accepts_ ? "connecting" : "answering") + " side");
  X509_free(certificate);
  return status;
}

std::optional<Represented> Tls::peer() const {
  X509* certificate = SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return {};
  Represented represented = represented_by(certificate);
  X509_free(certificate);
  return represented;
}

Proof Tls::exporter() const {
  Proof value{};
  const bool good = SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(value.data()), value.size(),
                                               kExporterLabel.data(), kExporterLabel.size(), nullptr, 0, 0) == 1;
  MOTLEY_INVARIANT(good, "OpenSSL exports no keying material");
  return value;
}

void Tls::sent(std::size_t bytes) {
  io_.gone += bytes;
  if (io_.gone < io_.output.size()) return;
  io_.output.clear();
  io_.gone = 0;
}

void Tls::read_from(int socket) {
  io_.socket = socket;
  io_.input = {};
  SSL_free_buffers(ssl_);
  SSL_clear_mode(ssl_, SSL_MODE_RELEASE_BUFFERS);
  SSL_set_default_read_buffer_len(ssl_, kReadBytes);
  SSL_set_read_ahead(ssl_, 1);
}

bool Tls::has_input() const {
  return !failure_ && !starved_ && SSL_has_pending(ssl_) == 1;
}

Result<std::size_t> Tls::read(std::span<std::byte> into) {
  if (failure_) return fail(*failure_);
  if (!established_) MOTLEY_TRY(continue_handshake());
  if (!established_) return 0;
  ERR_clear_error();
  std::size_t got = 0;
  const int done = SSL_read_ex(ssl_, into.data(), into.size(), &got);
  const int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_, done);
  starved_ = error == SSL_ERROR_WANT_READ;
  if (done == 1) return got;
  if (starved_) return 0;
  if (error != SSL_ERROR_ZERO_RETURN) return broken();
  failure_ = Error{ErrorCode::kPeerLost, "it closed its connection", -1};
  return fail(*failure_);
}

Status Tls::write(std::span<const std::byte> bytes) {
  MOTLEY_INVARIANT(bytes.size() <= kTlsRecordBytes, "{} bytes are more than a TLS record holds", bytes.size());
  if (bytes.empty()) return {};
  if (++records_ > kRecordsPerKey) change_key();
  ERR_clear_error();
  std::size_t written = 0;
  if (SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) != 1 || written != bytes.size()) {
    return failure_ ? fail(*failure_) : broken();
  }
  return {};
}

void Tls::end() {
  ERR_clear_error();
  if (established_ && !failure_) SSL_shutdown(ssl_);
  ERR_clear_error();
}

void Tls::change_key() {
  records_ = 0;
  SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
}

}  // namespace motley::net
