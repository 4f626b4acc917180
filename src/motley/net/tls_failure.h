// Why TLS goes no further where certificates are the cause, as whoever is to mend it must read it.
#pragma once

#include <optional>
#include <string>

#include "motley/net/certificates.h"

namespace motley::net {

struct TlsState {
  const Certificates* certificates = nullptr;  // of this side; null: it has none
  bool accepts = false;
  bool established = false;
  const std::string& refused;  // the peer's certificate, and why, where this side refuses it
};

// `reason` is OpenSSL's. Nothing where certificates have no part in it.
std::optional<Error> explain_failure(const TlsState& state, int reason);

}  // namespace motley::net
