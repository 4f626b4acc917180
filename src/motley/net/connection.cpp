#include "motley/net/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>

#include "motley/base/os/file.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

// What one call of progress() moves at most in each direction, so that both get their turn.
constexpr std::size_t kBytesPerCall = 1 << 20;
// What one system call reads when the payload is checked, so that its checksum is taken while it is still in the cache.
constexpr std::size_t kBytesPerCheckedRead = 256 << 10;
constexpr std::size_t kFramesPerWrite = 8;
constexpr int kCancelMilliseconds = 20;  // between two looks at whether a wait is cancelled

constexpr std::uint8_t kFlagPayloadChecksum = 1;

// As it stands on the wire.
struct FrameLayout {
  std::uint32_t magic = kFrameMagic;
  std::uint8_t version = kProtocolVersion;
  std::uint8_t flags = 0;
  std::uint16_t type = 0;
  std::uint32_t payload_checksum = 0;
  std::uint32_t checksum = 0;
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t tag = 0;
  std::uint64_t length = 0;
};
static_assert(sizeof(FrameLayout) == kFrameBytes && std::endian::native == std::endian::little);

std::uint32_t header_checksum(FrameLayout header) {
  header.checksum = 0;
  return crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace

FrameBytes encode_frame(const Frame& frame) {
  FrameLayout header{.flags = frame.has_payload_checksum ? kFlagPayloadChecksum : std::uint8_t{0},
                     .type = frame.type,
                     .payload_checksum = frame.payload_checksum,
                     .session = frame.session,
                     .epoch = frame.epoch,
                     .tag = frame.tag,
                     .length = frame.length};
  header.checksum = header_checksum(header);
  return std::bit_cast<FrameBytes>(header);
}

Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  FrameLayout header;
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(&header, 1)).begin());
  if (header.magic != kFrameMagic) {
    return fail(ErrorCode::kCorrupt, "the frame begins with {:#010x}; {:#010x} was expected", header.magic,
                kFrameMagic);
  }
  if (header.version != kProtocolVersion) {
    return fail(ErrorCode::kRefused, "the frame has protocol version {}; this side speaks version {}", header.version,
                kProtocolVersion);
  }
  if (const std::uint32_t computed = header_checksum(header); header.checksum != computed) {
    return fail(ErrorCode::kCorrupt, "the frame header's checksum is {:#010x}; its bytes give {:#010x}",
                header.checksum, computed);
  }
  if ((header.flags & ~kFlagPayloadChecksum) != 0) {
    return fail(ErrorCode::kRefused, "the frame has unknown flags {:#04x}", header.flags);
  }
  return Frame{header.flags == kFlagPayloadChecksum,
               header.type,
               header.payload_checksum,
               header.session,
               header.epoch,
               header.tag,
               header.length};
}

Status check_frame(const Frame& frame, std::uint64_t session, std::uint64_t epoch) {
  if (frame.session != session) {
    return fail(ErrorCode::kRefused, "the frame is of session {:016x}; this side is in session {:016x}", frame.session,
                session);
  }
  if (frame.epoch != epoch) {
    return fail(ErrorCode::kRefused, "the frame is of epoch {}; this side is in epoch {}", frame.epoch, epoch);
  }
  return {};
}

Connection::Connection(Channel channel, Identity peer, bool payload_checksum)
    : channel_(std::move(channel)),
      peer_(std::move(peer)),
      name_(fmt::format("{} at {}", peer_.rank < 0 ? "the service" : fmt::format("rank {}", peer_.rank),
                        to_string(remote_endpoint(socket())))),
      payload_checksum_(payload_checksum && !is_encrypted()) {}

tl::unexpected<Error> Connection::broken(ErrorCode code, const std::string& why) {
  failure_ = Error{code, fmt::format("{}: {}", name_, why), peer_.rank};
  return fail(*failure_);
}

void Connection::post_send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload) {
  sends_.push_back({.type = type, .tag = tag, .payload = payload});
}

void Connection::post_owned(std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload) {
  Outgoing& frame = sends_.emplace_back();
  frame.type = type;
  frame.tag = tag;
  frame.owned = std::move(payload);
  frame.payload = frame.owned;
}

void Connection::post_receive(std::uint16_t type, std::uint64_t tag, std::span<std::byte> into) {
  receives_.push_back({type, tag, into});
}

Result<bool> Connection::progress() {
  if (failure_) return fail(*failure_);
  MOTLEY_ASSIGN(const bool wrote, write_some());
  MOTLEY_ASSIGN(const bool read, read_posted());
  return wrote || read;
}

