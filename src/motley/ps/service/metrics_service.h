// GET /metrics over HTTP, for Prometheus. Plain HTTP: what goes over a network can be read on it, so the address is a
// loopback one unless scrapers show a token.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "motley/net/http_server.h"

namespace motley::ps {

class MetricsService {
 public:
  // `text` is called from threads of this service. With a token only "Authorization: Bearer TOKEN" is answered; without
  // one any other address than a loopback one is refused.
  static Result<std::unique_ptr<MetricsService>> start(const net::Endpoint& listen, std::optional<net::Secret> token,
                                                       std::function<std::string()> text);

  const net::Endpoint& endpoint() const { return endpoint_; }  // really listening at
  std::string address() const;                                 // the same as text

 private:
  MetricsService();

  net::Endpoint endpoint_;
  std::unique_ptr<net::HttpServer> http_;
};

}  // namespace motley::ps
