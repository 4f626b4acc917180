// A small HTTP server that knows one page. The library waits a while for each byte of a request, and so as long as it
// takes for all of them; a thread here ends connections that outlast a request's time.
#include "motley/ps/service/metrics_service.h"

#include <fcntl.h>
#include <httplib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "motley/base/clock.h"
#include "motley/base/os/signals.h"
#include "motley/net/http_server.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

constexpr double kPatienceSeconds = 2;  // with a slow or silent client
constexpr double kRequestSeconds = 5;   // from a connection to its end
constexpr double kLookSeconds = 0.5;
constexpr double kLastLooksSeconds = 0.02;
constexpr std::size_t kMaxBodyBytes = 1024;

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

}  // namespace

MetricsService::MetricsService()
    : http_(std::make_unique<net::HttpServer>(net::HttpLimits{
          .patience_seconds = kPatienceSeconds, .max_body_bytes = kMaxBodyBytes, .keeps_connections = false})) {}

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
  service->watch_ = start_thread([watched = service.get()] { watched->watch(); });
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

std::string MetricsService::address() const {
  return net::to_string(endpoint_);
}

MetricsService::~MetricsService() {
  const auto tell = [this](bool MetricsService::* what) {
    const std::lock_guard lock(mutex_);
    this->*what = true;
    changed_.notify_all();
  };
  tell(&MetricsService::stopping_);
  http_->stop();
  tell(&MetricsService::stopped_);
  if (watch_.joinable()) watch_.join();
}

}  // namespace motley::ps
