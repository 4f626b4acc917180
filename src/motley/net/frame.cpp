// Encoding and decoding of frame headers.
#include "motley/net/frame.h"

#include <algorithm>

#include "motley/base/os/file.h"
#include "motley/net/bytes.h"

namespace motley::net {
namespace {

constexpr std::uint8_t kFlagPayloadChecksum = 1;
constexpr std::size_t kChecksumAt = 12;

std::uint32_t header_checksum(std::span<const std::byte, kFrameBytes> bytes) {
  constexpr std::array<std::byte, 4> kZeros{};
  std::uint32_t checksum = crc32c(bytes.first<kChecksumAt>());
  checksum = crc32c(kZeros, checksum);
  return crc32c(bytes.subspan<kChecksumAt + 4>(), checksum);
}

}  // namespace

FrameBytes encode_frame(const Frame& frame) {
  const auto write = [&frame](std::uint32_t checksum) {
    ByteWriter writer;
    writer.put(kFrameMagic);
    writer.put(kProtocolVersion);
    writer.put(static_cast<std::uint8_t>(frame.has_payload_checksum ? kFlagPayloadChecksum : 0));
    writer.put(frame.type);
    writer.put(frame.payload_checksum);
    writer.put(checksum);
    writer.put(frame.session);
    writer.put(frame.epoch);
    writer.put(frame.tag);
    writer.put(frame.length);
    FrameBytes bytes;
    std::ranges::copy(writer.take(), bytes.begin());
    return bytes;
  };
  return write(header_checksum(write(0)));
}

Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  ByteReader reader(bytes);
  if (const auto magic = reader.get<std::uint32_t>(); magic != kFrameMagic) {
    return fail(ErrorCode::kCorrupt, "the frame begins with {:#010x}; {:#010x} was expected", magic, kFrameMagic);
  }
  if (const auto version = reader.get<std::uint8_t>(); version != kProtocolVersion) {
    return fail(ErrorCode::kRefused, "the frame has protocol version {}; this side speaks version {}", version,
                kProtocolVersion);
  }
  const auto flags = reader.get<std::uint8_t>();
  Frame frame;
  frame.type = reader.get<std::uint16_t>();
  frame.payload_checksum = reader.get<std::uint32_t>();
  const auto checksum = reader.get<std::uint32_t>();
  frame.session = reader.get<std::uint64_t>();
  frame.epoch = reader.get<std::uint64_t>();
  frame.tag = reader.get<std::uint64_t>();
  frame.length = reader.get<std::uint64_t>();
  if (const std::uint32_t computed = header_checksum(bytes); checksum != computed) {
    return fail(ErrorCode::kCorrupt, "the frame header's checksum is {:#010x}; its bytes give {:#010x}", checksum,
                computed);
  }
  if ((flags & ~kFlagPayloadChecksum) != 0) {
    return fail(ErrorCode::kRefused, "the frame has unknown flags {:#04x}", flags);
  }
  frame.has_payload_checksum = (flags & kFlagPayloadChecksum) != 0;
  return frame;
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

}  // namespace motley::net
