#include "motley/net/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "motley/base/os/file.h"

namespace motley::net {
namespace {

constexpr double kAgainSeconds = 0.01;  // where the queue of who listens is full

Result<sockaddr_un> to_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidInput, "'unix:{}': its path has {} bytes; accepted: 1 to {}", path, path.size(),
                sizeof address.sun_path - 1);
  }
  path.copy(address.sun_path, path.size());
  return address;
}

Descriptor make_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int connect_at_once(const Descriptor& socket, const sockaddr_un& address) {
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

// The process at the other end: 0 and user -1 where that is not known.
ucred find_peer(const Descriptor& socket) {
  ucred peer{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t size = sizeof peer;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

// Nobody listens there afterwards, and nothing is there.
Status clear(const std::string& path, const sockaddr_un& address) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) {
    return fail(ErrorCode::kInvalidInput, "'unix:{}' is no socket; accepted: a path where nothing is, or a socket",
                path);
  }
  const Descriptor socket = make_socket();
  const int problem = connect_at_once(socket, address);
  if (problem == ECONNREFUSED && ::unlink(path.c_str()) == 0) return {};
  if (problem == ECONNREFUSED) {
    return fail(ErrorCode::kUnavailable, "cannot replace the socket '{}' of a process that has ended: {}", path,
                errno_text());
  }
  const pid_t process = problem == 0 ? find_peer(socket).pid : 0;
  return fail(ErrorCode::kUnavailable, "cannot listen at 'unix:{}': {} listens there; stop it, or choose another path",
              path, process > 0 ? fmt::format("process {}", process) : "another process");
}

}  // namespace

Result<Descriptor> listen_at_path(const std::string& path, std::optional<gid_t> group) {
  MOTLEY_ASSIGN(const sockaddr_un address, to_address(path));
  // Held until this one listens: another that starts at the same time waits, and sees that.
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const Descriptor folder(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::flock(folder.get(), LOCK_EX) != 0) {
    return fail(ErrorCode::kInvalidInput, "cannot listen at 'unix:{}': its folder: {}", path, errno_text());
  }
  MOTLEY_TRY(clear(path, address));
  Descriptor socket = make_socket();
  // The file has its mode from the beginning.
  if (!socket.valid() || ::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      (group && (::chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0 || ::chmod(path.c_str(), 0660) != 0)) ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return fail(ErrorCode::kUnavailable, "cannot listen at 'unix:{}': {}", path, errno_text());
  }
  return socket;
}

void remove_socket(const std::string& path) {
  ::unlink(path.c_str());
}

uid_t peer_user(const Descriptor& socket) {
  return find_peer(socket).uid;
}

Result<Descriptor> connect_to_path(const std::string& path, const Deadline& deadline) {
  MOTLEY_ASSIGN(const sockaddr_un address, to_address(path));
  for (;;) {
    Descriptor socket = make_socket();
    const int problem = socket.valid() ? connect_at_once(socket, address) : errno;
    if (problem == 0) return socket;
    if (problem != EAGAIN || deadline.passed()) {
      errno = problem;
      return fail(ErrorCode::kUnavailable, "cannot connect to 'unix:{}': {}", path, errno_text());
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + kAgainSeconds);
  }
}

}  // namespace motley::net
