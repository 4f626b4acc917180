// What workers and a parameter server say to each other, and the memory they share where they are on one host.
// docs/explanation/parameter-server.md tells the protocol as a story.
//
// A worker has one control connection to each server, for joining, the state, and bad news; and one channel to each of
// the server's cores, for gradients and weights.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "motley/base/os/shared_counter.h"
#include "motley/base/result.h"
#include "motley/collective/wire_form.h"
#include "motley/kernels/update.h"
#include "motley/net/region.h"

namespace motley::ps {

inline constexpr int kMaxRanks = 4096;  // of a job

// Purposes of connections to a server, as the handshake tells them apart.
inline constexpr std::uint32_t kServerControl = 0x2000;
inline constexpr std::uint32_t kServerChannel = 0x2100;  // plus the core
inline constexpr std::uint32_t kServerReplica = 0x4000;  // plus the core, from a server to the one that keeps its state
// To measure the link, whose frames are sent back, or to ask whether the server goes on.
inline constexpr std::uint32_t kServerProbe = 0x3000;
inline constexpr std::size_t kProbeFrameBytes = 256 << 10;  // of a probe's frame, at most
inline constexpr std::size_t kProbeFrames = 4;              // of a probe that are under way, at most

enum ServerFrame : std::uint16_t {
  kServerInfo = 0x201,      // server: who I am
  kServerJoin,              // worker: the job, as I see it
  kServerJoined,            // server: all ranks have joined
  kServerLoad,              // worker (rank 0): a part of the state; tag: StatePart
  kServerLoaded,            // every worker: I have loaded; tag: updates made so far. Server, once all have: begin
  kServerSave,              // worker (rank 0): send me this part; server: here it is; tag: StatePart
  kServerFailed,            // server, or a rack's server to another's: the job has failed, and why
  kServerLeave,             // worker: I leave in order
  kServerMissing,           // worker: whom do you wait for? Server: these ranks, u32 each
  kServerReceived = 0x220,  // rack's server: how much has come from your rack? Server: a ReceivedFrom each
  kServerAnnounce =
      0x2001,             // channel, both ways: an Announcement, or from the server of an asynchronous job, after the
                          // bucket's weights, the rounds that each rank has in them, u32 each; tag: round and bucket
  kServerPush,            // channel, worker: a segment's gradient; tag: round and segment
  kServerWeights,         // channel, server: a segment's new weights; tag: round and segment
  kServerWakeup,          // channel, worker: look at the shared memory
  kServerKept,            // replica, its keeper: the segment's state is here; tag: round and segment; 0: begin
  kServerState = 0x2100,  // replica, plus the array's number as in StatePart: a segment's; tag: round and segment
  kServerProbeFrame = 0x3001,  // probe, both ways
  kServerProgress,  // probe, worker: do all of your cores go on? Server: for how long one has not, in seconds
};

// Tags of channels: the low half of the round (how often the bucket was started, from 1), and an index.
constexpr std::uint64_t channel_tag(std::uint32_t round, std::size_t index) {
  return static_cast<std::uint64_t>(round) << 32 | static_cast<std::uint32_t>(index);
}

struct ServerInfo {
  std::string host_id;
  int cores = 1;
};

// Which ranks share a rack, and which server is theirs: what a job with a server in each rack says of itself. Racks are
// numbered as their servers are given. Where ranks come and go, a rack may have none; its server still has its part of
// the job between the racks.
struct RackPlan {
  std::vector<int> rank_racks;       // empty: racks are not told apart
  std::vector<std::string> servers;  // of the racks, "host:port"
  bool between_servers = false;      // the racks' servers are the ranks: size and rank count those of list_racks()
  double seconds = 0;                // that the racks' servers may take to meet

