// Gradients and weights in memory that the server and all ranks of one host map: only counters move. A rank announces a
// bucket in the server's region and wakes cores that sleep; the cores count the segments that they have updated.
#include <algorithm>
#include <cstring>

#include "motley/base/guard.h"
#include "motley/collective/waiting.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {
namespace {

class MemoryPath final : public ServerPath {
 public:
  // `wakeups`: a connection to each core.
  MemoryPath(net::Session& session, const ServerOptions& options, ControlConnections& controls, const Joined& joined,
             Channels wakeups)
      : ServerPath(session, options, controls, joined.model),
        joined_(joined),
        rank_(static_cast<std::size_t>(session.membership().rank)),
        wakeups_(std::move(wakeups)),
        rounds_(model_.buckets().size()) {}

  std::byte* gradients() const override { return joined_.gradients->data(); }
  std::byte* weights() const override {
    return is_async_ ? joined_.region.rank_values(rank_) : joined_.region.values();
  }
  std::byte* own_weights() const override { return is_async_ ? weights() : nullptr; }

  Status start(int bucket, const Round& round) override {
    const ServerRegion& region = joined_.region;
    rounds_[bucket] = round;
    last_started_ = bucket;
    ServerRegion::Announced& announced = region.announced(bucket, rank_);
    announced.by_round[round.number % 2] = round.announcement;
    announced.time = monotonic_seconds();
    // Either the core sees this before it falls asleep, or it is seen asleep here.
    announced.round.store(round.number, std::memory_order_seq_cst);
    if (is_async_ || region.bucket(bucket).arrived.add(round.number * static_cast<std::uint32_t>(size_))) {
      for (std::size_t core = 0; core < wakeups_.size(); ++core) {
        if (region.core(core).asleep.load(std::memory_order_seq_cst) != 0) {
          wakeups_[core]->post_owned(kServerWakeup, 0, {});
          (void)wakeups_[core]->progress();  // what has become of a server that is gone, wait() finds out
        }
      }
    }
    return {};
  }

  Result<Answer> wait(int bucket, const Deadline& deadline) override {
    // Where ranks share processors with the server, one that wakes for every bucket takes time from the next ones,
    // which it needs as well: it sleeps until the last that it has started.
    if (!joined_.may_spin && !is_async_ && !has_come(bucket)) MOTLEY_TRY(wait_for_bucket(last_started_, deadline));
    MOTLEY_TRY(wait_for_bucket(bucket, deadline));
    if (is_async_) return Answer{.rounds = joined_.region.rounds(bucket, rank_)};
    Answer answer;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      answer.total_weight += joined_.region.announced(bucket, rank).by_round[rounds_[bucket].number % 2].weight;
    }
    if (adds_up_only_) {
      const DividedModel::Bucket& values = model_.buckets()[bucket];
      std::memcpy(gradients() + values.offset, weights() + values.offset, values.elements * sizeof(float));
    }
    return answer;
  }

  bool has_come(int bucket) const override {
    return done(bucket).reached(rounds_[bucket].number * model_.buckets()[bucket].segments());
  }

  void abort(const Error&) override {}  // waits ask the session

  std::uint64_t bytes_sent() const override {
    std::uint64_t bytes = 0;
    for (const auto& wakeup : wakeups_) bytes += wakeup->bytes_sent();
    return bytes;
  }

 private:
  // Counts a bucket's segments.
  SharedCounter& done(int bucket) const {
    return is_async_ ? joined_.region.answered(bucket, rank_) : joined_.region.bucket(bucket).updated;
  }

  Status wait_for_bucket(int bucket, const Deadline& deadline) {
    const auto segments = model_.buckets()[bucket].segments();
    if (!MOTLEY_KEEPS("server-bucket-updated")) return {};
    return wait_until_reached(done(bucket), rounds_[bucket].number * segments, joined_.may_spin,
                              [&] { return check_wait(bucket, deadline); });
  }

  Status check_wait(int bucket, const Deadline& deadline) {
    MOTLEY_TRY(controls_.check());
    const auto& [number, announcement] = rounds_[bucket];
    const std::string operation = fmt::format("step {}, bucket {}", announcement.step, bucket);
    const std::uint32_t needed =
        number - std::min<std::uint32_t>(static_cast<std::uint32_t>(announcement.ahead), number);
    std::vector<int> missing;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      const std::uint32_t round = joined_.region.announced(bucket, rank).round.load();
      if (static_cast<std::int32_t>(round - needed) < 0) missing.push_back(static_cast<int>(rank));
    }
    if (missing.empty() && deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: timeout after {:.3g} s of waiting for {} to update the weights", operation,
                  deadline.allowed(), controls_.servers()[0].name);
    }
    return collective::check_wait(session_, deadline, operation, [&] { return missing; });
  }

  const Joined& joined_;
  const std::size_t rank_;
  const Channels wakeups_;
  std::vector<Round> rounds_;  // by bucket
  int last_started_ = 0;
};

}  // namespace

std::unique_ptr<ServerPath> make_memory_path(net::Session& session, const ServerOptions& options,
                                             ControlConnections& controls, const Joined& joined, Channels channels) {
  return std::make_unique<MemoryPath>(session, options, controls, joined, std::move(channels));
}

}  // namespace motley::ps
