#include "motley/scheduling/service/client.h"

#include <fcntl.h>
#include <sys/file.h>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/net/session.h"
#include "motley/net/socket.h"

namespace motley::scheduling {
namespace {

constexpr double kAnswerSeconds = 60;

// A service holds the lock of its folder (store.cpp) for as long as it lives, and its address is its own for as long.
bool is_served(const std::filesystem::path& folder) {
  const Descriptor lock(::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC));
  return !lock.valid() || ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace

Result<Client> Client::of(const std::filesystem::path& folder, const std::string& address,
                          const net::CertificateFiles& tls) {
  auto own = read_file(folder / "address", 4096);
  if (std::error_code problem; !own && (std::filesystem::exists(folder / "address", problem) || problem)) {
    return fail(own.error().within("--state-dir"));
  }
  if (!own) {
    return fail(ErrorCode::kInvalidInput,
                "--state-dir: no service has been started on '{}'; accepted: the folder given to motley schedule serve",
                folder.string());
  }
  while (own->ends_with('\n')) own->pop_back();
  MOTLEY_ASSIGN(const net::HttpUrl url,
                address.empty() ? net::parse_http_url(*own, "the file '" + (folder / "address").string() + "'")
                                : net::parse_http_url(address, "--address"));
  if (tls.any() && !url.is_encrypted) {
    return fail(ErrorCode::kInvalidInput, "--tls-ca: the service at {} speaks no HTTPS; accepted for an https URL",
                net::to_url(url.address, false));
  }
  std::shared_ptr<const net::Certificates> certificates;
  if (url.is_encrypted) {
    MOTLEY_ASSIGN(certificates, net::Certificates::read(tls, net::tls_flags(), net::CertificateUse::kHttpClient));
  }
  // Whoever else listens there now, on a machine that is shared, is not to have the token.
  const bool is_here = url.address.is_unix() || net::is_loopback(url.address.endpoint.host).value_or(false);
  if (address.empty() && !url.is_encrypted && is_here && !is_served(folder)) {
    return fail(ErrorCode::kUnavailable, "the scheduler at {} does not answer: no service runs on '{}'",
                net::to_url(url.address, false), folder.string());
  }
  MOTLEY_ASSIGN(const net::Secret token, net::Secret::from_file((folder / "token").string()));
  return Client(net::HttpClient(url, std::move(certificates), kAnswerSeconds), token.hex());
}

Result<Client::Json> Client::get(const std::string& path) {
  return ask({.method = "GET", .target = path, .body = {}});
}

Result<Client::Json> Client::post(const std::string& path, const std::string& body) {
  return ask({.method = "POST", .target = path, .body = body});
}

Result<Client::Json> Client::remove(const std::string& path) {
  return ask({.method = "DELETE", .target = path, .body = {}});
}

Result<Client::Json> Client::ask(net::HttpRequest request) const {
  request.token = token_;
  const std::string url = client_.url();
  const auto answer = client_.ask(request);
  if (!answer && answer.error().code == ErrorCode::kRefused) {
    return fail(answer.error().within("the scheduler at " + url));
  }
  if (!answer) {
    return fail(ErrorCode::kUnavailable, "the scheduler at {} does not answer: {}", url, answer.error().message);
  }
  Json json = Json::parse(answer->body, nullptr, false);
  if (json.is_discarded()) {
    return fail(ErrorCode::kInternal, "the scheduler at {} answers {} without JSON", url, answer->status);
  }
  if (answer->status != 200) {
    return fail(answer->status == 400 ? ErrorCode::kInvalidInput : ErrorCode::kRefused, "the scheduler at {}: {}", url,
                json.value("error", "no reason given"));
  }
  return json;
}

}  // namespace motley::scheduling
