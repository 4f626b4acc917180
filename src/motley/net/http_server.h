// An HTTP server: cpp-httplib's parser and routes behind bounds on what clients may ask, hold and take their time for.
// A connection costs a descriptor and a few bytes, or with HTTPS what its handshake takes, until the head of its
// request is there, and has one request.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "motley/net/http_address.h"

namespace httplib {
class Server;
struct Request;
}  // namespace httplib

namespace motley::net {

struct HttpLimits {
  double head_seconds = 5;     // from a connection to the whole head of its request
  double request_seconds = 5;  // from there to the end of its answer, as far as the client is waited for
  std::size_t max_head_bytes = 16 << 10;
  std::size_t max_body_bytes = 1024;
  // At a time, and a quarter of the descriptors that this process may have. Beyond it the one that has waited longest
  // for its head is closed.
  std::size_t max_connections = 64;
};

// Who is at the other end of a request's connection, as far as that is proved.
struct HttpPeer {
  std::optional<uid_t> user = {};               // of a unix socket
  std::optional<Represented> certificate = {};  // for whom the one speaks that it has shown
};
// Of the request that this thread is answering.
const HttpPeer& current_peer();

class HttpServer {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer();

  httplib::Server& server();  // for its routes, before it is started

  // Returns where it listens; port 0 takes any free one. Errors: those of listen_at and listen_at_path; `what` it is.
  Result<HttpAddress> start(const HttpListen& listen, const std::string& what);
  // Ends requests that are being answered first, and removes a unix socket; nothing where it was not started.
  void stop();

 private:
  class Connections;
  std::unique_ptr<Connections> connections_;
};

// Whether a request shows the token: as "Authorization: Bearer TOKEN" or, where that is good enough, as the password of
// a browser's Basic authentication.
bool shows_token(const httplib::Request& request, const Secret& token, bool accepts_basic);

}  // namespace motley::net
