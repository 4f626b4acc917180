// What the control messages hold, field by field; the bytes follow from that.
#include "motley/net/messages.h"

#include <algorithm>

#include "motley/net/message_fields.h"

namespace motley::net {
namespace {

constexpr NumberIs kPhase = NumberIs::between(0, 63);      // bytes
constexpr NumberIs kReason = NumberIs::between(0, 16384);  // likewise
constexpr NumberIs kRank = NumberIs::between(0, kMaxRanks - 1);

}  // namespace

// Found by argument-dependent lookup, so not in the anonymous namespace.
template <class Archive>
static void fields(Archive& archive, Member& member) {
  archive.required("host_id", member.host_id);
  archive.required("address", member.address);
  archive.required("port", member.port);
  archive.required("process", member.process, NumberIs::kFinite);
}

template <class Archive>
static void fields(Archive& archive, JoinMessage& message) {
  archive.required("size", message.size, NumberIs::kFinite);
  archive.required("member", message.member);
}

template <class Archive>
static void fields(Archive& archive, Membership& membership) {
  archive.required("session", membership.session);
  archive.required("epoch", membership.epoch);
  archive.required("rank", membership.rank);
  archive.required("members", membership.members);
}

template <class Archive>
static void fields(Archive& archive, Heartbeat& heartbeat) {
  auto milliseconds = static_cast<std::uint64_t>(std::max(0.0, heartbeat.age) * 1e3);
  archive.required("rank", heartbeat.rank, kRank);
  archive.required("state", heartbeat.state, NumberIs::between(0, 1));
  archive.required("step", heartbeat.step);
  archive.required("age", milliseconds);
  archive.required("phase", heartbeat.phase, kPhase);
  heartbeat.age = static_cast<double>(milliseconds) * 1e-3;
}

template <class Archive>
static void fields(Archive& archive, AbortMessage& message) {
  archive.required("reporter", message.reporter, kRank);
  archive.required("rank", message.error.rank, NumberIs::between(-1, kMaxRanks - 1));
  error_code(archive, message.error.code);
  archive.required("message", message.error.message, kReason);
}

std::vector<std::byte> encode(const JoinMessage& message) {
  return encode_message(message);
}

std::vector<std::byte> encode(const std::vector<int>& missing) {
  return encode_message(missing);
}

std::vector<std::byte> encode(const Membership& membership) {
  return encode_message(membership);
}

std::vector<std::byte> encode(const std::vector<Heartbeat>& heartbeats) {
  return encode_message(heartbeats);
}

std::vector<std::byte> encode(const AbortMessage& message) {
  return encode_message(message);
}

Result<JoinMessage> decode_join(std::span<const std::byte> bytes) {
  return decode_message<JoinMessage>(bytes, "join");
}

Result<std::vector<int>> decode_waiting(std::span<const std::byte> bytes) {
  return decode_message<std::vector<int>>(bytes, "waiting", kRank);
}

Result<Membership> decode_membership(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(Membership membership, decode_message<Membership>(bytes, "membership"));
  if (membership.members.size() > kMaxRanks || membership.rank >= membership.size()) {
    return fail(ErrorCode::kCorrupt, "a malformed membership message: rank {} of {}", membership.rank,
                membership.size());
  }
  return membership;
}

Result<std::vector<Heartbeat>> decode_heartbeat(std::span<const std::byte> bytes) {
  return decode_message<std::vector<Heartbeat>>(bytes, "heartbeat");
}

Result<AbortMessage> decode_abort(std::span<const std::byte> bytes) {
  return decode_message<AbortMessage>(bytes, "abort");
}

}  // namespace motley::net
