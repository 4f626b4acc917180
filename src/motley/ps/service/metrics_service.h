// GET /metrics over HTTP, for Prometheus. Plain HTTP: what goes over a network can be read on it, so the address is a
// loopback one unless scrapers show a token.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "motley/net/http_server.h"

namespace motley::ps {

class MetricsService {
 public:
  // `text` is called from threads of this service. With a token only "Authorization: Bearer TOKEN" is answered; without
  // one any other address than a loopback one is refused.
  static Result<std::unique_ptr<MetricsService>> start(const net::Endpoint& listen, std::optional<net::Secret> token,
                                                       std::function<std::string()> text);
  ~MetricsService();

  const net::Endpoint& endpoint() const { return endpoint_; }  // really listening at
  std::string address() const;                                 // the same as text

 private:
  MetricsService();
  void watch();

  net::Endpoint endpoint_;
  std::unique_ptr<net::HttpServer> http_;
  std::mutex mutex_;  // guards the two below
  std::condition_variable changed_;
  bool stopping_ = false;  // no connection has any time left
  bool stopped_ = false;
  std::thread watch_;  // over how long connections last
};

}  // namespace motley::ps