  bool empty() const { return rank_racks.empty(); }
  int racks() const { return static_cast<int>(servers.size()); }
  std::vector<int> list_ranks(int rack) const;
  // Those that have ranks, in the order of their lowest ones: so rank 0 is in the first.
  std::vector<int> list_racks() const;
  bool operator==(const RackPlan& other) const {
    return rank_racks == other.rank_racks && servers == other.servers && between_servers == other.between_servers;
  }
};

// `rank_racks`: for each rank the index of its server. kInvalidInput where that is no server, or a server has no rank
// and that is not allowed.
Result<RackPlan> make_rack_plan(std::span<const std::string> servers, std::span<const int> rank_racks, int size,
                                bool may_be_empty = false);

// Some cores of one server, counted over all servers.
struct BinRange {
  int first = 0;
  int count = 0;
  bool contains(int bin) const { return bin >= first && bin < first + count; }
  bool operator==(const BinRange&) const = default;
};

// Of a job whose ranks come and go. Its ranks join anew in each epoch, with one more than before in their connections'
// identity, and the weights and the optimizer's state are taken over from the epoch before, as they were after so many
// updates.
struct ElasticJoin {
  double kept_seconds = 0;    // for which the server keeps the state while no rank is there; 0: ranks do not change
  std::uint64_t updates = 0;  // that all ranks have: what was begun after them counts for nothing
  // Where servers keep each other's state: of which this one keeps it; who keeps this one's ("host:port"; empty:
  // nobody); and those of a lost server, which it has instead.
  BinRange kept;
  std::string keeper;
  BinRange adopted;
  bool operator==(const ElasticJoin&) const = default;
};

struct ServerJoin {
  int size = 1;       // ranks of the job
  int bins = 1;       // cores of all servers that the job uses
  int first_bin = 0;  // of this server
  int cores = 0;      // of this server, that the job uses; 0: all
  std::uint64_t chunk_bytes = 0;
  bool is_async = false;       // each rank's push updates the weights by itself
  bool is_reversible = false;  // an update can be taken back; in memory only
  collective::WireForm wire;   // of pushes over channels
  kernels::UpdateOptions update;
  std::vector<std::uint64_t> bucket_elements;
  std::vector<double> bin_speeds;  // of the cores of all servers, for the chunk map; empty: all equal
  std::string host_id;
  net::RegionAddress region;  // of this rank's gradients; nowhere where it does not share memory
  // Whether the region has room for the weights after the gradients, and frames over channels carry neither, but only
  // say when they are there: of a rank on the server's host while other ranks or servers are elsewhere.
  bool values_in_region = false;
  RackPlan racks;  // where not empty, the server knows bins and cores better than the rank
  ElasticJoin elastic;
};

struct ServerJoined {
  net::RegionAddress region;  // of the server, for this job; nowhere: gradients go over the channels
  std::uint64_t region_bytes = 0;
  bool may_spin = false;
  int bins = 0;            // with racks: cores of all servers that the job uses, and
  int cores = 0;           // of this one, where the rank's segments go: that of bin b to core b mod cores
  bool has_state = false;  // of the epoch before; else the ranks load it

