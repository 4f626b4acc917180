// What ranks tell each other on control connections: values and their encodings, as pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/membership.h"

namespace motley::net {

// Frame types of control connections.
enum ControlType : std::uint16_t {
  kJoin = 0xff01,        // a rank to rank 0: here I am
  kWaiting = 0xff02,     // rank 0 to those who joined: these ranks are still missing
  kMembership = 0xff03,  // rank 0 to all: the job starts
  kHeartbeat = 0xff04,   // both ways, each second: what ranks were last doing
  kAbort = 0xff05,       // a rank to rank 0: I give up; rank 0 to all: the job has failed
  kLeave = 0xff06,       // both ways, empty: I leave in order
};

inline constexpr std::size_t kMaxRanks = 4096;  // what a membership may hold; messages with more are refused

struct JoinMessage {
  int size = 0;   // ranks that the sender was started for
  Member member;  // its address may be empty: as rank 0 sees it
};

enum class RankState : std::uint8_t { kPresent = 0, kLeft = 1 };

struct Pulse {
  int rank = 0;
  RankState state = RankState::kPresent;
  std::uint64_t step = 0;
  double age = 0;     // seconds since it was heard, when this was sent
  std::string phase;  // at most 63 bytes
};

struct AbortMessage {
  int reporter = 0;  // who gave up
  Error error;       // .rank: whom it is about, -1 for nobody
};

std::vector<std::byte> encode(const JoinMessage& message);
std::vector<std::byte> encode(const std::vector<int>& missing);
std::vector<std::byte> encode(const Membership& membership);
std::vector<std::byte> encode(const std::vector<Pulse>& pulses);
std::vector<std::byte> encode(const AbortMessage& message);

// kCorrupt for bytes that are no such message. Nothing is allocated for what is not there.
Result<JoinMessage> decode_join(std::span<const std::byte> bytes);
Result<std::vector<int>> decode_waiting(std::span<const std::byte> bytes);
Result<Membership> decode_membership(std::span<const std::byte> bytes);  // .rank: the receiver's
Result<std::vector<Pulse>> decode_heartbeat(std::span<const std::byte> bytes);
Result<AbortMessage> decode_abort(std::span<const std::byte> bytes);

}  // namespace motley::net
