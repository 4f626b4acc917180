// Where an HTTP server listens and how clients reach it: at a host and port, in the clear or by HTTPS, or at a unix
// socket.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "motley/net/certificates.h"
#include "motley/net/session.h"

namespace motley::net {

struct HttpAddress {
  Endpoint endpoint;
  std::string path = {};  // of a unix socket, in place of the endpoint; "": none
  bool is_unix() const { return !path.empty(); }
};

struct HttpListen {
  HttpAddress address;
  std::shared_ptr<const Certificates> certificates = {};  // null: in the clear
  std::optional<gid_t> group = {};                        // whose users may open a unix socket, too
};

// "unix:/run/scheduler", "https://10.0.0.5:29600", "http://127.0.0.1:29600".
std::string to_url(const HttpAddress& address, bool is_encrypted);
inline std::string to_url(const HttpListen& listen) {
  return to_url(listen.address, listen.certificates != nullptr);
}

struct HttpUrl {
  HttpAddress address;
  bool is_encrypted = false;
};
// What to_url writes; `what` names the text in errors.
Result<HttpUrl> parse_http_url(const std::string& text, const std::string& what);

// As flags say it.
struct HttpFlags {
  std::string listen;  // "HOST:PORT" or "unix:/PATH"
  CertificateFiles tls;
  bool allows_plain = false;  // at any address
};
// What the flags are called.
struct HttpFlagNames {
  std::string listen;
  CertificateNames tls;
  std::string encryption;
};
// Errors (kInvalidInput) name the flag. In the clear only a loopback address or a unix socket is accepted, unless the
// flags allow more.
Result<HttpListen> read_http_listen(const HttpFlags& flags, const HttpFlagNames& names);

}  // namespace motley::net
