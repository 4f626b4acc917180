#include "motley/net/http_server.h"

#include <httplib.h>
#include <openssl/evp.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/net/secret.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr int kThreads = 8;
constexpr double kStartSeconds = 5;
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kBasic = "Basic ";

// Empty where it is none.
std::string decode_base64(const std::string& text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const auto padding = static_cast<int>(text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size() / 4 * 4));
  bytes.resize(static_cast<std::size_t>(std::max(0, length - padding)));
  return bytes;
}

}  // namespace

HttpServer::HttpServer(const HttpLimits& limits) : server_(std::make_unique<httplib::Server>()) {
  server_->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // Not the library's options, by which two processes could share a port.
  server_->set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  const auto seconds = static_cast<time_t>(limits.patience_seconds);
  server_->set_read_timeout(seconds);
  server_->set_write_timeout(seconds);
  server_->set_payload_max_length(limits.max_body_bytes);
  server_->set_tcp_nodelay(true);
  if (!limits.keeps_connections) server_->set_keep_alive_max_count(1);
}

HttpServer::~HttpServer() {
  stop();
}

Result<Endpoint> HttpServer::start(const Endpoint& listen, const std::string& what) {
  Endpoint endpoint = listen;
  if (listen.port == 0) endpoint.port = static_cast<std::uint16_t>(std::max(server_->bind_to_any_port(listen.host), 0));
  if (listen.port == 0 ? endpoint.port == 0 : !server_->bind_to_port(listen.host, listen.port)) {
    return fail(ErrorCode::kUnavailable, "{} cannot listen at {}; is the port in use?", what, to_string(listen));
  }
  listener_ = std::thread([this] { server_->listen_after_bind(); });
  // A server that does not run yet cannot be stopped.
  for (const Deadline deadline = Deadline::after(kStartSeconds); !server_->is_running();) {
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{} did not start to listen within {} s", what, kStartSeconds);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + 1e-3);
  }
  return endpoint;
}

void HttpServer::stop() {
  server_->stop();
  if (listener_.joinable()) listener_.join();
}

bool shows_token(const httplib::Request& request, const Secret& token, bool accepts_basic) {
  std::string shown = request.get_header_value("Authorization");
  if (shown.starts_with(kBearer)) {
    shown = shown.substr(kBearer.size());
  } else if (accepts_basic && shown.starts_with(kBasic)) {
    const std::string pair = decode_base64(shown.substr(kBasic.size()));
    const std::size_t colon = pair.find(':');
    shown = colon == std::string::npos ? "" : pair.substr(colon + 1);
  } else {
    return false;
  }
  const auto secret = Secret::from_text(shown, "the token");
  const auto as_raw_bytes = [](const Secret& one) { return std::as_bytes(std::span(one.bytes())); };
  return secret && same_proof(as_raw_bytes(*secret), as_raw_bytes(token));
}

}  // namespace motley::net
