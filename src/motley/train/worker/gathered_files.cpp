#include "motley/train/worker/gathered_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "motley/base/os/file.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {
namespace {

constexpr std::uint32_t kFilesPurpose = 0x1008;   // of connections: see collective::StageChannels for more
constexpr int kClockLooks = 9;                    // of which the quickest counts
constexpr std::uint64_t kMaxFileBytes = 1 << 28;  // of a log or a part of a timeline; what is longer is cut off

enum FrameType : std::uint16_t { kClock = 1, kLog, kTimeline };

struct NamedFile {
  FrameType type;
  std::filesystem::path path;
};
std::array<NamedFile, 2> list_files(const RunDirectory& run, int rank) {
  return {{{kLog, run.log_file(rank)}, {kTimeline, timeline_part(run.folder() / "logs", rank)}}};
}

// A rank's side: answers with its clock as often as it is asked, then sends its files in pieces, each until an empty
// one.
Status send_files(net::Connection& writer, const RunDirectory& run, int rank, const Deadline& deadline) {
  for (int look = 0; look < kClockLooks; ++look) {
    MOTLEY_TRY(writer.receive(deadline, "the request for this rank's files"));
    const double now = monotonic_seconds();
    MOTLEY_TRY(writer.send(kClock, 0, std::as_bytes(std::span(&now, 1)), deadline, "this rank's clock"));
  }
  for (const NamedFile& file : list_files(run, rank)) {
    const std::string text = read_file(file.path, kMaxFileBytes).value_or("");  // there may be none
    for (std::size_t begin = 0; begin < text.size(); begin += net::kMaxReceiveBytes) {
      const auto piece =
          std::span(text).subspan(begin, std::min<std::size_t>(net::kMaxReceiveBytes, text.size() - begin));
      MOTLEY_TRY(writer.send(file.type, 0, std::as_bytes(piece), deadline, "this rank's files"));
    }
    MOTLEY_TRY(writer.send(file.type, 0, {}, deadline, "this rank's files"));
  }
  return {};
}

Result<double> look_at_clock(net::Connection& peer, const Deadline& deadline) {
  double ahead = 0, shortest = std::numeric_limits<double>::infinity();
  for (int look = 0; look < kClockLooks; ++look) {
    const double asked = monotonic_seconds();
    MOTLEY_TRY(peer.send(kClock, 0, {}, deadline, "the request for its files"));
    MOTLEY_ASSIGN(const net::Message answer, peer.receive(deadline, "its clock"));
    const double answered = monotonic_seconds();
    double theirs = 0;
    if (answer.header.type != kClock || answer.payload.size() != sizeof theirs) {
      return fail(ErrorCode::kCorrupt, "{} sent a message of type {} and {} bytes for its clock", peer.peer_name(),
                  answer.header.type, answer.payload.size());
    }
    std::ranges::copy(answer.payload, std::as_writable_bytes(std::span(&theirs, 1)).begin());
    if (answered - asked >= shortest) continue;
    shortest = answered - asked;
    ahead = theirs - (asked + answered) / 2;
  }
  return ahead;
}

Status receive_file(net::Connection& peer, const NamedFile& file, const Deadline& deadline) {
  std::string text;
  for (;;) {
    MOTLEY_ASSIGN(const net::Message message, peer.receive(deadline, "its files"));
    if (message.header.type != file.type || text.size() + message.payload.size() > kMaxFileBytes) {
      return fail(ErrorCode::kCorrupt, "{} sent a message of type {} and {} bytes for its files", peer.peer_name(),
                  message.header.type, message.payload.size());
    }
    if (message.payload.empty()) break;
    text.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  }
  return text.empty() ? Status() : write_file(file.path, text);
}

}  // namespace

Result<ClockOffsets> gather_files(net::Session& session, const RunDirectory& run, std::span<const int> present,
                                  int writer, const Deadline& deadline) {
  ClockOffsets offsets;
  const int own = session.membership().rank;
  if (own != writer) {
    MOTLEY_ASSIGN(const auto connection, session.connect(writer, kFilesPurpose, deadline));
    MOTLEY_TRY(send_files(*connection, run, own, deadline));
    return offsets;
  }
  for (const int rank : present) {
    if (rank == own) continue;
    MOTLEY_ASSIGN(const auto connection, session.connect(rank, kFilesPurpose, deadline));
    MOTLEY_ASSIGN(offsets[rank], look_at_clock(*connection, deadline));
    for (const NamedFile& file : list_files(run, rank)) MOTLEY_TRY(receive_file(*connection, file, deadline));
  }
  return offsets;
}

}  // namespace motley::train