  // With racks: those whose servers have no part of it, and get what is loaded.
  std::vector<int> racks_without_state;
};

// How many frames a rack's server has had from a rank of its rack.
struct ReceivedFrom {
  std::uint32_t rank = 0;
  std::uint32_t unused = 0;
  std::uint64_t frames = 0;
};

// A part of the job's state: array 0 is the weights, array k the k-th of the optimizer; pieces of kPieceElements cut a
// segment into frames of a control connection.
inline constexpr std::size_t kPieceElements = 128 << 10;
struct StatePart {
  std::uint8_t array = 0;
  std::uint32_t segment = 0;
  std::uint32_t piece = 0;  // below 2^24
  std::uint64_t tag() const {
    return static_cast<std::uint64_t>(array) << 56 | static_cast<std::uint64_t>(segment) << 24 | piece;
  }
  static StatePart of(std::uint64_t tag) {
    return {static_cast<std::uint8_t>(tag >> 56), static_cast<std::uint32_t>(tag >> 24),
            static_cast<std::uint32_t>(tag & 0xffffff)};
  }
};

// Of Announcement::ahead: any number of rounds.
inline constexpr std::uint32_t kAnyStaleness = std::numeric_limits<std::uint32_t>::max();

// What goes with a bucket's gradient, and comes back with its weights (then `weight` is the total). In an asynchronous
// job `weight` is the rank's share of a whole step, at most one, and the answer waits until no rank is more than
// `ahead` rounds behind. Where updates can be taken back, `update` counts them: the same one again is made in place of
// the one before.
struct Announcement {
  std::uint64_t step = 0;
  double weight = 0;
  double learning_rate = 0;
  std::uint64_t ahead = 0;
  double factor = 1;  // of the gradient, beside its weight
  std::uint64_t update = 0;
};
static_assert(sizeof(Announcement) == 48);

std::vector<std::byte> encode(const ServerInfo& info);
std::vector<std::byte> encode(ServerJoin join);
std::vector<std::byte> encode(const ServerJoined& joined);
std::vector<std::byte> encode(const Error& error);
// kCorrupt for bytes that are no such message.
Result<ServerInfo> decode_server_info(std::span<const std::byte> bytes);
Result<ServerJoin> decode_server_join(std::span<const std::byte> bytes);
Result<ServerJoined> decode_server_joined(std::span<const std::byte> bytes);
Result<Error> decode_server_failed(std::span<const std::byte> bytes);
// The answer to kServerMissing, without what is no rank of so many.
std::vector<int> decode_missing_ranks(std::span<const std::byte> bytes, int size);
std::vector<std::byte> encode_server_progress(double stuck_seconds);
// The answer to kServerProgress; kCorrupt where it is none.
Result<double> decode_server_progress(std::span<const std::byte> bytes);

// Values as they stand in memory, for a frame that keeps its own copy.
template <class Range>
std::vector<std::byte> copy_bytes(const Range& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// The region that a server makes for a job whose ranks are all on its host: first the control words, then, on pages of
// their own, the weights, of an asynchronous job once for each rank, and where updates can be taken back twice.
// Gradients are in a region of each rank, buckets one after the other as weights are here.
class ServerRegion {
 public:
  // Whether a core sleeps, so that whoever finishes a count has to ring it.
  struct alignas(64) ThreadState {
    std::atomic<std::uint32_t> asleep;
  };
  struct alignas(64) BucketState {
    SharedCounter arrived;  // ranks that have started, over all rounds
    SharedCounter updated;  // segments that are done, over all rounds
  };
  struct alignas(64) Announced {
    Announcement by_round[2];          // by round mod 2
    double time;                       // of the start, on the host's monotonic clock, for metrics
    std::atomic<std::uint32_t> round;  // started last
  };

  // Of an asynchronous job, by bucket and rank: segments whose weights stand in the rank's copy, over all rounds.
  using Answered = SharedCounter;

  ServerRegion() = default;
  // `reversible_segments`: how many the model has, where updates can be taken back; else 0.
  ServerRegion(std::byte* data, std::span<const std::uint64_t> bucket_elements, int cores, int size, bool is_async,
               std::size_t reversible_segments);
  static std::size_t bytes(std::span<const std::uint64_t> bucket_elements, int cores, int size, bool is_async,
                           std::size_t reversible_segments);

  ThreadState& core(std::size_t core) const { return at<ThreadState>(0, core); }
  BucketState& bucket(std::size_t bucket) const { return at<BucketState>(buckets_at_, bucket); }
  Announced& announced(std::size_t bucket, std::size_t rank) const {
    return at<Announced>(announced_at_, bucket * size_ + rank);
  }
  Answered& answered(std::size_t bucket, std::size_t rank) const {
    return at<Answered>(answered_at_, bucket * size_ + rank);
  }
  // The rounds of each rank that are in the bucket's weights which `rank` got last.
  std::span<std::uint32_t> rounds(std::size_t bucket, std::size_t rank) const {
    return {&at<std::uint32_t>(rounds_at_, (bucket * size_ + rank) * size_), size_};
  }
  // Where updates can be taken back: the sum of the squares of a segment's gradient, as its last update had it.
  double& squares(std::size_t segment) const { return at<double>(squares_at_, segment); }
  std::byte* values() const { return data_ + values_at_; }
  std::byte* rank_values(std::size_t rank) const { return values() + rank * value_bytes_; }
  // Where updates can be taken back: the weights after this one.
  std::byte* values_after(std::uint64_t update) const { return values() + update % 2 * value_bytes_; }

 private:
  template <class T>
  T& at(std::size_t offset, std::size_t index) const {
    return reinterpret_cast<T*>(data_ + offset)[index];
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t answered_at_ = 0;
  std::size_t rounds_at_ = 0;
  std::size_t squares_at_ = 0;
  std::size_t value_bytes_ = 0;
  std::size_t buckets_at_ = 0;
  std::size_t announced_at_ = 0;
  std::size_t values_at_ = 0;
};

}  // namespace motley::ps
