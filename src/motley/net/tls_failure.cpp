#include "motley/net/tls_failure.h"

#include <openssl/ssl.h>

namespace motley::net {
namespace {

constexpr const char* kSetOnBoth =
    "give them to both sides or to none: network.tls_certificate of a job or data server, --tls-certificate of a "
    "parameter server, MOTLEY_TLS_CERTIFICATE";

// What is wrong with this side's certificate in the eyes of the peer, as its alert says; null where it says nothing.
const char* certificate_alert(int reason) {
  switch (reason) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      return "it is a bad one";
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return "it is for another purpose";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it is revoked";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it has expired, by the peer's clock";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return "it is not accepted";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it is of a CA that the peer does not know";
    default:
      return nullptr;
  }
}

Error refused(std::string text) {
  return {ErrorCode::kRefused, std::move(text), -1};
}

// Of a side that has none.
std::optional<Error> explain_without(const TlsState& state, int reason) {
  const bool is_shown_one = state.accepts
                                ? reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM || reason == SSL_R_NO_SHARED_CIPHER
                                : reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
  if (!is_shown_one || state.established) return {};
  return refused(fmt::format("the peer has certificates, and this side has none; {}", kSetOnBoth));
}

}  // namespace

std::optional<Error> explain_failure(const TlsState& state, int reason) {
  if (state.certificates == nullptr) return explain_without(state, reason);
  const Certificates& own = *state.certificates;
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return refused(fmt::format("{}; judged by {}", state.refused, own.ca_source()));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return refused(fmt::format("the peer shows no certificate; accepted: one of {}", own.ca_source()));
  }
  if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED) {
    return refused("the peer wants a certificate, and this side was given none");
  }
  if (const char* problem = certificate_alert(reason)) {
    return refused(fmt::format("the peer refuses this side's certificate, of {}: {}", own.own_source(), problem));
  }
  if (!state.accepts && !state.established && reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) {
    return refused(fmt::format("the peer has no certificates, and this side has; {}", kSetOnBoth));
  }
  return {};
}

}  // namespace motley::net
