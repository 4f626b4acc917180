#include "motley/net/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "motley/base/os/file.h"
#include "motley/net/tls.h"

namespace motley::net {
namespace {

// Encrypted before the socket takes it: enough for one system call to be little, and little enough to stay in the cache
// and not to wait long behind what the socket holds.
constexpr std::size_t kRecordsPerSend = 4;

// A walk through parts, a record at a time.
class Records {
 public:
  explicit Records(std::span<const iovec> parts) : parts_(parts) { skip_empty(); }

  bool done() const { return parts_.empty(); }
  // The next bytes, as many as a record holds or as there are: where one part has them, as they stand there; put
  // together in `staging` where they are in several.
  std::span<const std::byte> next(std::span<std::byte, kTlsRecordBytes> staging) {
    const std::size_t here = std::min(front().size(), kTlsRecordBytes);
    if (here == kTlsRecordBytes || parts_.size() == 1) return take(here);
    std::size_t filled = 0;
    while (!done() && filled < staging.size()) {
      const auto bytes = take(std::min(front().size(), staging.size() - filled));
      std::ranges::copy(bytes, staging.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += bytes.size();
    }
    return staging.first(filled);
  }

 private:
  std::span<const std::byte> front() const {
    return std::span(static_cast<const std::byte*>(parts_.front().iov_base), parts_.front().iov_len).subspan(taken_);
  }
  std::span<const std::byte> take(std::size_t bytes) {
    const auto taken = front().first(bytes);
    taken_ += bytes;
    skip_empty();
    return taken;
  }
  void skip_empty() {
    while (!parts_.empty() && taken_ == parts_.front().iov_len) {
      parts_ = parts_.subspan(1);
      taken_ = 0;
    }
  }

  std::span<const iovec> parts_;
  std::size_t taken_ = 0;  // of the first part
};

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

Channel::Channel(Descriptor socket) : socket_(std::move(socket)) {}

Channel::Channel(Channel&&) noexcept = default;

Channel::Channel(Descriptor socket, std::unique_ptr<Tls> tls) : socket_(std::move(socket)), tls_(std::move(tls)) {
  if (tls_) tls_->read_from(socket_.get());
}

Channel::~Channel() {
  close();
}

std::size_t Channel::unsent() const {
  return tls_ ? tls_->output().size() : 0;
}

bool Channel::has_input() const {
  return tls_ && tls_->has_input();
}

Result<std::size_t> Channel::write(std::span<const iovec> parts) {
  if (tls_) return write_encrypted(parts);
  if (parts.empty()) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  ssize_t written;
  do {
    written = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (written < 0 && errno == EINTR);
  if (written >= 0) return static_cast<std::size_t>(written);
  if (would_block()) return 0;
  return fail(ErrorCode::kPeerLost, "its connection broke while sending: {}", errno_text());
}

Result<std::size_t> Channel::read(std::span<const iovec> parts) {
  if (tls_) return read_encrypted(parts);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  ssize_t got;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) return fail(ErrorCode::kPeerLost, "it closed its connection");
  if (would_block()) return 0;
  return fail(ErrorCode::kPeerLost, "its connection broke: {}", errno_text());
}

Status Channel::send_output() {
  while (unsent() > 0) {
    const auto output = tls_->output();
    const ssize_t written = ::send(socket_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && would_block()) return {};
    if (written < 0) return fail(ErrorCode::kPeerLost, "its connection broke while sending: {}", errno_text());
    tls_->sent(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::size_t> Channel::write_encrypted(std::span<const iovec> parts) {
  std::array<std::byte, kTlsRecordBytes> staging;
  std::size_t taken = 0;
  Records records(parts);
  MOTLEY_TRY(send_output());
  while (!records.done() && unsent() == 0) {
    for (std::size_t record = 0; record < kRecordsPerSend && !records.done(); ++record) {
      const auto bytes = records.next(staging);
      MOTLEY_TRY(tls_->write(bytes));
      taken += bytes.size();
    }
    MOTLEY_TRY(send_output());
  }
  return taken;
}

Result<std::size_t> Channel::read_encrypted(std::span<const iovec> parts) {
  std::size_t filled = 0;
  for (const iovec& part : parts) {
    std::span<std::byte> rest(static_cast<std::byte*>(part.iov_base), part.iov_len);
    while (!rest.empty()) {
      const auto got = tls_->read(rest);
      if (!got && filled == 0) return fail(got.error());
      if (!got || *got == 0) return filled;  // an error comes again with the next read
      filled += *got;
      rest = rest.subspan(*got);
    }
  }
  return filled;
}

void Channel::finish_sending() {
  if (tls_) {
    tls_->end();
    (void)send_output();
  }
  ::shutdown(socket_.get(), SHUT_WR);
}

void Channel::close() {
  if (tls_ && socket_.valid()) {
    tls_->end();
    (void)send_output();
  }
  tls_.reset();
  socket_.close();
}

}  // namespace motley::net
