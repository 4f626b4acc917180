// Talks to a service, which it finds by its state folder: the address and the token are there.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "motley/base/result.h"

namespace httplib {
class Client;
class Result;
}  // namespace httplib

namespace motley::scheduling {

class Client {
 public:
  using Json = nlohmann::ordered_json;

  // Errors: kInvalidInput where no service has been started on this folder.
  static motley::Result<Client> of(const std::filesystem::path& folder);

  // What the service answers (motley/scheduling/service/service.h). Errors: kUnavailable where it does not, and with
  // its own words kInvalidInput or kRefused.
  motley::Result<Json> get(const std::string& path);
  motley::Result<Json> post(const std::string& path, const std::string& body);
  motley::Result<Json> remove(const std::string& path);

 private:
  Client(std::string address, const std::string& token);
  motley::Result<Json> take(const httplib::Result& result) const;

  std::string address_;
  std::shared_ptr<httplib::Client> client_;
};

}  // namespace motley::scheduling
