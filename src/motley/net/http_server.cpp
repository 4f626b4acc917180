#include "motley/net/http_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/log.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/net/channel.h"
#include "motley/net/secret.h"
#include "motley/net/socket.h"
#include "motley/net/tls.h"
#include "motley/net/unix_socket.h"

namespace motley::net {
namespace {

constexpr int kThreads = 8;
constexpr double kLastSeconds = 1;  // in which a client takes its answer
constexpr double kNoDescriptorSeconds = 0.05, kNoDescriptorLogSeconds = 10;
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kBasic = "Basic ";

thread_local HttpPeer answered_peer;  // the library's requests carry nothing of ours

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

struct HttpConnection {
  Channel channel;
  Deadline deadline;
  std::string received = {};
  bool is_answered = false;  // what still comes is dropped: closed before that, it would take the answer back
};

// A request whose head is there, as the library reads and answers it.
class RequestStream final : public httplib::Stream {
 public:
  explicit RequestStream(HttpConnection& connection) : connection_(connection), left_(connection.received) {}

  bool is_readable() const override { return !left_.empty() || connection_.channel.has_input() || is_ready(POLLIN); }
  bool is_writable() const override { return is_ready(POLLOUT); }
  ssize_t read(char* to, std::size_t size) override {
    if (!left_.empty()) {
      const std::size_t some = left_.copy(to, size);
      left_.remove_prefix(some);
      return static_cast<ssize_t>(some);
    }
    const iovec part = {to, size};
    return transfer(POLLIN, [&] { return connection_.channel.read({&part, 1}); });
  }
  ssize_t write(const char* from, std::size_t size) override {
    if (size == 0) return 0;
    const iovec part = {const_cast<char*>(from), size};
    return transfer(POLLOUT, [&] { return connection_.channel.write({&part, 1}); });
  }
  // What was written has to be in the socket.
  void flush() {
    while (connection_.channel.unsent() > 0 && is_ready(POLLOUT)) {
      if (!connection_.channel.write({})) return;
    }
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    take(remote_endpoint(connection_.channel.socket()), ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    take(local_endpoint(connection_.channel.socket()), ip, port);
  }
  socket_t socket() const override { return connection_.channel.socket().get(); }

 private:
  static void take(const Endpoint& endpoint, std::string& ip, int& port) {
    ip = endpoint.host;
    port = endpoint.port;
  }
  bool is_ready(short event) const {
    return !connection_.deadline.passed() && wait_for(socket(), event, connection_.deadline.remaining_milliseconds());
  }
  template <class Transfer>
  ssize_t transfer(short event, const Transfer& some) const {
    while (!connection_.deadline.passed()) {
      const Result<std::size_t> bytes = some();
      if (!bytes) return -1;
      if (*bytes > 0) return static_cast<ssize_t>(*bytes);
      if (!is_ready(event)) return -1;
    }
    return -1;
  }

  HttpConnection& connection_;
  std::string_view left_;  // of what was received with the head
};

// The library bounds a body only by the length that it says, and unpacks any: one that says none is not read, and none
// is unpacked. Parts of a page that are asked for many times over would be given as often.
static void bound_body(httplib::Request& request) {
  request.ranges.clear();
  request.headers.erase("Content-Encoding");
  const bool is_chunked = request.headers.erase("Transfer-Encoding") > 0;
  if (!is_chunked && request.has_header("Content-Length")) return;
  request.headers.erase("Content-Length");
  request.set_header("Content-Length", "0");
}

static std::uint64_t length_of_body(const httplib::Request& request) {
  return request.get_header_value<std::uint64_t>("Content-Length");
}

// The library's own server gives a thread to each connection from its first byte on, takes heads without end, and for
// the next request a body that nobody has read. It reads a body over the limit to its end, which may never come, before
// it refuses it: here one is refused by its head, as that of a client that asks first whether it may send one.
class HttpRouter final : public httplib::Server {
 public:
  explicit HttpRouter(std::size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {
    set_expect_100_continue_handler([this](const httplib::Request& request, httplib::Response& response) {
      const std::uint64_t length = length_of_body(request);
      if (length <= max_body_bytes_) return 100;
      response.set_content(
          fmt::format(R"({{"error": "the request's body: {} bytes; accepted: up to {}"}})", length, max_body_bytes_),
          "application/json");
      return response.status = 413;
    });
  }
  void answer(HttpConnection& connection, bool is_unix) {
    RequestStream stream(connection);
    const Channel& channel = connection.channel;
    answered_peer = {.user = is_unix ? std::optional(peer_user(channel.socket())) : std::nullopt,
                     .certificate = channel.is_encrypted() ? channel.tls()->peer() : std::nullopt};
    bool is_closed = false;
    process_request(stream, true, is_closed, [this](httplib::Request& request) {
      bound_body(request);
      if (length_of_body(request) <= max_body_bytes_) return;
      request.headers.erase("Expect");
      request.headers.emplace("Expect", "100-continue");
    });
    stream.flush();
  }

 private:
  std::size_t max_body_bytes_;
};

// One thread accepts connections and reads heads; a few take requests from there, and give connections back to it.
class HttpServer::Connections {
 public:
  explicit Connections(const HttpLimits& limits) : limits_(limits), router_(limits.max_body_bytes) {
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    limits_.max_connections = std::clamp<std::size_t>(descriptors.rlim_cur / 4, 1, limits.max_connections);
  }
  ~Connections() { stop(); }

  HttpRouter& router() { return router_; }
  Result<HttpAddress> start(const HttpListen& listen);
  void stop();

 private:
  void read_heads();
  void accept_all();
  bool receive(HttpConnection& connection);
  bool take_head(HttpConnection& connection, std::string_view bytes);
  void answer_requests();
  void hand_over(HttpConnection connection);

  HttpLimits limits_;
  HttpRouter router_;
  Descriptor listener_, wakeup_;
  HttpListen listen_;
  std::list<HttpConnection> reading_;          // by age; of the thread that reads, as is the next
  Deadline tells_again_ = Deadline::after(0);  // that there are no descriptors
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<HttpConnection> requests_, answered_;
  std::size_t handed_over_ = 0;  // requests that are waiting or being answered
  bool is_stopping_ = false;
};

Result<HttpAddress> HttpServer::Connections::start(const HttpListen& listen) {
  const bool is_unix = listen.address.is_unix();
  MOTLEY_ASSIGN(listener_,
                is_unix ? listen_at_path(listen.address.path, listen.group) : listen_at(listen.address.endpoint));
  listen_ = listen;
  if (!is_unix) listen_.address.endpoint.port = local_endpoint(listener_).port;
  wakeup_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup_.valid()) return fail(ErrorCode::kIo, "cannot make an event: {}", errno_text());
  threads_.push_back(start_thread([this] { read_heads(); }));
  for (int i = 0; i < kThreads; ++i) threads_.push_back(start_thread([this] { answer_requests(); }));
  return listen_.address;
}

void HttpServer::Connections::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  ::eventfd_write(wakeup_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (listener_.valid() && listen_.address.is_unix()) remove_socket(listen_.address.path);
  listener_.close();
}

void HttpServer::Connections::read_heads() {
  for (;;) {
    std::size_t handed_over = 0;
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_) return;
      for (HttpConnection& one : answered_) reading_.push_back(std::move(one));
      answered_.clear();
      handed_over = handed_over_;
    }
    // With all of them being answered, the next ones wait in the system's queue.
    const bool accepts = handed_over < limits_.max_connections;
    std::vector<pollfd> polled = {{wakeup_.get(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}};
    int milliseconds = -1;
    for (const HttpConnection& one : reading_) {
      polled.push_back({one.channel.socket().get(), POLLIN, 0});
      const int left = one.deadline.remaining_milliseconds();
      milliseconds = milliseconds < 0 ? left : std::min(milliseconds, left);
    }
    ::poll(polled.data(), polled.size(), milliseconds);
    eventfd_t ignored = 0;
    ::eventfd_read(wakeup_.get(), &ignored);
    std::size_t place = 2;
    for (auto one = reading_.begin(); one != reading_.end(); ++place) {
      const bool is_there = !one->deadline.passed() && (polled[place].revents == 0 || receive(*one));
      one = is_there ? std::next(one) : reading_.erase(one);
    }
    if (polled[1].revents != 0) accept_all();
  }
}

void HttpServer::Connections::accept_all() {
  const auto count = [&] {
    const std::lock_guard lock(mutex_);
    return reading_.size() + handed_over_;
  };
  for (;;) {
    Descriptor socket = accept_from(listener_);
    const bool has_no_descriptor = !socket.valid() && (errno == EMFILE || errno == ENFILE);
    if (!socket.valid() && !has_no_descriptor) return;
    if ((has_no_descriptor || count() >= limits_.max_connections) && !reading_.empty()) reading_.pop_front();
    if (socket.valid()) {
      auto tls = listen_.certificates ? Tls::acceptor(listen_.certificates) : nullptr;
      reading_.push_back({Channel(std::move(socket), std::move(tls)), Deadline::after(limits_.head_seconds)});
    } else if (reading_.empty()) {
      if (tells_again_.passed()) {
        spdlog::warn("no more connections are let in for now: {}", errno_text());
        tells_again_ = Deadline::after(kNoDescriptorLogSeconds);
      }
      SteadyClock::instance().sleep_until(monotonic_seconds() + kNoDescriptorSeconds);
      return;
    }
  }
}

// False where the connection is over, or the reading thread's no more. What a handshake has to say is sent meanwhile.
bool HttpServer::Connections::receive(HttpConnection& connection) {
  std::array<char, 4096> block;
  const iovec part = {block.data(), block.size()};
  do {
    const auto bytes = connection.channel.read({&part, 1});
    const bool is_sent = connection.channel.write({}).has_value() && connection.channel.unsent() == 0;
    if (!bytes || !is_sent) return false;
    if (*bytes > 0 && !take_head(connection, {block.data(), *bytes})) return false;
  } while (connection.channel.has_input());
  return true;
}

bool HttpServer::Connections::take_head(HttpConnection& connection, std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  if (connection.is_answered) return true;
  const std::size_t before = std::max(connection.received.size(), kEnd.size()) - kEnd.size();
  connection.received.append(bytes);
  if (connection.received.find(kEnd, before) != std::string::npos) {
    connection.deadline = Deadline::after(limits_.request_seconds);
    hand_over(std::move(connection));
    return false;
  }
  if (connection.received.size() <= limits_.max_head_bytes) return true;
  std::string too_large =
      "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
  const iovec part = {too_large.data(), too_large.size()};
  (void)connection.channel.write({&part, 1});
  connection.channel.finish_sending();
  connection.deadline = Deadline::after(kLastSeconds);
  connection.is_answered = true;
  return true;
}

void HttpServer::Connections::hand_over(HttpConnection connection) {
  const std::lock_guard lock(mutex_);
  ++handed_over_;
  requests_.push_back(std::move(connection));
  changed_.notify_one();
}

void HttpServer::Connections::answer_requests() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_stopping_ || !requests_.empty(); });
    if (is_stopping_) return;
    HttpConnection connection = std::move(requests_.front());
    requests_.pop_front();
    lock.unlock();
    router_.answer(connection, listen_.address.is_unix());
    connection.channel.finish_sending();
    connection.deadline = Deadline::after(kLastSeconds);
    connection.is_answered = true;
    lock.lock();
    --handed_over_;
    answered_.push_back(std::move(connection));
    ::eventfd_write(wakeup_.get(), 1);
  }
}

HttpServer::HttpServer(const HttpLimits& limits) : connections_(std::make_unique<Connections>(limits)) {}

HttpServer::~HttpServer() = default;

httplib::Server& HttpServer::server() {
  return connections_->router();
}

Result<HttpAddress> HttpServer::start(const HttpListen& listen, const std::string& what) {
  auto started = connections_->start(listen);
  return started ? started : fail(started.error().within(what));
}

void HttpServer::stop() {
  connections_->stop();
}

const HttpPeer& current_peer() {
  return answered_peer;
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
