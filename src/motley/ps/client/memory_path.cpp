// Gradients and weights in memory that the server and all ranks of one host map: only counters move. A rank announces a
// bucket in the server's region and wakes cores that sleep; the cores count the segments that they have updated.
#include <algorithm>
#include <cstring>

#include "motley/collective/waiting.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {
namespace {

class MemoryPath final : public ServerPath {
 public:
  // `wakeups`: a connection to each core.
  MemoryPath(net::Session& session, const ServerOptions& options, ControlConnections& controls, Joined& joined,
             std::vector<std::unique_ptr<net::Connection>> wakeups)
      : session_(session),
        controls_(controls),
        model_(joined.model),
        memory_(std::move(joined.memory)),
        rank_(session.membership().rank),
        size_(session.membership().size()),
        is_async_(options.staleness.has_value()),
        adds_up_only_(options.update.rule == kernels::UpdateRule::kSum),
        may_spin_(joined.may_spin),
        wakeups_(std::move(wakeups)),
        rounds_(model_.buckets().size()) {}

  std::byte* gradients() const override { return memory_.gradients->data(); }
  std::byte* weights() const override {
    return is_async_ ? memory_.region.rank_values(rank_) : memory_.region.values();
  }
  std::byte* own_weights() const override { return is_async_ ? weights() : nullptr; }

  Status start(int bucket, const Round& round) override {
    const auto at = static_cast<std::size_t>(bucket);
    const ServerRegion& region = memory_.region;
    rounds_[at] = round;
    last_started_ = bucket;
    ServerRegion::Announced& announced = region.announced(at, rank_);
    announced.by_round[round.number % 2] = round.announcement;
    announced.time = monotonic_seconds();
    // Either the core sees this before it falls asleep, or it is seen asleep here.
    announced.round.store(round.number, std::memory_order_seq_cst);
    if (is_async_ || region.bucket(at).arrived.add(round.number * static_cast<std::uint32_t>(size_))) {
      for (std::size_t core = 0; core < wakeups_.size(); ++core) {
        if (region.core(static_cast<int>(core)).asleep.load(std::memory_order_seq_cst) != 0) {
          wakeups_[core]->post_owned(kServerWakeup, 0, {});
          MOTLEY_TRY(wakeups_[core]->progress());
        }
      }
    }
    return {};
  }

  Result<Answer> wait(int bucket, const Deadline& deadline) override {
    const auto at = static_cast<std::size_t>(bucket);
    // Where ranks share processors with the server, one that wakes for every bucket takes time from the next ones,
    // which it needs as well: it sleeps until the last that it has started.
    if (!may_spin_ && !is_async_) MOTLEY_TRY(wait_for_bucket(last_started_, deadline));
    MOTLEY_TRY(wait_for_bucket(bucket, deadline));
    if (is_async_) return Answer{.rounds = memory_.region.rounds(at, rank_)};
    Answer answer;
    for (int rank = 0; rank < size_; ++rank) {
      answer.total_weight += memory_.region.announced(at, rank).by_round[rounds_[at].number % 2].weight;
    }
    if (adds_up_only_) {
      const DividedModel::Bucket& values = model_.bucket(bucket);
      std::memcpy(gradients() + values.offset, weights() + values.offset, values.elements * sizeof(float));
    }
    return answer;
  }

  void abort(const Error&) override {}  // waits ask the session

  std::uint64_t bytes_sent() const override {
    std::uint64_t bytes = 0;
    for (const auto& wakeup : wakeups_) bytes += wakeup->bytes_sent();
    return bytes;
  }

 private:
  Status wait_for_bucket(int bucket, const Deadline& deadline) {
    const auto at = static_cast<std::size_t>(bucket);
    SharedCounter& done = is_async_ ? memory_.region.answered(at, rank_) : memory_.region.bucket(at).updated;
    const auto segments = static_cast<std::uint32_t>(model_.bucket(bucket).last - model_.bucket(bucket).first);
    return wait_until_reached(done, rounds_[at].number * segments, may_spin_,
                              [&] { return check_wait(bucket, deadline); });
  }

  Status check_wait(int bucket, const Deadline& deadline) {
    MOTLEY_TRY(controls_.check());
    const auto at = static_cast<std::size_t>(bucket);
    const auto& [number, announcement] = rounds_[at];
    const std::string operation = fmt::format("step {}, bucket {}", announcement.step, bucket);
    const std::uint32_t needed =
        number - std::min<std::uint32_t>(static_cast<std::uint32_t>(announcement.ahead), number);
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      const std::uint32_t round = memory_.region.announced(at, rank).round.load();
      if (static_cast<std::int32_t>(round - needed) < 0) missing.push_back(rank);
    }
    if (missing.empty() && deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: waited {:.3g} s for {} to update the weights", operation,
                  deadline.allowed(), controls_.servers()[0].name);
    }
    return collective::check_wait(session_, deadline, operation, [&] { return missing; });
  }

  net::Session& session_;
  ControlConnections& controls_;
  const DividedModel& model_;
  const SharedMemory memory_;
  const int rank_;
  const int size_;
  const bool is_async_;
  const bool adds_up_only_;
  const bool may_spin_;
  const std::vector<std::unique_ptr<net::Connection>> wakeups_;
  std::vector<Round> rounds_;  // by bucket
  int last_started_ = 0;
};

}  // namespace

std::unique_ptr<ServerPath> make_memory_path(net::Session& session, const ServerOptions& options,
                                             ControlConnections& controls, Joined& joined,
                                             std::vector<std::unique_ptr<net::Connection>> channels) {
  return std::make_unique<MemoryPath>(session, options, controls, joined, std::move(channels));
}

}  // namespace motley::ps
