#include "motley/scheduling/service/client.h"

#include <httplib.h>

#include "motley/base/os/file.h"
#include "motley/net/session.h"

namespace motley::scheduling {
namespace {

constexpr time_t kAnswerSeconds = 60;

}  // namespace

Client::Client(std::string address, const std::string& token)
    : address_(std::move(address)), client_(std::make_shared<httplib::Client>("http://" + address_)) {
  client_->set_bearer_token_auth(token.c_str());
  client_->set_read_timeout(kAnswerSeconds);
}

Result<Client> Client::of(const std::filesystem::path& folder) {
  auto address = read_file(folder / "address", 1024);
  if (!address) {
    return fail(ErrorCode::kInvalidInput,
                "--state-dir: no service has been started on '{}'; accepted: the folder given to motley schedule serve",
                folder.string());
  }
  while (address->ends_with('\n')) address->pop_back();
  MOTLEY_ASSIGN(const net::Secret token, net::Secret::from_file((folder / "token").string()));
  return Client(*address, token.hex());
}

Result<Client::Json> Client::get(const std::string& path) {
  return take(client_->Get(path.c_str()));
}

Result<Client::Json> Client::post(const std::string& path, const std::string& body) {
  return take(client_->Post(path.c_str(), body, "application/json"));
}

Result<Client::Json> Client::remove(const std::string& path) {
  return take(client_->Delete(path.c_str()));
}

Result<Client::Json> Client::take(const httplib::Result& result) const {
  if (!result) {
    return fail(ErrorCode::kUnavailable, "the scheduler at {} does not answer: {}", address_,
                httplib::to_string(result.error()));
  }
  Json json = Json::parse(result->body, nullptr, false);
  if (json.is_discarded()) {
    return fail(ErrorCode::kInternal, "the scheduler at {} answers {} without JSON", address_, result->status);
  }
  if (result->status != 200) {
    return fail(result->status == 400 ? ErrorCode::kInvalidInput : ErrorCode::kRefused, "the scheduler at {}: {}",
                address_, json.value("error", "no reason given"));
  }
  return json;
}

}  // namespace motley::scheduling
