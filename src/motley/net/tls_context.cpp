#include "motley/net/tls_context.h"

#include <openssl/ssl.h>

#include "motley/base/result.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace motley::net {
namespace {

constexpr long kMaxCertificateBytes = 32 << 10;  // of all that a peer shows

// Whether the processor has instructions for AES, without which ChaCha20 is several times as fast.
bool has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

}  // namespace

// The acceptor takes its own order of ciphers, unless the connector prefers ChaCha20.
SSL_CTX* make_tls_context(bool accepts) {
  SSL_CTX* context = SSL_CTX_new(accepts ? TLS_server_method() : TLS_client_method());
  MOTLEY_INVARIANT(context != nullptr, "OpenSSL has no TLS");
  const char* ciphers = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                  : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
  const bool good = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context, ciphers) == 1 &&
                    SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
  MOTLEY_INVARIANT(good, "OpenSSL has no TLS 1.3 with AES-128-GCM and X25519");
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_IGNORE_UNEXPECTED_EOF |
                                     SSL_OP_ALLOW_NO_DHE_KEX);  // which is what would allow psk_ke
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_cert_list(context, kMaxCertificateBytes);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);  // certificates as the file has them
  return context;
}

}  // namespace motley::net
