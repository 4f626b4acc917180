#include "motley/app/parameter_server.h"

#include "motley/net/socket.h"

namespace motley::app {
namespace {

constexpr double kMaxGigabytes = 1e9;

Result<ps::Tenants> read_tenants(const ServerRequest& request) {
  if (!request.tenants.empty()) return ps::Tenants::read(request.tenants);
  Result<net::Secret> token = net::Secret::from_file(request.token_file, net::kTokenFileVariable);
  if (!token) return fail(token.error().within("--token-file (or --tenants), for the token that lets jobs in"));
  return ps::Tenants(std::move(*token));
}

// Null where none is asked for.
Result<std::unique_ptr<ps::MetricsService>> start_metrics(const ServerRequest& request, const ps::Service& service) {
  if (request.metrics.empty()) return nullptr;
  MOTLEY_ASSIGN(const net::Endpoint endpoint, net::parse_endpoint(request.metrics));
  std::optional<net::Secret> token;
  if (!request.metrics_token_file.empty()) {
    MOTLEY_ASSIGN(token, net::Secret::from_file(request.metrics_token_file));
  }
  return ps::MetricsService::start(endpoint, std::move(token), [&service] { return service.metrics().text(); });
}

}  // namespace

Result<RunningServer> start_server(const ServerRequest& request) {
  ps::ServiceOptions options = request.options;
  MOTLEY_ASSIGN(options.listen, net::parse_endpoint(request.listen));
  if (!(request.quota_gigabytes >= 0 && request.quota_gigabytes <= kMaxGigabytes) ||
      (request.quota_gigabytes > 0 && request.quota_gigabytes < 1e-9)) {
    return fail(ErrorCode::kInvalidInput, "--quota: {}; accepted: 0 for no limit, or 1e-9 to {} GB",
                request.quota_gigabytes, kMaxGigabytes);
  }
  if (!(options.stall_seconds >= 0)) {
    return fail(ErrorCode::kInvalidInput, "--stall-timeout: {}; accepted: 0 for never, or seconds",
                options.stall_seconds);
  }
  options.quota_bytes = static_cast<std::size_t>(request.quota_gigabytes * 1e9);
  MOTLEY_ASSIGN(const ps::Tenants tenants, read_tenants(request));
  RunningServer running;
  MOTLEY_ASSIGN(running.service, ps::Service::start(options, tenants));
  MOTLEY_ASSIGN(running.metrics, start_metrics(request, *running.service));
  running.address = net::to_string(running.service->endpoint());
  if (running.metrics) running.metrics_address = net::to_string(running.metrics->endpoint());
  return running;
}

}  // namespace motley::app
