// What ranks tell each other on control connections, as values and their fields, from which the bytes follow
// (encode_message and decode_message of message_fields.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/message_fields.h"
#include "motley/net/roster.h"
#include "motley/net/session.h"

namespace motley::net {

// Frame types of control connections.
enum ControlType : std::uint16_t {
  kJoin = 0xff01,        // a rank to rank 0, or a newcomer to a member: here I am; empty back to a newcomer
  kWaiting = 0xff02,     // rank 0 to those who joined: these ranks are still missing
  kMembership = 0xff03,  // rank 0 to all: the job starts
  kHeartbeat = 0xff04,   // both ways, each second: what ranks were last doing
  kAbort = 0xff05,       // a rank to rank 0: I give up; rank 0 to all: the job has failed
  kLeave = 0xff06,       // both ways, empty: I leave in order
  kRoster = 0xff07,      // among all, in an elastic session: who is there
  kRunning = 0xff08,     // a member to who asks: the job that runs
  kReady = 0xff09,       // a newcomer to the members: the ranks that it is connected to
};

inline constexpr std::size_t kMaxRanks = 4096;  // what a membership may hold; messages with more are refused
inline constexpr NumberIs kRank = NumberIs::between(0, kMaxRanks - 1);

struct JoinMessage {
  int size = 0;   // ranks that the sender was started for
  Member member;  // its address may be empty: as rank 0 sees it
};

struct RunningJob {
  Membership membership;     // of the member that was asked; places of ranks that never were have no address
  std::vector<int> present;  // ascending
};

enum class RankState : std::uint8_t { kPresent = 0, kLeft = 1 };

struct Heartbeat {
  int rank = 0;
  RankState state = RankState::kPresent;
  std::uint64_t step = 0;
  double age = 0;     // seconds since it was received, when this was sent
  std::string phase;  // at most 63 bytes
};

struct AbortMessage {
  int reporter = 0;  // who gave up
  Error error;       // .rank: whom it is about, -1 for nobody
};

template <class Archive>
void fields(Archive& archive, Member& member) {
  archive.required("host_id", member.host_id);
  archive.required("address", member.address);
  archive.required("port", member.port);
  archive.required("process", member.process, NumberIs::kFinite);
}

template <class Archive>
void fields(Archive& archive, JoinMessage& message) {
  archive.required("size", message.size, NumberIs::kFinite);
  archive.required("member", message.member);
}

template <class Archive>
void fields(Archive& archive, Membership& membership) {
  archive.required("session", membership.session);
  archive.required("epoch", membership.epoch);
  archive.required("rank", membership.rank);
  archive.required("members", membership.members);
}

template <class Archive>
void fields(Archive& archive, RunningJob& job) {
  archive.required("membership", job.membership);
  archive.required("present", job.present, kRank);
}

template <class Archive>
void fields(Archive& archive, Heartbeat& heartbeat) {
  auto milliseconds = static_cast<std::uint64_t>(std::max(0.0, heartbeat.age) * 1e3);
  archive.required("rank", heartbeat.rank, kRank);
  archive.required("state", heartbeat.state, NumberIs::between(0, 1));
  archive.required("step", heartbeat.step);
  archive.required("age", milliseconds);
  archive.required("phase", heartbeat.phase, NumberIs::between(0, 63));
  heartbeat.age = static_cast<double>(milliseconds) * 1e-3;
}

template <class Archive>
void fields(Archive& archive, Ballot& ballot) {
  archive.required("round", ballot.round);
  archive.required("rank", ballot.rank, NumberIs::between(-1, kMaxRanks - 1));
}

template <class Archive>
void fields(Archive& archive, RosterMessage& message) {
  archive.required("kind", message.kind, NumberIs::between(0, static_cast<int>(RosterMessage::Kind::kInstall)));
  archive.required("epoch", message.epoch);
  archive.required("ballot", message.ballot);
  archive.required("accepted", message.accepted);
  archive.required("members", message.members, kRank);
}

template <class Archive>
void fields(Archive& archive, AbortMessage& message) {
  archive.required("reporter", message.reporter, kRank);
  archive.required("rank", message.error.rank, NumberIs::between(-1, kMaxRanks - 1));
  error_code(archive, message.error.code);
  archive.required("message", message.error.message, NumberIs::between(0, 16384));
}

// Of the receiver. Errors: kCorrupt for bytes that are no membership.
inline Result<Membership> decode_membership(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(Membership membership, decode_message<Membership>(bytes, "membership"));
  if (membership.members.size() > kMaxRanks || membership.rank >= membership.size()) {
    return fail(ErrorCode::kCorrupt, "a malformed membership message: rank {} of {}", membership.rank,
                membership.size());
  }
  return membership;
}

inline Result<RunningJob> decode_running_job(std::span<const std::byte> bytes) {
  MOTLEY_ASSIGN(RunningJob job, decode_message<RunningJob>(bytes, "running job"));
  const int size = job.membership.size();
  const auto is_place = [size](int rank) { return rank < size; };
  if (job.present.empty() || !std::ranges::is_sorted(job.present) || !std::ranges::all_of(job.present, is_place)) {
    return fail(ErrorCode::kCorrupt, "a malformed message about a running job of {} ranks", size);
  }
  return job;
}

}  // namespace motley::net
