// A small HTTP server that knows one page. The library waits a while for each byte of a request, and so as long as it
// takes for all of them; a thread here ends connections that outlast a request's time.
#include "motley/ps/service/metrics_service.h"

#include <fcntl.h>
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/net/secret.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

constexpr int kThreads = 8;
constexpr time_t kPatienceSeconds = 2;  // with a slow or silent client
constexpr double kRequestSeconds = 5;   // from a connection to its end
constexpr double kLookSeconds = 0.5;
constexpr double kLastLooksSeconds = 0.02;
constexpr std::size_t kMaxBodyBytes = 1024;
constexpr double kStartSeconds = 5;
constexpr std::string_view kBearer = "Bearer ";

// Ends every connection to this port of our own for which `is_over` of its name is true. The library keeps its
// connections to itself, so they are found among the descriptors of this process; each is looked at and ended through a
// copy, which stays the same connection whatever happens to the descriptor meanwhile.
template <class IsOver>
void end_connections(std::uint16_t port, const IsOver& is_over) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    if (!std::filesystem::read_symlink(entry.path(), ignored).string().starts_with("socket:")) continue;
    const int number = std::atoi(entry.path().filename().c_str());
    const Descriptor copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (!copy.valid() || ::getpeername(copy.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
        (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) || net::local_endpoint(copy).port != port) {
      continue;
    }
    if (is_over(net::to_string(net::remote_endpoint(copy)))) ::shutdown(copy.get(), SHUT_RDWR);
  }
}

bool shows(const httplib::Request& request, const net::Secret& token) {
  const std::string shown = request.get_header_value("Authorization");
  if (!shown.starts_with(kBearer)) return false;
  const auto secret = net::Secret::from_text(shown.substr(kBearer.size()), "the token");
  const auto as_raw_bytes = [](const net::Secret& one) { return std::as_bytes(std::span(one.bytes())); };
  return secret && net::same_proof(as_raw_bytes(*secret), as_raw_bytes(token));
}

}  // namespace

MetricsService::MetricsService() : server_(std::make_unique<httplib::Server>()) {}

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
                net::to_string(listen));
  }
  service->thread_ = std::thread([&server] { server.listen_after_bind(); });
  service->watch_ = std::thread([watched = service.get()] { watched->watch(); });
  // A server that does not run yet cannot be stopped.
  for (const Deadline deadline = Deadline::after(kStartSeconds); !server.is_running();) {
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "the service of metrics did not start within {} s", kStartSeconds);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + 1e-3);
  }
  return service;
}

void MetricsService::watch() {
  std::map<std::string, double> seen;  // when, by the other end's address
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const bool stopping = stopping_;
    lock.unlock();
    const double now = monotonic_seconds();
    std::map<std::string, double> still;
    end_connections(endpoint_.port, [&](const std::string& peer) {
      const auto found = seen.find(peer);
      const double since = still[peer] = found == seen.end() ? now : found->second;
      return stopping || now > since + kRequestSeconds;
    });
    seen = std::move(still);
    lock.lock();
    changed_.wait_for(lock, std::chrono::duration<double>(stopping ? kLastLooksSeconds : kLookSeconds),
                      [&] { return stopped_ || stopping_ != stopping; });
  }
}

MetricsService::~MetricsService() {
  const auto tell = [this](bool MetricsService::* what) {
    const std::lock_guard lock(mutex_);
    this->*what = true;
    changed_.notify_all();
  };
  tell(&MetricsService::stopping_);
  server_->stop();
  if (thread_.joinable()) thread_.join();
  tell(&MetricsService::stopped_);
  if (watch_.joinable()) watch_.join();
}

}  // namespace motley::ps
