// A small HTTP server that knows one page.
#include "motley/ps/service/metrics_service.h"

#include <httplib.h>

#include "motley/net/http_server.h"
#include "motley/net/socket.h"

namespace motley::ps {
MetricsService::MetricsService() : http_(std::make_unique<net::HttpServer>(net::HttpLimits{})) {}

Result<std::unique_ptr<MetricsService>> MetricsService::start(const net::Endpoint& listen,
                                                              std::optional<net::Secret> token,
                                                              std::function<std::string()> text) {
  if (listen.host.empty() || (!token && net::is_any_address(listen.host))) {
    return fail(
        ErrorCode::kInvalidInput,
        "metrics at '{}', which is every address of this machine, could be read by anybody; accepted: an address "
        "of loopback, or a token (--metrics-token-file)",
        net::to_string(listen));
  }
  if (!token) {
    MOTLEY_ASSIGN(const bool loopback, net::is_loopback(listen.host));
    if (!loopback) {
      return fail(ErrorCode::kInvalidInput,
                  "metrics at '{}' could be read by anybody there; accepted: an address of loopback, or a token "
                  "(--metrics-token-file)",
                  net::to_string(listen));
    }
  }
  std::unique_ptr<MetricsService> service(new MetricsService);
  service->http_->server().Get("/metrics", [token = std::move(token), text = std::move(text)](
                                               const httplib::Request& request, httplib::Response& response) {
    if (token && !net::shows_token(request, *token, false)) {
      response.status = 401;
      response.set_header("WWW-Authenticate", "Bearer");
      return;
    }
    response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  MOTLEY_ASSIGN(service->endpoint_, service->http_->start(listen, "--metrics:"));
  return service;
}

std::string MetricsService::address() const {
  return net::to_string(endpoint_);
}

}  // namespace motley::ps
