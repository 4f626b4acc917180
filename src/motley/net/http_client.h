// A client of Motley's own HTTP services: one request a connection, in the clear, by HTTPS or over a unix socket.
#pragma once

#include <memory>
#include <string>

#include "motley/net/http_address.h"

namespace motley::net {

class Channel;

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // "/v1/jobs?state=running", not yet escaped
  std::string token;   // sent as "Authorization: Bearer TOKEN"
  std::string body;    // of POST, JSON or nothing
};
struct HttpAnswer {
  int status = 0;
  std::string body;
};

// May be used from any thread.
class HttpClient {
 public:
  // `seconds` is how long it takes at most to connect, then to send, then to be answered. The certificates are those by
  // which an https service is known.
  HttpClient(HttpUrl url, std::shared_ptr<const Certificates> certificates, double seconds)
      : url_(std::move(url)), certificates_(std::move(certificates)), seconds_(seconds) {}

  std::string url() const { return to_url(url_.address, url_.is_encrypted); }
  // Errors: kRefused where a certificate is not accepted; kUnavailable, kTimeout and kPeerLost where nobody answers;
  // kCorrupt where it is no HTTP.
  Result<HttpAnswer> ask(const HttpRequest& request) const;

 private:
  Result<Channel> connect() const;
  Status send(Channel& channel, std::string text) const;
  Result<HttpAnswer> receive(Channel& channel) const;

  HttpUrl url_;
  std::shared_ptr<const Certificates> certificates_;
  double seconds_;
};

}  // namespace motley::net
