// Sockets and what polls, reads and writes descriptors: these functions take the place of the system's library's in
// this program, and are the simulated cluster's while one of its threads runs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <limits>
#include <span>

#include "tests/simulation/cluster.h"

namespace motley::simulation {
namespace {

class EventFile final : public File {
 public:
  short ready() const override { return static_cast<short>(POLLOUT | (count > 0 ? POLLIN : 0)); }
  std::uint64_t count = 0;
};

template <class Kind>
std::shared_ptr<Kind> find_file(int descriptor) {
  auto found = std::dynamic_pointer_cast<Kind>(simulator().file(descriptor));
  if (!found) errno = EBADF;
  return found;
}

int poll_all(std::span<pollfd> polled, int milliseconds) {
  const double until =
      milliseconds < 0 ? std::numeric_limits<double>::infinity() : simulator().now() + 1e-3 * milliseconds;
  for (;;) {
    Thread& thread = simulator().begin_wait("poll");
    int count = 0;
    for (pollfd& one : polled) {
      one.revents = 0;
      if (one.fd < 0) continue;
      const auto& file = simulator().file(one.fd);
      one.revents = file ? static_cast<short>(file->ready() & (one.events | POLLERR | POLLHUP)) : POLLNVAL;
      if (one.revents != 0) ++count;
      if (file) file->changed.add(thread);
    }
    if (count > 0 || milliseconds == 0 || simulator().now() >= until) return count;
    simulator().wait(until);
  }
}

ssize_t read_from(int descriptor, void* bytes, std::size_t count) {
  const auto& file = simulator().file(descriptor);
  if (auto* socket = dynamic_cast<Socket*>(file.get())) return socket->receive(static_cast<char*>(bytes), count);
  if (auto* event = dynamic_cast<EventFile*>(file.get())) {
    if (event->count == 0) return fail_call(EAGAIN);
    const std::uint64_t value = std::exchange(event->count, 0);
    std::memcpy(bytes, &value, sizeof value);
    return sizeof value;
  }
  if (auto* opened = dynamic_cast<DiskFile*>(file.get())) {
    const std::string& content = opened->inode->content;
    const std::size_t left = content.size() - std::min(content.size(), opened->position);
    count = std::min(count, left);
    std::memcpy(bytes, content.data() + opened->position, count);
    opened->position += count;
    return static_cast<ssize_t>(count);
  }
  return fail_call(EBADF);
}

ssize_t write_to(int descriptor, const void* bytes, std::size_t count) {
  const auto& file = simulator().file(descriptor);
  if (auto* socket = dynamic_cast<Socket*>(file.get())) return socket->send(static_cast<const char*>(bytes), count);
  if (auto* event = dynamic_cast<EventFile*>(file.get())) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    event->count += value;
    event->changed.wake_all();
    return sizeof value;
  }
  if (auto* opened = dynamic_cast<DiskFile*>(file.get())) {
    return cluster().disk.write(*opened, static_cast<const char*>(bytes), count);
  }
  return fail_call(EBADF);
}

// Part after part, as long as each is moved whole.
template <class Move>
ssize_t move_parts(std::span<const iovec> parts, const Move& move) {
  ssize_t total = 0;
  for (const iovec& part : parts) {
    if (part.iov_len == 0) continue;
    const ssize_t moved = move(part.iov_base, part.iov_len);
    if (moved < 0 && total == 0) return -1;
    if (moved <= 0) break;
    total += moved;
    if (static_cast<std::size_t>(moved) < part.iov_len) break;
  }
  return total;
}

}  // namespace
}  // namespace motley::simulation

using namespace motley::simulation;  // NOLINT: what follows has the system's names, in no namespace

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  MOTLEY_REAL(socket, domain, type, protocol);
  simulator().operation();
  return simulator().open(std::make_shared<Socket>(cluster().network, Cluster::caller()));
}

int bind(int descriptor, const sockaddr* address, socklen_t length) noexcept {
  MOTLEY_REAL(bind, descriptor, address, length);
  simulator().operation();
  const auto socket = find_file<Socket>(descriptor);
  return socket ? socket->bind(*reinterpret_cast<const sockaddr_in*>(address)) : -1;
}

int listen(int descriptor, int backlog) noexcept {
  MOTLEY_REAL(listen, descriptor, backlog);
  const auto socket = find_file<Socket>(descriptor);
  return socket ? socket->listen() : -1;
}

int accept4(int descriptor, sockaddr* address, socklen_t* length, int flags) {
  MOTLEY_REAL(accept4, descriptor, address, length, flags);
  simulator().operation();
  const auto socket = find_file<Socket>(descriptor);
  if (!socket) return -1;
  auto accepted = socket->accept();
  if (!accepted) return fail_call(EAGAIN);
  return simulator().open(std::move(accepted));
}

int connect(int descriptor, const sockaddr* address, socklen_t length) {
  MOTLEY_REAL(connect, descriptor, address, length);
  simulator().operation();
  const auto socket = find_file<Socket>(descriptor);
  return socket ? socket->connect(*reinterpret_cast<const sockaddr_in*>(address)) : -1;
}

