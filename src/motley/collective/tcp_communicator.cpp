// Collective operations over TCP, between all pairs of ranks.
//
// Each pair has two connections. Over the first, values go to the rank that sums them; over the second, finished values
// go to all. An all-reduce is cut into segments, and a segment into a part for each rank:
//
//   scatter   each rank sends its values of part p to rank p, which adds up what it gets in the order of the ranks;
//   gather    rank p sends the sum of part p to all others, into their buffers.
//
// So every rank sends and receives 2 (N - 1) / N times the buffer, the least possible, in two message times. A
// reduce-scatter is the first half, an all-gather, a broadcast and a barrier are the second half. A buffer that is too
// small to be cut goes whole to every rank, all of which add it up: one message time.
//
// On each connection the frames of all operations follow each other in the order of the operations, and within one in
// that of its segments; so receives are posted without asking what comes, and tags only check it. Sums need a place for
// what others send; there are kWindow of these for each peer, and TCP's flow control holds back what finds none.
// Nothing else waits for anything, so that the ranks cannot block each other:
//   - a finished part cannot arrive in a buffer before this rank's values of that part have left, as it contains them;
//   - the sum of a buffer that goes whole is written once this rank's values have gone to all.
#include <sys/socket.h>

#include <algorithm>
#include <deque>

#include "motley/base/os/memory.h"
#include "motley/collective/communicator.h"
#include "motley/collective/waiting.h"
#include "motley/net/connection.h"
#include "motley/net/wait_set.h"

namespace motley::collective {
namespace {

class TcpCommunicator final : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> create(net::Session& session, const Deadline& deadline) {
    std::unique_ptr<TcpCommunicator> made(new TcpCommunicator(session));
    MOTLEY_TRY(made->connect(deadline));
    made->begin();
    return made;
  }

  ~TcpCommunicator() override { end(); }

  const char* transport() const override { return "tcp"; }

 private:
  static constexpr std::uint32_t kScatterPurpose = 0x1005;  // of connections: see StageChannels for more
  static constexpr std::uint32_t kGatherPurpose = 0x1006;
  static constexpr std::uint16_t kFrameTypes = 0x120;  // and the kind
  static constexpr std::size_t kWholeBytes = 32 << 10;
  static constexpr std::size_t kPartBytes = 256 << 10;
  static constexpr std::size_t kSmallestPartBytes = 16 << 10;
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kWindow = 3;
  static constexpr double kHealthSeconds = 0.02;  // between two looks at the session while waiting

  // An operation under way.
  struct Operation {
    const Pending* pending;
    bool is_whole = false;                  // an all-reduce whose buffer goes whole to every rank
    std::size_t first = 0;                  // the number of its first scattered segment, of all operations' ones
    std::size_t segments = 0;               // that are scattered
    std::size_t part_bytes = 0;             // of a segment, at most
    std::size_t receives = 0;               // of scattered segments that are posted
    std::size_t reduced = 0;                // segments that are summed
    std::size_t gathers = 0;                // segments that are gathered
    std::size_t gather_sends = 0;           // of these that are posted
    std::size_t receives_left = 0;          // of both kinds
    std::vector<std::uint64_t> last_sends;  // by channel: the number of the last frame

    const Collective& what() const { return pending->what; }
    std::uint64_t tag(std::size_t segment) const { return pending->number << 20 | (segment & 0xfffff); }
    std::uint16_t frame_type() const { return static_cast<std::uint16_t>(kFrameTypes + static_cast<int>(what().kind)); }
  };

  struct Expected {
    Operation* operation;
    bool is_scattered;
  };

  // A connection of a pair, and what is under way on it.
  struct Channel {
    int peer;
    std::unique_ptr<net::Connection> connection;
    std::uint64_t sent = 0;  // frames posted, ever
    std::deque<Expected> expected;
    std::size_t scattered = 0;  // segments that have arrived, ever

    std::uint64_t gone() const { return sent - connection->pending_sends(); }
  };

