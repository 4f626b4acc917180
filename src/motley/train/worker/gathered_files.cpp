#include "motley/train/worker/gathered_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/train/loop/timeline.h"

namespace motley::train {
namespace {

constexpr std::uint32_t kFilesPurpose = 0x1008;  // of connections: see collective::StageChannels for more
constexpr int kClockLooks = 9;                   // of which the quickest counts
constexpr char kLeftOut[] = "[left out: ";       // begins the first line of a log of which this is the end
constexpr std::size_t kLeftOutBytes = 200;       // that this line has at most

enum FrameType : std::uint16_t { kClock = 1, kLog, kTimeline };

struct NamedFile {
  FrameType type;
  std::filesystem::path path;
};
std::array<NamedFile, 2> list_files(const RunDirectory& run, int rank) {
  return {{{kLog, run.log_file(rank)}, {kTimeline, timeline_part(run.folder() / "logs", rank)}}};
}

// What the writer gets of a file, which may not be there.
std::string read_to_gather(const NamedFile& file, std::size_t most_bytes) {
  if (file.type != kLog) return read_file(file.path, most_bytes).value_or("");
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(file.path, unknown);
  if (unknown || bytes <= most_bytes) return read_end(file.path, most_bytes).value_or("");
  std::string end = read_end(file.path, most_bytes - kLeftOutBytes).value_or("");
  end.erase(0, end.find('\n') + 1);  // whole lines
  return fmt::format("{}the first {} of this log, which is whole on the rank's own host]\n{}", kLeftOut,
                     format_bytes(static_cast<double>(bytes - end.size())), end);
}

// A rank's side: answers with its clock as often as it is asked, then sends its files in pieces, each until an empty
// one.
Status send_files(net::Connection& writer, const RunDirectory& run, int rank, const Deadline& deadline,
                  std::size_t most_bytes) {
  for (int look = 0; look < kClockLooks; ++look) {
    MOTLEY_TRY(writer.receive(deadline, "the request for this rank's files"));
    const double now = monotonic_seconds();
    MOTLEY_TRY(writer.send(kClock, 0, std::as_bytes(std::span(&now, 1)), deadline, "this rank's clock"));
  }
  for (const NamedFile& file : list_files(run, rank)) {
    const std::string text = read_to_gather(file, most_bytes);
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

Status receive_file(net::Connection& peer, const NamedFile& file, const Deadline& deadline, std::size_t most_bytes) {
  std::string text;
  for (;;) {
    MOTLEY_ASSIGN(const net::Message message, peer.receive(deadline, "its files"));
    if (message.header.type != file.type || text.size() + message.payload.size() > most_bytes) {
      return fail(ErrorCode::kCorrupt, "{} sent a message of type {} and {} bytes for its files", peer.peer_name(),
                  message.header.type, message.payload.size());
    }
    if (message.payload.empty()) break;
    text.append(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  }
  // The folder may be the rank's own, too, with the whole log.
  std::error_code unknown;
  const bool is_whole = text.starts_with(kLeftOut) && std::filesystem::file_size(file.path, unknown) >= text.size();
  return text.empty() || (is_whole && !unknown) ? Status() : write_file(file.path, text);
}

}  // namespace

Result<ClockOffsets> gather_files(net::Session& session, const RunDirectory& run, std::span<const int> present,
                                  int writer, const Deadline& deadline, std::size_t most_bytes) {
  ClockOffsets offsets;
  const int own = session.membership().rank;
  if (own != writer) {
    MOTLEY_ASSIGN(const auto connection, session.connect(writer, kFilesPurpose, deadline));
    MOTLEY_TRY(send_files(*connection, run, own, deadline, most_bytes));
    return offsets;
  }
  for (const int rank : present) {
    if (rank == own) continue;
    MOTLEY_ASSIGN(const auto connection, session.connect(rank, kFilesPurpose, deadline));
    MOTLEY_ASSIGN(offsets[rank], look_at_clock(*connection, deadline));
    for (const NamedFile& file : list_files(run, rank)) {
      MOTLEY_TRY(receive_file(*connection, file, deadline, most_bytes));
    }
  }
  return offsets;
}

}  // namespace motley::train