void Connection::seal(Outgoing& frame) const {
  frame.header = encode_frame({.has_payload_checksum = payload_checksum_,
                               .type = frame.type,
                               .payload_checksum = payload_checksum_ ? crc32c(frame.payload) : 0,
                               .session = peer_.session,
                               .epoch = peer_.epoch,
                               .tag = frame.tag,
                               .length = frame.payload.size()});
  frame.sealed = true;
}

Result<bool> Connection::write_some() {
  const std::size_t unsent = channel_.unsent();
  if (unsent > 0) {
    if (const auto sent = channel_.write({}); !sent) return broken(sent.error().code, sent.error().message);
  }
  // The last frame stays until no record of it waits for the socket, so that pending_sends() tells of that.
  const auto drop_sent = [this] {
    while (!sends_.empty() && sends_.front().sealed && sent_ >= kFrameBytes + sends_.front().payload.size() &&
           (sends_.size() > 1 || channel_.unsent() == 0)) {
      sent_ -= kFrameBytes + sends_.front().payload.size();
      sends_.pop_front();
    }
  };
  drop_sent();
  bool moved = channel_.unsent() < unsent;
  std::size_t budget = kBytesPerCall;
  while (!sends_.empty() && budget > 0) {
    std::array<iovec, 2 * kFramesPerWrite> parts;
    std::size_t count = 0;
    std::size_t total = 0;
    std::size_t skip = sent_;
    const auto add = [&](std::span<const std::byte> bytes) {
      const std::size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      bytes = bytes.subspan(skipped);
      bytes = bytes.first(std::min(bytes.size(), budget - total));
      if (!bytes.empty()) {
        parts[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
        total += bytes.size();
      }
    };
    for (std::size_t i = 0; i < std::min(sends_.size(), kFramesPerWrite) && total < budget; ++i) {
      if (!sends_[i].sealed) seal(sends_[i]);
      add(sends_[i].header);
      add(sends_[i].payload);
    }
    if (total == 0) break;
    const auto written = channel_.write(std::span(parts).first(count));
    if (!written) return broken(written.error().code, written.error().message);
    if (*written == 0) break;
    moved = true;
    budget -= *written;
    sent_ += *written;
    bytes_sent_.fetch_add(*written, std::memory_order_relaxed);
    drop_sent();
    if (*written < total) break;  // the socket is full
  }
  return moved;
}

Result<std::size_t> Connection::read_into(std::span<std::byte> payload) {
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  if (header_filled_ < kFrameBytes) {
    parts[count++] = {header_.data() + header_filled_, kFrameBytes - header_filled_};
  }
  if (!payload.empty()) {
    parts[count++] = {payload.data(), payload.size()};
  }
  const auto got = channel_.read(std::span(parts).first(count));
  if (!got) return broken(got.error().code, got.error().message);
  const std::size_t bytes = *got;
  if (bytes == 0) return 0;
  const std::size_t of_header = std::min(bytes, kFrameBytes - header_filled_);
  header_filled_ += of_header;
  if (of_header > 0 && header_filled_ == kFrameBytes) MOTLEY_TRY(check_header());
  const std::size_t of_payload = bytes - of_header;
  if (of_payload > 0 && frame_.has_payload_checksum) checksum_ = crc32c(payload.first(of_payload), checksum_);
  landed_ += of_payload;
  return bytes;
}

Status Connection::check_header() {
  landed_ = 0;
  checksum_ = 0;
  const auto decoded = decode_frame(header_);
  const Status accepted = decoded ? check_frame(*decoded, peer_.session, peer_.epoch) : fail(decoded.error());
  if (!accepted) return broken(accepted.error().code, accepted.error().message);
  frame_ = *decoded;
  if (receives_.empty()) {
    if (frame_.length > kMaxReceiveBytes) {
      return broken(ErrorCode::kCorrupt,
                    fmt::format("it sent a frame of type {}, tag {} with {} bytes; at most {} are accepted here",
                                frame_.type, frame_.tag, frame_.length, kMaxReceiveBytes));
    }
    return {};
  }
  const Posted& front = receives_.front();
  if (frame_.type != front.type || frame_.tag != front.tag || frame_.length != front.into.size()) {
    return broken(ErrorCode::kCorrupt,
                  fmt::format("it sent a frame of type {}, tag {}, {} bytes; type {}, tag {}, {} bytes was expected",
                              frame_.type, frame_.tag, frame_.length, front.type, front.tag, front.into.size()));
  }
  return {};
}

Status Connection::finish_frame() {
  if (frame_.has_payload_checksum && checksum_ != frame_.payload_checksum) {
    return broken(
        ErrorCode::kCorrupt,
        fmt::format("the payload of its frame of type {}, tag {} has checksum {:#010x}; {:#010x} was announced",
                    frame_.type, frame_.tag, checksum_, frame_.payload_checksum));
  }
  header_filled_ = 0;
  landed_ = 0;
  return {};
}

Result<bool> Connection::read_posted() {
  bool moved = false;
  std::size_t budget = kBytesPerCall;
  while (!receives_.empty() && budget > 0) {
    const std::span<std::byte> rest = receives_.front().into.subspan(landed_);
    const bool checked = header_filled_ < kFrameBytes || frame_.has_payload_checksum;
    const std::size_t most = checked ? std::min(budget, kBytesPerCheckedRead) : budget;
    MOTLEY_ASSIGN(const std::size_t bytes, read_into(rest.first(std::min(rest.size(), most))));
    if (bytes == 0) break;
    moved = true;
    budget -= std::min(budget, bytes);
    if (header_filled_ == kFrameBytes && landed_ == receives_.front().into.size()) {
      MOTLEY_TRY(finish_frame());
      receives_.pop_front();
    }
  }
  return moved;
}

Result<std::optional<Message>> Connection::try_receive() {
  MOTLEY_INVARIANT(receives_.empty(), "receive() was called while receives are posted");
  if (failure_) return fail(*failure_);
  for (;;) {
    if (header_filled_ == kFrameBytes && landed_ == frame_.length) {
      MOTLEY_TRY(finish_frame());
      return Message{{frame_.type, frame_.tag, frame_.length}, std::exchange(inbox_, {})};
    }
    MOTLEY_ASSIGN(const std::size_t bytes, read_into(std::span(inbox_).subspan(std::min(landed_, inbox_.size()))));
    if (bytes == 0) return std::nullopt;
    if (header_filled_ == kFrameBytes && inbox_.size() != frame_.length) inbox_.resize(frame_.length);
  }
}

Status Connection::send(std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload,
                        const Deadline& deadline, const std::string& what, const std::function<bool()>& cancelled) {
  MOTLEY_INVARIANT(sends_.empty(), "send() was called while sends are posted");
  post_send(type, tag, payload);
  return flush(deadline, what, cancelled);
}

Status Connection::flush(const Deadline& deadline, const std::string& what, const std::function<bool()>& cancelled) {
  while (wants_to_write()) {
    if (failure_) {
      sends_.clear();
      return fail(*failure_);
    }
    if (auto written = write_some(); !written) {
      sends_.clear();  // a payload is the caller's, who may try again
      return fail(written.error());
    }
    if (!wants_to_write()) break;
    const bool is_cancelled = cancelled && cancelled();
    if (is_cancelled || deadline.passed()) {
      // A payload is the caller's, and half of it may be gone.
      sends_.clear();
      if (is_cancelled) return broken(ErrorCode::kPeerLost, fmt::format("it had not taken {} yet", what));
      return broken(ErrorCode::kTimeout, fmt::format("it did not take {} within {:.3g} s", what, deadline.allowed()));
    }
    const int left = deadline.remaining_milliseconds();
    wait_for(descriptor(), POLLOUT, cancelled ? std::min(left, kCancelMilliseconds) : left);
  }
  return {};
}

Result<Message> Connection::receive(const Deadline& deadline, const std::string& what) {
  for (;;) {
    MOTLEY_ASSIGN(auto message, try_receive());
    if (message) return std::move(*message);
    if (deadline.passed()) {
      // What has landed is kept: a later call goes on with the same frame.
      return fail(
          Error{ErrorCode::kTimeout,
                fmt::format("{}: it {} {} within {:.3g} s", name_,
                            header_filled_ > 0 ? "sent only a part of" : "did not send", what, deadline.allowed()),
                peer_.rank});
    }
    wait_for(descriptor(), POLLIN, deadline.remaining_milliseconds());
  }
}

void Connection::keep_unsent_below(std::size_t bytes) {
  const int most = static_cast<int>(bytes);
  ::setsockopt(descriptor(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof most);
}

void Connection::end_if_unanswered() {
  if (failure_ || !is_unanswered(socket())) return;
  (void)broken(ErrorCode::kPeerLost, fmt::format("its machine has acknowledged nothing for {} s", kGoneSeconds));
}

void Connection::finish_sending() {
  channel_.finish_sending();
}

}  // namespace motley::net