  // Where a part of a segment lies in a buffer.
  struct Part {
    std::size_t begin;
    std::size_t bytes;
  };

  explicit TcpCommunicator(net::Session& session) : Communicator(session) {}

  std::size_t ranks() const { return static_cast<std::size_t>(size_); }

  // Pairs in the order of the lower rank, then of the higher: no two ranks wait for each other's later ones.
  Status connect(const Deadline& deadline) {
    const bool over_loopback = std::ranges::all_of(session_.membership().members, [](const net::Member& member) {
      return member.address.starts_with("127.") || member.address == "::1" || member.address == "localhost";
    });
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      for (auto [channels, purpose] : {std::pair(&scatter_, kScatterPurpose), std::pair(&gather_, kGatherPurpose)}) {
        MOTLEY_ASSIGN(auto connection, session_.connect(peer, purpose, deadline));
        // The system lets megabytes pile up in a loopback socket, more than the caches hold.
        const int bytes = 512 << 10;
        if (over_loopback) ::setsockopt(connection->descriptor(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        channels->push_back({.peer = peer, .connection = std::move(connection)});
      }
    }
    MOTLEY_ASSIGN(landing_, Pages::allocate(kWindow * scatter_.size() * kPartBytes, "what other ranks send"));
    return {};
  }

  std::uint64_t count_segments(const Collective&) const override { return 1; }

  void queued() override { waits_.wake(); }

  Status finish(Pending& oldest) override {
    for (;;) {
      adopt_queued();
      auto moved = advance();
      if (!moved) return fail(find_cause(session_, moved.error()).within(oldest.name()));
      if (is_done(operations_.front())) {
        operations_.pop_front();
        return {};
      }
      if (*moved) continue;
      MOTLEY_TRY(check(oldest, [this] { return missing_ranks(); }));
      for (const auto* channels : {&scatter_, &gather_}) {
        for (const Channel& channel : *channels) waits_.add(*channel.connection, !channel.expected.empty());
      }
      waits_.end_after(kHealthSeconds);
      waits_.wait();
    }
  }

  void adopt_queued() {
    const std::lock_guard lock(mutex_);
    for (std::size_t index = operations_.size(); index < queue_.size(); ++index) adopt(queue_[index]);
  }

  void adopt(const Pending& pending) {
    Operation& made = operations_.emplace_back(Operation{.pending = &pending});
    const Collective& what = made.what();
    made.last_sends.resize(2 * scatter_.size());
    if (what.kind == CollectiveKind::kAllReduce || what.kind == CollectiveKind::kReduceScatter) {
      made.is_whole = what.kind == CollectiveKind::kAllReduce && what.input.size() <= kWholeBytes;
      const std::size_t share = what.input.size() / ranks();
      made.part_bytes = std::clamp(share / 4, kSmallestPartBytes, kPartBytes) / kLine * kLine;
      made.segments = made.is_whole ? 1 : std::max<std::size_t>(1, (share + made.part_bytes - 1) / made.part_bytes);
      if (what.kind == CollectiveKind::kAllReduce && !made.is_whole) {
        const std::size_t segment_bytes = made.part_bytes * ranks();
        made.segments = (what.input.size() + segment_bytes - 1) / segment_bytes;
        made.gathers = made.segments;
      }
    } else {
      made.gathers = 1;
    }
    made.first = segments_;
    segments_ += made.segments;
    made.receives_left = made.segments * scatter_.size();
    post_scatter_sends(made);
    post_gather_receives(made);
  }

  // Part `rank` of a segment. An all-reduce's segments are cut into parts, a reduce-scatter's parts into segments.
  Part part(const Operation& operation, std::size_t segment, int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    const std::size_t bytes = operation.what().input.size();
    if (operation.is_whole) return {0, bytes};
    if (operation.what().kind == CollectiveKind::kReduceScatter) {
      const std::size_t begin = segment * operation.part_bytes;
      return {index * (bytes / ranks()) + begin, std::min(operation.part_bytes, bytes / ranks() - begin)};
    }
    const std::size_t segment_begin = segment * operation.part_bytes * ranks();
    const std::size_t length = std::min(operation.part_bytes * ranks(), bytes - segment_begin);
    const std::size_t lines = (length + kLine - 1) / kLine;
    const std::size_t most = (lines + ranks() - 1) / ranks() * kLine;  // the last segment is shorter
    const std::size_t begin = std::min(length, index * most);
    return {segment_begin + begin, std::min(length, begin + most) - begin};
  }

  void post_send(std::vector<Channel>& channels, std::size_t index, Operation& operation, std::size_t segment,
                 std::span<const std::byte> payload) {
    Channel& channel = channels[index];
    channel.connection->post_send(operation.frame_type(), operation.tag(segment), payload);
    operation.last_sends[index + (&channels == &gather_ ? scatter_.size() : 0)] = ++channel.sent;
  }

  void post_scatter_sends(Operation& operation) {
    for (std::size_t segment = 0; segment < operation.segments; ++segment) {
      for (std::size_t index = 0; index < scatter_.size(); ++index) {
        const Part theirs = part(operation, segment, scatter_[index].peer);
        post_send(scatter_, index, operation, segment, operation.what().input.subspan(theirs.begin, theirs.bytes));
      }
    }
  }

  void post_gather_receives(Operation& operation) {
    const Collective& what = operation.what();
    for (std::size_t segment = 0; segment < operation.gathers; ++segment) {
      for (Channel& channel : gather_) {
        if (what.kind == CollectiveKind::kBroadcast && what.root != channel.peer) continue;
        Part into{0, 0};
        if (what.kind == CollectiveKind::kAllReduce) into = part(operation, segment, channel.peer);
        if (what.kind == CollectiveKind::kBroadcast) into = {0, what.output.size()};
        if (what.kind == CollectiveKind::kAllGather) {
          into = {static_cast<std::size_t>(channel.peer) * what.input.size(), what.input.size()};
        }
        channel.connection->post_receive(operation.frame_type(), operation.tag(segment),
                                         what.output.subspan(into.begin, into.bytes));
        channel.expected.push_back({&operation, false});
        ++operation.receives_left;
      }
    }
  }

  // Moves what can be moved. True if anything did.
  Result<bool> advance() {
    post_scatter_receives();
    bool moved = post_gather_sends();
    for (auto* channels : {&scatter_, &gather_}) {
      for (Channel& channel : *channels) {
        MOTLEY_ASSIGN(const bool one, channel.connection->progress());
        moved = moved || one;
        while (channel.expected.size() > channel.connection->pending_receives()) {
          const Expected& arrived = channel.expected.front();
          --arrived.operation->receives_left;
          channel.scattered += arrived.is_scattered;
          channel.expected.pop_front();
        }
      }
    }
    return reduce_arrived() || moved;
  }

  std::byte* landing(std::size_t segment, std::size_t index) const {
    return landing_.data() + (segment % kWindow * scatter_.size() + index) * kPartBytes;
  }

  void post_scatter_receives() {
    for (Operation& operation : operations_) {
      for (; operation.receives < operation.segments; ++operation.receives) {
        const std::size_t segment = operation.first + operation.receives;
        if (segment >= reduced_ + kWindow) return;
        const std::size_t bytes = part(operation, operation.receives, rank_).bytes;
        for (std::size_t index = 0; index < scatter_.size(); ++index) {
          scatter_[index].connection->post_receive(operation.frame_type(), operation.tag(operation.receives),
                                                   {landing(segment, index), bytes});
          scatter_[index].expected.push_back({&operation, true});
        }
      }
    }
  }

  // Sums the segments that all have sent.
  bool reduce_arrived() {
    bool any = false;
    for (Operation& operation : operations_) {
      for (; operation.reduced < operation.segments; ++operation.reduced, ++reduced_) {
        const bool arrived = std::ranges::all_of(scatter_, [&](const Channel& c) { return c.scattered > reduced_; });
        if (!arrived || (operation.is_whole && !are_gone(operation))) return any;
        reduce(operation);
        any = true;
      }
    }
    return any;
  }

  void reduce(const Operation& operation) {
    const Collective& what = operation.what();
    const Part own = part(operation, operation.reduced, rank_);
    std::vector<const std::byte*> inputs;
    for (std::size_t index = 0; index < scatter_.size(); ++index) inputs.push_back(landing(reduced_, index));
    inputs.insert(inputs.begin() + rank_, what.input.data() + own.begin);
    const std::size_t begin =
        what.kind == CollectiveKind::kReduceScatter ? operation.reduced * operation.part_bytes : own.begin;
    std::byte* const output[] = {what.output.data() + begin};
    const double scale = what.reduction == Reduction::kAverage ? 1.0 / size_ : 1.0;
    sum_elements(what.type, inputs, scale, output, own.bytes / width(what.type));
  }

  // In the order of the operations: one whose sums are not all taken holds back those after it.
  bool post_gather_sends() {
    bool posted = false;
    for (Operation& operation : operations_) {
      const bool sums = operation.segments > 0;
      for (; operation.gather_sends < operation.gathers; ++operation.gather_sends) {
        if (sums && operation.gather_sends == operation.reduced) return posted;
        const Collective& what = operation.what();
        if (what.kind == CollectiveKind::kBroadcast && what.root != rank_) continue;
        std::span<const std::byte> payload = what.input;
        if (sums) {
          const Part own = part(operation, operation.gather_sends, rank_);
          payload = payload.subspan(own.begin, own.bytes);
        }
        for (std::size_t index = 0; index < gather_.size(); ++index) {
          post_send(gather_, index, operation, operation.gather_sends, payload);
        }
        if (what.kind == CollectiveKind::kAllGather && !payload.empty()) {
          std::ranges::copy(payload, what.output.begin() + static_cast<std::ptrdiff_t>(rank_ * payload.size()));
        }
        posted = true;
      }
    }
    return posted;
  }

  // Whether all frames that were posted for it have left this rank's memory.
  bool are_gone(const Operation& operation) const {
    for (std::size_t index = 0; index < scatter_.size(); ++index) {
      if (scatter_[index].gone() < operation.last_sends[index]) return false;
      if (gather_[index].gone() < operation.last_sends[scatter_.size() + index]) return false;
    }
    return true;
  }

  bool is_done(const Operation& operation) const {
    return operation.reduced == operation.segments && operation.gather_sends == operation.gathers &&
           operation.receives_left == 0 && are_gone(operation);
  }

  // Those from which the oldest operation lacks values, or to which its values have not gone.
  std::vector<int> missing_ranks() const {
    std::vector<int> ranks;
    const Operation& oldest = operations_.front();
    for (std::size_t index = 0; index < scatter_.size(); ++index) {
      const auto lacks = [&](const Channel& channel) {
        return !channel.expected.empty() && channel.expected.front().operation == &oldest;
      };
      if (lacks(scatter_[index]) || lacks(gather_[index])) ranks.push_back(scatter_[index].peer);
    }
    for (std::size_t index = 0; index < scatter_.size() && ranks.empty(); ++index) {
      if (scatter_[index].gone() < oldest.last_sends[index] ||
          gather_[index].gone() < oldest.last_sends[scatter_.size() + index]) {
        ranks.push_back(scatter_[index].peer);
      }
    }
    return ranks;
  }

  net::WaitSet waits_;

  // The communicator's thread's, once it has begun.
  std::vector<Channel> scatter_;  // by peer, without this rank
  std::vector<Channel> gather_;
  Pages landing_;
  std::deque<Operation> operations_;  // of queue_, from its front on
  std::size_t segments_ = 0;          // scattered ones of all operations
  std::size_t reduced_ = 0;           // of these
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_tcp_communicator(net::Session& session, const Deadline& deadline) {
  return TcpCommunicator::create(session, deadline);
}

}  // namespace motley::collective
