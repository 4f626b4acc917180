// Encodings of the control messages.
#include "motley/net/messages.h"

#include <algorithm>

#include "motley/net/bytes.h"

namespace motley::net {
namespace {

constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxPhaseBytes = 63;
constexpr std::size_t kMaxReasonBytes = 16384;

void put_rank(ByteWriter& writer, int rank) {
  writer.put(static_cast<std::uint32_t>(rank));
}

int get_rank(ByteReader& reader) {
  return static_cast<int>(reader.get<std::uint32_t>());
}

bool is_rank(int rank) {
  return rank >= 0 && rank < static_cast<int>(kMaxRanks);
}

void put_member(ByteWriter& writer, const Member& member) {
  writer.put_text(member.host_id, kMaxNameBytes);
  writer.put_text(member.address, kMaxNameBytes);
  writer.put(member.port);
  writer.put(static_cast<std::uint64_t>(member.process));
}

Member get_member(ByteReader& reader) {
  Member member;
  member.host_id = reader.get_text(kMaxNameBytes);
  member.address = reader.get_text(kMaxNameBytes);
  member.port = reader.get<std::uint16_t>();
  member.process = static_cast<std::int64_t>(reader.get<std::uint64_t>());
  return member;
}

tl::unexpected<Error> malformed(const char* what, std::span<const std::byte> bytes) {
  return fail(ErrorCode::kCorrupt, "a malformed {} message of {} bytes", what, bytes.size());
}

}  // namespace

std::vector<std::byte> encode(const JoinMessage& message) {
  ByteWriter writer;
  put_rank(writer, message.size);
  put_member(writer, message.member);
  return writer.take();
}

std::vector<std::byte> encode(const std::vector<int>& missing) {
  ByteWriter writer;
  put_rank(writer, static_cast<int>(missing.size()));
  for (const int rank : missing) {
    put_rank(writer, rank);
  }
  return writer.take();
}

std::vector<std::byte> encode(const Membership& membership) {
  ByteWriter writer;
  writer.put(membership.session);
  writer.put(membership.epoch);
  put_rank(writer, membership.rank);
  put_rank(writer, membership.size());
  for (const Member& member : membership.members) {
    put_member(writer, member);
  }
  return writer.take();
}

std::vector<std::byte> encode(const std::vector<Pulse>& pulses) {
  ByteWriter writer;
  put_rank(writer, static_cast<int>(pulses.size()));
  for (const Pulse& pulse : pulses) {
    put_rank(writer, pulse.rank);
    writer.put(static_cast<std::uint8_t>(pulse.state));
    writer.put(pulse.step);
    writer.put(static_cast<std::uint64_t>(std::max(0.0, pulse.age) * 1e3));
    writer.put_text(pulse.phase, kMaxPhaseBytes);
  }
  return writer.take();
}

std::vector<std::byte> encode(const AbortMessage& message) {
  ByteWriter writer;
  put_rank(writer, message.reporter);
  put_rank(writer, message.error.rank);
  writer.put(static_cast<std::uint16_t>(message.error.code));
  writer.put_text(message.error.message, kMaxReasonBytes);
  return writer.take();
}

Result<JoinMessage> decode_join(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  JoinMessage message;
  message.size = get_rank(reader);
  message.member = get_member(reader);
  if (!reader.complete()) {
    return malformed("join", bytes);
  }
  return message;
}

Result<std::vector<int>> decode_waiting(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto count = reader.get<std::uint32_t>();
  std::vector<int> missing;
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    missing.push_back(get_rank(reader));
  }
  if (!reader.complete() || !std::ranges::all_of(missing, is_rank)) {
    return malformed("waiting", bytes);
  }
  return missing;
}

Result<Membership> decode_membership(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Membership membership;
  membership.session = reader.get<std::uint64_t>();
  membership.epoch = reader.get<std::uint64_t>();
  membership.rank = get_rank(reader);
  const auto count = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    membership.members.push_back(get_member(reader));
  }
  if (!reader.complete() || membership.members.size() > kMaxRanks || membership.rank < 0 ||
      membership.rank >= membership.size()) {
    return malformed("membership", bytes);
  }
  return membership;
}

Result<std::vector<Pulse>> decode_heartbeat(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto count = reader.get<std::uint32_t>();
  std::vector<Pulse> pulses;
  bool good = true;
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    Pulse& pulse = pulses.emplace_back();
    pulse.rank = get_rank(reader);
    const auto state = reader.get<std::uint8_t>();
    pulse.state = static_cast<RankState>(state);
    pulse.step = reader.get<std::uint64_t>();
    pulse.age = static_cast<double>(reader.get<std::uint64_t>()) * 1e-3;
    pulse.phase = reader.get_text(kMaxPhaseBytes);
    good = good && state <= 1 && is_rank(pulse.rank);
  }
  if (!reader.complete() || !good) {
    return malformed("heartbeat", bytes);
  }
  return pulses;
}

Result<AbortMessage> decode_abort(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  AbortMessage message;
  message.reporter = get_rank(reader);
  message.error.rank = get_rank(reader);
  const auto code = reader.get<std::uint16_t>();
  message.error.code = static_cast<ErrorCode>(code);
  message.error.message = reader.get_text(kMaxReasonBytes);
  if (!reader.complete() || code > static_cast<std::uint16_t>(ErrorCode::kInternal) || !is_rank(message.reporter) ||
      message.error.rank < -1 || message.error.rank >= static_cast<int>(kMaxRanks)) {
    return malformed("abort", bytes);
  }
  return message;
}

}  // namespace motley::net
