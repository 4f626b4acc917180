// A small HTTP server that knows one page.
#include "motley/ps/service/metrics_service.h"

#include <httplib.h>

#include "motley/net/http_server.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

// Whether anybody on the network could read the page.
Result<bool> is_open(const net::HttpListen& listen) {
  const bool asks_clients = listen.certificates && listen.certificates->asks_clients();
  if (listen.address.is_unix() || asks_clients) return false;
  const std::string& host = listen.address.endpoint.host;
  if (host.empty() || net::is_any_address(host)) return true;
  MOTLEY_ASSIGN(const bool loopback, net::is_loopback(host));
  return !loopback;
}

}  // namespace

MetricsService::MetricsService(net::HttpListen listen)
    : listen_(std::move(listen)), http_(std::make_unique<net::HttpServer>(net::HttpLimits{})) {}

Result<std::unique_ptr<MetricsService>> MetricsService::start(const net::HttpListen& listen,
                                                              std::optional<net::Secret> token,
                                                              std::function<std::string()> text) {
  MOTLEY_ASSIGN(const bool open, is_open(listen));
  if (open && !token) {
    return fail(ErrorCode::kInvalidInput,
                "metrics at '{}' could be read by anybody there; accepted: an address of loopback, unix:/PATH, a token "
                "(--metrics-token-file), or scrapers with certificates (--metrics-tls-ca)",
                net::to_string(listen.address.endpoint));
  }
  std::unique_ptr<MetricsService> service(new MetricsService(listen));
  service->http_->server().Get("/metrics", [token = std::move(token), text = std::move(text)](
                                               const httplib::Request& request, httplib::Response& response) {
    if (token && !net::shows_token(request, *token, false)) {
      response.status = 401;
      response.set_header("WWW-Authenticate", "Bearer");
      return;
    }
    response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  MOTLEY_ASSIGN(service->listen_.address, service->http_->start(listen, "--metrics"));
  return service;
}

std::string MetricsService::url() const {
  return net::to_url(listen_) + (listen_.address.is_unix() ? "" : "/metrics");
}

}  // namespace motley::ps
