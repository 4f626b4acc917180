// The start and the end of an HTTP server (cpp-httplib): bounds on what its clients may ask, a port that no other
// process shares, and a thread that listens.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "motley/net/session.h"

namespace httplib {
class Server;
struct Request;
}  // namespace httplib

namespace motley::net {

struct HttpLimits {
  double patience_seconds = 5;  // with a slow or silent client
  std::size_t max_body_bytes = 1024;
  bool keeps_connections = true;  // for more than one request
};

class HttpServer {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer();

  httplib::Server& server() { return *server_; }  // for its routes, before it is started

  // Returns where it listens once it does; port 0 takes any free one. Errors: kUnavailable, kTimeout; `what` it is.
  Result<Endpoint> start(const Endpoint& listen, const std::string& what);
  // Ends requests that are under way first; nothing where it was not started.
  void stop();

 private:
  std::unique_ptr<httplib::Server> server_;
  std::thread listener_;
};

// Whether a request shows the token: as "Authorization: Bearer TOKEN" or, where that is good enough, as the password of
// a browser's Basic authentication.
bool shows_token(const httplib::Request& request, const Secret& token, bool accepts_basic);

}  // namespace motley::net
