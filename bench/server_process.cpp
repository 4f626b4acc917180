// Starts the binary and waits for the address that it writes.
#include "bench/server_process.h"

#include <unistd.h>

#include <filesystem>

#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/net/session.h"

namespace motley::bench {
namespace {

constexpr double kStartSeconds = 30;

std::string token_variable() {
  return "MOTLEY_SERVER_TOKEN=" + ServerProcess::token().hex();
}

}  // namespace

const net::Secret& ServerProcess::token() {
  static const net::Secret secret = net::Secret::generate();
  return secret;
}

Result<ServerProcess> ServerProcess::start(const BenchOptions& options, int cores, const ExchangeJob::Place& place,
                                           const std::vector<std::string>& flags) {
  static int count = 0;
  ServerProcess server;
  const std::filesystem::path address_file =
      std::filesystem::temp_directory_path() / fmt::format("motley-bench-{}-{}.address", ::getpid(), count++);
  std::vector<std::string> command = place.prefix;
  for (const std::string& word :
       {options.motley.string(), std::string("server"), std::string("--listen"),
        (place.address.empty() ? "127.0.0.1" : place.address) + ":0", std::string("--cores"), std::to_string(cores),
        std::string("--address-file"), address_file.string(), std::string("--quiet")}) {
    command.push_back(word);
  }
  command.insert(command.end(), flags.begin(), flags.end());
  MOTLEY_ASSIGN(server.process_, ChildProcess::start(command, {token_variable()}));
  for (const Deadline deadline = Deadline::after(kStartSeconds);;) {
    if (const auto address = read_file(address_file, 256)) {
      server.address_ = address->substr(0, address->find('\n'));
      std::filesystem::remove(address_file);
      return server;
    }
    if (deadline.passed()) return fail(ErrorCode::kTimeout, "a server did not start within {} s", kStartSeconds);
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
}

std::vector<std::string> ServerProcess::environment(std::span<const ServerProcess> servers) {
  std::string addresses;
  for (const ServerProcess& server : servers) addresses += (addresses.empty() ? "" : ",") + server.address_;
  return {"MOTLEY_SERVERS=" + addresses, token_variable()};
}

}  // namespace motley::bench
