#include "motley/net/http_address.h"

#include <filesystem>
#include <string_view>

#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kPlain = "http://";
constexpr std::string_view kEncrypted = "https://";

}  // namespace

std::string to_url(const HttpAddress& address, bool is_encrypted) {
  if (address.is_unix()) return std::string(kUnix) + address.path;
  return std::string(is_encrypted ? kEncrypted : kPlain) + to_string(address.endpoint);
}

Result<HttpUrl> parse_http_url(const std::string& text, const std::string& what) {
  HttpUrl url;
  url.is_encrypted = text.starts_with(kEncrypted);
  if (text.starts_with(kUnix) && text != kUnix) {
    url.address.path = text.substr(kUnix.size());
    return url;
  }
  if (!url.is_encrypted && !text.starts_with(kPlain)) {
    return fail(ErrorCode::kInvalidInput,
                "{}: '{}'; accepted: https://HOST:PORT, http://HOST:PORT, which is in the clear, or unix:/PATH", what,
                text);
  }
  const auto endpoint = parse_endpoint(text.substr((url.is_encrypted ? kEncrypted : kPlain).size()));
  if (!endpoint) return fail(endpoint.error().within(what));
  url.address.endpoint = *endpoint;
  return url;
}

Result<HttpListen> read_http_listen(const HttpFlags& flags, const HttpFlagNames& names) {
  HttpListen listen;
  if (flags.listen.starts_with(kUnix)) {
    if (flags.tls.any()) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: '{}', whose file's mode says who may connect; accepted with {}: HOST:PORT", names.listen,
                  flags.listen, names.tls.certificate);
    }
    if (flags.listen == kUnix) {
      return fail(ErrorCode::kInvalidInput, "{}: '{}'; accepted: unix:/PATH", names.listen, flags.listen);
    }
    // Clients have folders of their own.
    listen.address.path = std::filesystem::absolute(flags.listen.substr(kUnix.size())).string();
    return listen;
  }
  const auto endpoint = parse_endpoint(flags.listen);
  if (!endpoint) return fail(endpoint.error().within(names.listen));
  listen.address.endpoint = *endpoint;
  if (flags.tls.any() && flags.allows_plain) {
    return fail(ErrorCode::kInvalidInput, "{}: off; accepted with {}: auto", names.encryption, names.tls.certificate);
  }
  if (flags.tls.any()) {
    MOTLEY_ASSIGN(listen.certificates, Certificates::read(flags.tls, names.tls, CertificateUse::kHttpServer));
    return listen;
  }
  if (flags.allows_plain) return listen;
  MOTLEY_ASSIGN(const bool loopback, is_loopback(endpoint->host));
  if (loopback) return listen;
  return fail(
      ErrorCode::kInvalidInput,
      "{}: '{}' would be plain HTTP, which others on the network can read, tokens included; accepted: an address "
      "of loopback, unix:/PATH, any address with {} and {}, or {} off",
      names.listen, flags.listen, names.tls.certificate, names.tls.key, names.encryption);
}

}  // namespace motley::net
