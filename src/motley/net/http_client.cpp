#include "motley/net/http_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <string_view>

#include "motley/base/text.h"
#include "motley/net/channel.h"
#include "motley/net/socket.h"
#include "motley/net/tls.h"
#include "motley/net/unix_socket.h"

namespace motley::net {
namespace {

constexpr std::size_t kMaxHeadBytes = 64 << 10;
constexpr std::size_t kMaxBodyBytes = 1 << 30;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

std::string escape(std::string_view target) {
  std::string text;
  for (const char c : target) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte > ' ' && byte < 0x7f && c != '%' && c != '#' ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return text;
}

struct Head {
  int status = 0;
  std::size_t body_bytes = 0;
};

// Nothing where it is none. An answer to HTTP/1.0 has one body, of the length that it says.
std::optional<Head> parse_head(std::string text) {
  constexpr std::string_view kLength = "\r\ncontent-length:";
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (!text.starts_with("http/1.") || text.size() < 12) return {};
  const auto status = parse_number<int>(std::string_view(text).substr(9, 3));
  const std::size_t at = text.find(kLength);
  if (!status || at == std::string::npos) return {};
  const std::string_view rest = std::string_view(text).substr(at + kLength.size());
  const auto length = parse_number<std::size_t>(trimmed(rest.substr(0, rest.find('\r'))));
  if (!length || *length > kMaxBodyBytes) return {};
  return Head{*status, *length};
}

Status wait(const Channel& channel, short event, const Deadline& deadline) {
  if (wait_for(channel.socket().get(), event, deadline.remaining_milliseconds())) return {};
  return fail(ErrorCode::kTimeout, "no answer within {:.3g} s", deadline.allowed());
}

}  // namespace

Result<Channel> HttpClient::connect() const {
  const Deadline deadline = Deadline::after(seconds_);
  const HttpAddress& address = url_.address;
  MOTLEY_ASSIGN(Descriptor socket,
                address.is_unix() ? connect_to_path(address.path, deadline) : connect_to(address.endpoint, deadline));
  if (!url_.is_encrypted) return Channel(std::move(socket));
  MOTLEY_INVARIANT(certificates_ != nullptr, "an HTTPS client without certificates to judge by");
  auto made = Tls::connector(certificates_, address.endpoint.host);
  Tls& tls = *made;
  Channel channel(std::move(socket), std::move(made));
  while (!tls.established()) {
    MOTLEY_TRY(channel.write({}));
    MOTLEY_TRY(wait(channel, channel.unsent() > 0 ? POLLOUT : POLLIN, deadline));
    MOTLEY_TRY(tls.feed({}));
  }
  return channel;
}

Status HttpClient::send(Channel& channel, std::string text) const {
  const Deadline deadline = Deadline::after(seconds_);
  for (std::size_t gone = 0; gone < text.size() || channel.unsent() > 0;) {
    const iovec part = {text.data() + gone, text.size() - gone};
    MOTLEY_ASSIGN(const std::size_t some, channel.write({&part, gone < text.size() ? 1U : 0U}));
    gone += some;
    if (some == 0 && channel.unsent() + text.size() - gone > 0) MOTLEY_TRY(wait(channel, POLLOUT, deadline));
  }
  return {};
}

Result<HttpAnswer> HttpClient::receive(Channel& channel) const {
  const Deadline deadline = Deadline::after(seconds_);
  const auto no_http = [] { return fail(ErrorCode::kCorrupt, "what answers is no HTTP service of Motley's"); };
  std::string received;
  std::optional<Head> head;
  std::size_t head_bytes = 0;
  while (!head || received.size() < head_bytes + head->body_bytes) {
    std::array<char, 16 << 10> block;
    const iovec part = {block.data(), block.size()};
    MOTLEY_ASSIGN(const std::size_t some, channel.read({&part, 1}));
    if (some == 0) MOTLEY_TRY(wait(channel, POLLIN, deadline));
    received.append(block.data(), some);
    const std::size_t end = head ? 0 : received.find(kEndOfHead);
    if (head || (end == std::string::npos && received.size() <= kMaxHeadBytes)) continue;
    if (end == std::string::npos) return no_http();
    head_bytes = end + kEndOfHead.size();
    head = parse_head(received.substr(0, head_bytes));
    if (!head) return no_http();
  }
  return HttpAnswer{head->status, received.substr(head_bytes, head->body_bytes)};
}

Result<HttpAnswer> HttpClient::ask(const HttpRequest& request) const {
  MOTLEY_ASSIGN(Channel channel, connect());
  const HttpAddress& address = url_.address;
  std::string text =
      fmt::format("{} {} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n", request.method,
                  escape(request.target), address.is_unix() ? "localhost" : to_string(address.endpoint), request.token,
                  request.body.size());
  if (request.method == "POST") text += "Content-Type: application/json\r\n";
  const Status sent = send(channel, text + "\r\n" + request.body);
  auto answer = receive(channel);  // who takes no more may have said why
  const bool says_why = answer || answer.error().code == ErrorCode::kRefused;
  return says_why || sent ? answer : fail(sent.error());
}

}  // namespace motley::net
