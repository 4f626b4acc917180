#include "motley/net/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "motley/base/os/file.h"

namespace motley::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const Endpoint& endpoint, bool to_listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (problem != 0) {  // for the moment, or for good
    return fail(problem == EAI_AGAIN ? ErrorCode::kUnavailable : ErrorCode::kInvalidInput,
                "cannot resolve the host '{}': {}", endpoint.host, ::gai_strerror(problem));
  }
  return AddressList(found, &::freeaddrinfo);
}

Endpoint to_endpoint(const Descriptor& socket, decltype(::getsockname)* get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  get(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "0";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  Endpoint endpoint{host, 0};
  std::from_chars(port, port + std::strlen(port), endpoint.port);
  return endpoint;
}

bool is_loopback(const in_addr& v4) {
  return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
}

// An end of a socket; an IPv4 address may stand in an IPv6 one.
bool has_loopback(const Descriptor& socket, decltype(::getsockname)* get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  get(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family == AF_INET) return is_loopback(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  if (address.ss_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&v6)) return IN6_IS_ADDR_LOOPBACK(&v6);
  in_addr v4;
  std::memcpy(&v4, v6.s6_addr + 12, sizeof v4);
  return is_loopback(v4);
}

// A peer whose machine is gone says nothing: after so long without a word the system asks, and gives up after some
// questions without an answer. While something is unacknowledged it does not ask: is_unanswered() is for that.
constexpr int kAskSeconds = 5;
constexpr int kAsks = 6;
constexpr int kIdleSeconds = kGoneSeconds - kAsks * kAskSeconds;

// Small frames leave at once. Buffer sizes are left alone on purpose: setting them switches off the kernel's own
// tuning, which goes well above what an unprivileged process may set.
void tune(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, &kAskSeconds, sizeof kAskSeconds);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, &kAsks, sizeof kAsks);
}

Status connect_one(const Descriptor& socket, const addrinfo& address, const Deadline& deadline,
                   const std::function<bool()>& cancelled) {
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return fail(ErrorCode::kUnavailable, "{}", errno_text());
  for (;;) {
    if (wait_for(socket.get(), POLLOUT, std::min(50, deadline.remaining_milliseconds()))) {
      int problem = 0;
      socklen_t length = sizeof problem;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
      if (problem != 0) return fail(ErrorCode::kUnavailable, "{}", std::strerror(problem));
      return {};
    }
    if (deadline.passed() || (cancelled && cancelled())) return fail(ErrorCode::kTimeout, "no answer");
  }
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  return endpoint.host.find(':') == std::string::npos ? fmt::format("{}:{}", endpoint.host, endpoint.port)
                                                      : fmt::format("[{}]:{}", endpoint.host, endpoint.port);
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  Endpoint endpoint;
  if (colon != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [rest, problem] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
    endpoint.host = text.substr(0, colon);
    const bool bracketed = endpoint.host.size() > 2 && endpoint.host.front() == '[' && endpoint.host.back() == ']';
    if (bracketed) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
    const bool plain = endpoint.host.find_first_of(":[] ") == std::string::npos;
    if (problem == std::errc() && rest == end && !endpoint.host.empty() && (bracketed || plain)) return endpoint;
  }
  return fail(ErrorCode::kInvalidInput,
              "'{}' is not an address such as 'node1:29400', '10.0.0.5:29400' or '[::1]:29400' (ports up to 65535)",
              text);
}

Result<Descriptor> listen_at(const Endpoint& endpoint) {
  MOTLEY_ASSIGN(const AddressList addresses, resolve(endpoint, true));
  Descriptor socket(
      ::socket(addresses->ai_family, addresses->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, addresses->ai_protocol));
  if (!socket.valid()) {
    return fail(ErrorCode::kIo, "cannot make a socket for {}: {}", to_string(endpoint), errno_text());
  }
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) {
      return fail(
          ErrorCode::kUnavailable,
          "cannot listen at {}: port {} is in use by another program; choose another port, or 0 for any free one",
          to_string(endpoint), endpoint.port);
    }
    return fail(ErrorCode::kUnavailable, "cannot listen at {}: {}", to_string(endpoint), errno_text());
  }
  return socket;
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) tune(socket);
  return socket;
}

Result<Descriptor> connect_to(const Endpoint& endpoint, const Deadline& deadline,
                              const std::function<bool()>& cancelled) {
  MOTLEY_ASSIGN(const AddressList addresses, resolve(endpoint, false));
  Error last{ErrorCode::kUnavailable, "no address", -1};
  int left = 0;  // among which the time is shared: one may never answer
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) ++left;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next, --left) {
    Descriptor socket(
        ::socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol));
    if (!socket.valid()) {
      last = {ErrorCode::kIo, errno_text(), -1};
      continue;
    }
    const Deadline share = left > 1 ? Deadline::after(deadline.remaining() / left) : deadline;
    if (const Status connected = connect_one(socket, *address, share, cancelled); !connected) {
      last = connected.error();
      continue;
    }
    // A connect to a free port of this machine can meet itself when the system picks that port as the source.
    if (to_string(local_endpoint(socket)) == to_string(remote_endpoint(socket))) {
      last = {ErrorCode::kUnavailable, "Connection refused", -1};
      continue;
    }
    tune(socket);
    return socket;
  }
  return fail(last.within(fmt::format("cannot connect to {}", to_string(endpoint))));
}

Endpoint local_endpoint(const Descriptor& socket) {
  return to_endpoint(socket, ::getsockname);
}

Endpoint remote_endpoint(const Descriptor& socket) {
  return to_endpoint(socket, ::getpeername);
}

Result<bool> is_loopback(const std::string& host) {
  MOTLEY_ASSIGN(const AddressList addresses, resolve({host, 0}, true));
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (address->ai_family == AF_INET) {
      if (!is_loopback(reinterpret_cast<const sockaddr_in*>(address->ai_addr)->sin_addr)) return false;
    } else if (!IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address->ai_addr)->sin6_addr)) {
      return false;
    }
  }
  return true;
}

bool is_over_loopback(const Descriptor& socket) {
  return has_loopback(socket, ::getsockname) && has_loopback(socket, ::getpeername);
}

bool is_any_address(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

// A peer that has no room is alive, although it may be asked for that only every two minutes: tcpi_retransmits does not
// count what is sent to it again.
bool is_unanswered(const Descriptor& socket, double seconds) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_retransmits > 0 &&
         info.tcpi_last_ack_recv > 1e3 * seconds;
}

bool wait_for(int descriptor, short events, int milliseconds) {
  pollfd poll{descriptor, events, 0};
  return ::poll(&poll, 1, milliseconds) > 0;
}

}  // namespace motley::net
