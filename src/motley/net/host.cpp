// What identifies a host, and knocking until it opens.
#include "motley/net/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "motley/base/os/file.h"
#include "motley/net/acceptor.h"
#include "motley/net/socket.h"

namespace motley::net {

std::string host_id() {
  std::string id = read_file("/proc/sys/kernel/random/boot_id", 64).value_or("?");
  std::erase(id, '\n');
  struct stat shared{};
  ::stat("/dev/shm", &shared);
  char space[64] = "?";
  const ssize_t length = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return fmt::format("{}/{}:{}/{}/{}", id, shared.st_dev, shared.st_ino,
                     std::string(space, static_cast<std::size_t>(std::max<ssize_t>(length, 0))), ::geteuid());
}

Result<std::unique_ptr<TcpConnection>> connect_to_host(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                                       const Deadline& deadline, bool payload_checksum,
                                                       const std::function<bool()>& cancelled) {
  const auto anybody = [](const Claim&) -> Status { return {}; };
  for (double pause = 0.01;; pause = std::min(0.5, 2 * pause)) {
    auto host = knock(endpoint, secret, own, anybody, deadline, cancelled);
    if (host) {
      Identity identity = host->claim.identity;
      identity.session = own.identity.session;
      identity.epoch = own.identity.epoch;
      identity.purpose = own.identity.purpose;
      return std::make_unique<TcpConnection>(std::move(host->socket), std::move(identity), payload_checksum);
    }
    if (host.error().code == ErrorCode::kRefused || cancelled()) {
      return fail(host.error());
    }
    if (deadline.remaining() <= pause) {
      return fail(ErrorCode::kTimeout, "nobody let this rank in at {} within {:.3g} s: {}", to_string(endpoint),
                  deadline.allowed(), host.error().message);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + pause);
  }
}

}  // namespace motley::net
