// The header that stands before every payload on a connection, written and read by pure functions. Bytes from the
// network go through decode_frame before anything is believed: magic, version, checksum, then session and epoch.
//
// Layout, little-endian, 48 bytes (docs/reference/wire-format.md):
//   0 magic u32 | 4 version u8 | 5 flags u8 | 6 type u16 | 8 payload CRC-32C u32 | 12 header CRC-32C u32
//   16 session u64 | 24 epoch u64 | 32 tag u64 | 40 length u64
// The header's checksum is taken over its 48 bytes with the checksum's own field zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/base/result.h"

namespace motley::net {

inline constexpr std::size_t kFrameBytes = 48;
inline constexpr std::uint32_t kFrameMagic = 0x464c544dU;  // "MTLF"
inline constexpr std::uint8_t kProtocolVersion = 3;
// What receive() allocates at most for one frame. Larger payloads need a posted buffer of exactly their size.
inline constexpr std::uint64_t kMaxReceiveBytes = 1 << 20;

struct Frame {
  bool has_payload_checksum = false;
  std::uint16_t type = 0;
  std::uint32_t payload_checksum = 0;
  std::uint64_t session = 0;
  std::uint64_t epoch = 0;
  std::uint64_t tag = 0;
  std::uint64_t length = 0;  // payload bytes

  bool operator==(const Frame&) const = default;
};

using FrameBytes = std::array<std::byte, kFrameBytes>;

FrameBytes encode_frame(const Frame& frame);
// kCorrupt for bytes that are no frame, kRefused for another version of the protocol.
Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes);
// kRefused, with both values, for a frame of another session or of another epoch.
Status check_frame(const Frame& frame, std::uint64_t session, std::uint64_t epoch);

}  // namespace motley::net
