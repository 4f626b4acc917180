// Talks to a service, which it finds by its state folder: the address, as a URL, and the token are there.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "motley/base/result.h"
#include "motley/net/http_client.h"

namespace motley::scheduling {

class Client {
 public:
  using Json = nlohmann::ordered_json;

  // `address`: its URL where that is not the one in the folder; "": it is. A service at an https URL is known by the
  // files' CA, or else the system's. Errors (kInvalidInput) name the flag: where no service has been started on this
  // folder, and what is wrong with the files.
  static Result<Client> of(const std::filesystem::path& folder, const std::string& address = {},
                           const net::CertificateFiles& tls = {});

  // What the service answers (motley/scheduling/service/service.h). Errors: kUnavailable where it does not, and with
  // its own words kInvalidInput or kRefused.
  Result<Json> get(const std::string& path);
  Result<Json> post(const std::string& path, const std::string& body);
  Result<Json> remove(const std::string& path);

 private:
  Client(net::HttpClient client, std::string token) : client_(std::move(client)), token_(std::move(token)) {}
  Result<Json> ask(net::HttpRequest request) const;

  net::HttpClient client_;
  std::string token_;
};

}  // namespace motley::scheduling