int getsockname(int descriptor, sockaddr* address, socklen_t* length) noexcept {
  MOTLEY_REAL(getsockname, descriptor, address, length);
  const auto socket = find_file<Socket>(descriptor);
  if (!socket) return -1;
  std::memcpy(address, &socket->local(), sizeof(sockaddr_in));
  *length = sizeof(sockaddr_in);
  return 0;
}

int getpeername(int descriptor, sockaddr* address, socklen_t* length) noexcept {
  MOTLEY_REAL(getpeername, descriptor, address, length);
  const auto socket = find_file<Socket>(descriptor);
  if (!socket) return -1;
  std::memcpy(address, &socket->remote(), sizeof(sockaddr_in));
  *length = sizeof(sockaddr_in);
  return 0;
}

int getsockopt(int descriptor, int level, int name, void* value, socklen_t* length) noexcept {
  MOTLEY_REAL(getsockopt, descriptor, level, name, value, length);
  const auto socket = find_file<Socket>(descriptor);
  if (!socket || level != SOL_SOCKET || name != SO_ERROR) return fail_call(ENOPROTOOPT);
  const int error = socket->take_error();
  std::memcpy(value, &error, sizeof error);
  return 0;
}

int setsockopt(int descriptor, int level, int name, const void* value, socklen_t length) noexcept {
  MOTLEY_REAL(setsockopt, descriptor, level, name, value, length);
  return 0;
}

int shutdown(int descriptor, int how) noexcept {
  MOTLEY_REAL(shutdown, descriptor, how);
  simulator().operation();
  const auto socket = find_file<Socket>(descriptor);
  if (!socket) return -1;
  socket->finish_sending();
  return 0;
}

ssize_t send(int descriptor, const void* bytes, std::size_t count, int flags) {
  MOTLEY_REAL(send, descriptor, bytes, count, flags);
  simulator().operation();
  return write_to(descriptor, bytes, count);
}

ssize_t recv(int descriptor, void* bytes, std::size_t count, int flags) {
  MOTLEY_REAL(recv, descriptor, bytes, count, flags);
  simulator().operation();
  return read_from(descriptor, bytes, count);
}

ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  MOTLEY_REAL(sendmsg, descriptor, message, flags);
  simulator().operation();
  return move_parts({message->msg_iov, message->msg_iovlen},
                    [&](const void* bytes, std::size_t count) { return write_to(descriptor, bytes, count); });
}

ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  MOTLEY_REAL(recvmsg, descriptor, message, flags);
  simulator().operation();
  return move_parts({message->msg_iov, message->msg_iovlen},
                    [&](void* bytes, std::size_t count) { return read_from(descriptor, bytes, count); });
}

ssize_t read(int descriptor, void* bytes, std::size_t count) {
  MOTLEY_REAL(read, descriptor, bytes, count);
  simulator().operation();
  return read_from(descriptor, bytes, count);
}

ssize_t write(int descriptor, const void* bytes, std::size_t count) {
  MOTLEY_REAL(write, descriptor, bytes, count);
  if (descriptor == STDERR_FILENO || descriptor == STDOUT_FILENO) {
    static auto* const real = find_real(&::write, "write");
    return real(descriptor, bytes, count);
  }
  simulator().operation();
  return write_to(descriptor, bytes, count);
}

int close(int descriptor) {
  MOTLEY_REAL(close, descriptor);
  simulator().operation();
  return simulator().close(descriptor) ? 0 : fail_call(EBADF);
}

int poll(pollfd* polled, nfds_t count, int milliseconds) {
  MOTLEY_REAL(poll, polled, count, milliseconds);
  simulator().operation();
  return poll_all({polled, count}, milliseconds);
}

int eventfd(unsigned count, int flags) noexcept {
  MOTLEY_REAL(eventfd, count, flags);
  auto file = std::make_shared<EventFile>();
  file->count = count;
  return simulator().open(std::move(file));
}

int eventfd_read(int descriptor, eventfd_t* value) {
  MOTLEY_REAL(eventfd_read, descriptor, value);
  return read_from(descriptor, value, sizeof *value) == sizeof *value ? 0 : -1;
}

int eventfd_write(int descriptor, eventfd_t value) {
  MOTLEY_REAL(eventfd_write, descriptor, value);
  simulator().operation();
  return write_to(descriptor, &value, sizeof value) == sizeof value ? 0 : -1;
}

// Numeric addresses only.
int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  MOTLEY_REAL(getaddrinfo, host, service, hints, found);
  struct Answer {
    addrinfo info;
    sockaddr_in address;
  };
  auto* answer = static_cast<Answer*>(std::calloc(1, sizeof(Answer)));
  answer->address.sin_family = AF_INET;
  answer->address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(service)));
  if (::inet_pton(AF_INET, host, &answer->address.sin_addr) != 1) {
    std::free(answer);
    return EAI_NONAME;
  }
  answer->info.ai_family = AF_INET;
  answer->info.ai_socktype = SOCK_STREAM;
  answer->info.ai_addrlen = sizeof(sockaddr_in);
  answer->info.ai_addr = reinterpret_cast<sockaddr*>(&answer->address);
  *found = &answer->info;
  return 0;
}

void freeaddrinfo(addrinfo* found) noexcept {
  MOTLEY_REAL(freeaddrinfo, found);
  std::free(found);
}

}  // extern "C"
