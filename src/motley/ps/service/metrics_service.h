// GET /metrics over HTTP, for Prometheus, at a loopback address or a unix socket unless scrapers show a token or a
// certificate.
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
  // one, and without a CA by which scrapers are known, any other address than a loopback one is refused.
  static Result<std::unique_ptr<MetricsService>> start(const net::HttpListen& listen, std::optional<net::Secret> token,
                                                       std::function<std::string()> text);

  const net::Endpoint& endpoint() const { return listen_.address.endpoint; }  // really listening at, if not at a path
  std::string url() const;                                                    // of the page

 private:
  explicit MetricsService(net::HttpListen listen);

  net::HttpListen listen_;
  std::unique_ptr<net::HttpServer> http_;
};

}  // namespace motley::ps
