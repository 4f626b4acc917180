// A small HTTP server that knows one page.
#include "motley/server/metrics_service.h"

#include <httplib.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/transport/secret.h"
#include "motley/transport/socket.h"

namespace motley::server {
namespace {

constexpr int kThreads = 2;
constexpr time_t kPatienceSeconds = 2;  // with a slow or silent client
constexpr std::size_t kMaxBodyBytes = 1024;
constexpr double kStartSeconds = 5;
constexpr std::string_view kBearer = "Bearer ";

bool shows(const httplib::Request& request, const transport::Secret& token) {
  const std::string shown = request.get_header_value("Authorization");
  if (!shown.starts_with(kBearer)) return false;
  const auto secret = transport::Secret::from_text(shown.substr(kBearer.size()), "the token");
  const auto bytes_of = [](const transport::Secret& one) { return std::as_bytes(std::span(one.bytes())); };
  return secret && transport::same_proof(bytes_of(*secret), bytes_of(token));
}

}  // namespace

MetricsService::MetricsService() : server_(std::make_unique<httplib::Server>()) {}

Result<std::unique_ptr<MetricsService>> MetricsService::start(const transport::Endpoint& listen,
                                                              std::optional<transport::Secret> token,
                                                              std::function<std::string()> text) {
  if (listen.host.empty() || (!token && transport::is_any_address(listen.host))) {
    return fail(ErrorCode::kInvalidInput, "metrics at '{}': every address of the machine needs a token",
                transport::to_string(listen));
  }
  if (!token) {
    MOTLEY_ASSIGN(const bool loopback, transport::is_loopback(listen.host));
    if (!loopback) {
      return fail(ErrorCode::kInvalidInput,
                  "metrics at '{}' could be read by anybody there; accepted: an address of loopback, or a token",
                  transport::to_string(listen));
    }
  }
  std::unique_ptr<MetricsService> service(new MetricsService);
  httplib::Server& server = *service->server_;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // Not the library's options, by which two processes could share a port.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_keep_alive_max_count(1);
  server.set_read_timeout(kPatienceSeconds);
  server.set_write_timeout(kPatienceSeconds);
  server.set_payload_max_length(kMaxBodyBytes);
  server.Get("/metrics", [token = std::move(token), text = std::move(text)](const httplib::Request& request,
                                                                            httplib::Response& response) {
    if (token && !shows(request, *token)) {
      response.status = 401;
      response.set_header("WWW-Authenticate", "Bearer");
      return;
    }
    response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
  });
  service->endpoint_ = listen;
  if (listen.port == 0) {
    const int port = server.bind_to_any_port(listen.host);
    service->endpoint_.port = static_cast<std::uint16_t>(std::max(port, 0));
  }
  if (listen.port == 0 ? service->endpoint_.port == 0 : !server.bind_to_port(listen.host, listen.port)) {
    return fail(ErrorCode::kUnavailable, "cannot listen for metrics at {}; is the port in use?",
                transport::to_string(listen));
  }
  service->thread_ = std::thread([&server] { server.listen_after_bind(); });
  // A server that does not run yet cannot be stopped.
  for (const Deadline deadline = Deadline::after(kStartSeconds); !server.is_running();) {
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "the service of metrics did not start within {} s", kStartSeconds);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + 1e-3);
  }
  return service;
}

MetricsService::~MetricsService() {
  server_->stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace motley::server
