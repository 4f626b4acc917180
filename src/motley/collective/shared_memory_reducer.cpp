// All-reduce of gradients in memory that all ranks of one host map.
//
// Every bucket is cut into chunks. When all ranks have announced their gradient, whoever has time (a rank in wait(), or
// the helper thread of the rank that came last) claims one chunk after the other, sums it over all ranks' memory in
// rank order, and writes the mean into all ranks' memory in the same pass. So a slow rank holds nobody up with work,
// and as the arithmetic of a chunk is the same whoever does it, the result is too.
//
// Why nothing is read or written at the wrong time. Round k of a bucket is its k-th start.
//   1. A chunk of round k is claimed only after all ranks have started round k, that is, after all gradients have been
//      written (`arrived` releases them), and each chunk is claimed once (`claims` carries the round).
//   2. A rank returns from wait, and so may write its buffer again, only when all chunks of round k are done (`reduced`
//      releases them); then nobody reads or writes any buffer of the bucket, until round k + 1 has been started by all.
//   3. A rank may start k + 1 while another has not yet noticed that k is done. Counters only grow, so that the other
//      notices later; a claim for round k finds no chunk left; and what is announced with a round (step, weight) has
//      two places used in turn: it is overwritten for k + 2 only, which comes after all have started k + 1, which comes
//      after they have left k.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/base/guard.h"
#include "motley/base/os/file.h"
#include "motley/base/os/injected_fault.h"
#include "motley/base/os/shared_counter.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/collective/waiting.h"
#include "motley/net/region.h"

namespace motley::collective {
namespace {

constexpr std::size_t kLine = 64;
// Large enough that claiming costs nothing, small enough that the chunks of a few ranks stay in a second-level cache.
constexpr std::size_t kChunkBytes = 128 << 10;
constexpr std::size_t kSmallestChunkBytes = 4 << 10;
// The helper is woken for a bucket only if the worker left it alone for longer than this the last time: a worker that
// waits at once does the work itself, without handing it to another thread.
constexpr double kMinHelperSeconds = 100e-6;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

class SharedMemoryReducer final : public GradientReducer {
 public:
  SharedMemoryReducer(net::Session& session, const ReducerOptions& options)
      : session_(session),
        background_progress_(options.background_progress),
        rank_(session.membership().rank),
        size_(session.membership().size()) {}

  ~SharedMemoryReducer() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (helper_.joinable()) helper_.join();
  }

  Status prepare(const Layout& layout, const Deadline& deadline) override {
    MOTLEY_INVARIANT(!group_, "prepare was called twice");
    layout_ = layout;
    width_ = byte_size(layout.type);
    offsets_ = value_offsets(layout.bucket_elements, width_);
    const std::size_t bytes = offsets_.back();
    for (std::size_t elements : layout.bucket_elements) {
      Bucket& bucket = buckets_.emplace_back();
      const std::size_t share = elements * width_ / static_cast<std::size_t>(size_);
      bucket.chunk_elements = round_up(std::clamp(share, kSmallestChunkBytes, kChunkBytes), kLine) / width_;
      bucket.chunks = static_cast<std::uint32_t>(
          std::max<std::size_t>(1, round_up(elements, bucket.chunk_elements) / bucket.chunk_elements));
    }
    const std::size_t control_bytes =
        buckets_.size() * (sizeof(BucketControl) + static_cast<std::size_t>(size_) * sizeof(Announcement));

    MOTLEY_ASSIGN(group_, make_shared_group(session_, "exchange", deadline));
    const auto sizes = std::as_bytes(std::span(layout.bucket_elements));
    const std::vector<double> own = {static_cast<double>(layout.type),
                                     static_cast<double>(layout.bucket_elements.size()), static_cast<double>(bytes),
                                     static_cast<double>(crc32c(sizes))};
    MOTLEY_ASSIGN(const auto all, group_->all_gather(own, deadline));
    for (int rank = 0; rank < size_; ++rank) {
      const auto theirs = std::span(all).subspan(static_cast<std::size_t>(rank) * own.size(), own.size());
      if (!std::ranges::equal(own, theirs)) {
        return fail(Error{ErrorCode::kInvalidInput,
                          fmt::format("rank {} prepared {} buckets with {} bytes, this rank {} with {}: the layouts "
                                      "differ",
                                      rank, theirs[1], theirs[2], own[1], own[2]),
                          rank});
      }
    }

    const std::size_t values_offset = round_up(control_bytes, kLine);
    const std::size_t region_bytes = std::max<std::size_t>(values_offset + bytes, kLine);
    regions_.resize(static_cast<std::size_t>(size_));
    MOTLEY_ASSIGN(regions_[rank_], net::Region::create(region_bytes));
    MOTLEY_ASSIGN(const auto addresses, all_addresses(*group_, *regions_[rank_], deadline));
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) {
        MOTLEY_ASSIGN(regions_[rank], map_of_peer(session_, addresses[rank], region_bytes));
      }
      values_.push_back(regions_[rank]->data() + values_offset);
    }
    MOTLEY_TRY(group_->barrier(deadline));  // so that nobody ends before all have mapped what is its own
    if (background_progress_) helper_ = std::thread([this] { help(); });
    return {};
  }

  std::span<std::byte> buffer(int bucket) override {
    return {values_[rank_] + offsets_[bucket], layout_.bucket_elements[bucket] * width_};
  }

  Status start(std::uint64_t step, int index, double weight) override {
    MOTLEY_INVARIANT(index >= 0 && index < static_cast<int>(buckets_.size()), "there is no bucket {}", index);
    MOTLEY_INVARIANT(weight >= 0, "the weight {} of bucket {} is negative or not a number", weight, index);
    Bucket& bucket = buckets_[index];
    MOTLEY_INVARIANT(!bucket.under_way, "bucket {} was started again before it was waited for", index);
    bucket.under_way = true;
    bucket.step = step;
    ++bucket.round;
    Announcement& own = announcement(index, rank_);
    own.announced[bucket.round % 2] = {step, weight};
    own.round.store(bucket.round, std::memory_order_release);
    const bool last = control(index).arrived.add(bucket.round * static_cast<std::uint32_t>(size_));
    if (background_progress_) {
      bucket.started_at = monotonic_seconds();
      if (last && bucket.left_alone > kMinHelperSeconds) {
        {
          std::lock_guard lock(mutex_);
          jobs_.push_back({index, bucket.round, step});
        }
        wake_.notify_one();
      }
    }
    return {};
  }

  Result<Outcome> wait(int index, const Deadline& deadline) override {
    MOTLEY_INVARIANT(index >= 0 && index < static_cast<int>(buckets_.size()), "there is no bucket {}", index);
    Bucket& bucket = buckets_[index];
    MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
    if (background_progress_) bucket.left_alone = monotonic_seconds() - bucket.started_at;
    if (is_broken_) MOTLEY_TRY(check(index, deadline, true));

    BucketControl& shared = control(index);
    const bool spin = group_->may_spin();
    if (MOTLEY_KEEPS("reducer-all-arrived")) {
      MOTLEY_TRY(wait_until_reached(shared.arrived, bucket.round * static_cast<std::uint32_t>(size_), spin,
                                    [&] { return check(index, deadline, true); }));
    }
    Outcome outcome;
    for (int rank = 0; rank < size_; ++rank) {
      outcome.total_weight += announcement(index, rank).announced[bucket.round % 2].weight;
    }
    outcome.version = bucket.step;
    if (const Status reduced = reduce_chunks(index, bucket.round, bucket.step); !reduced) {
      break_with(reduced.error());
      return fail(reduced.error());
    }
    if (MOTLEY_KEEPS("reducer-all-reduced")) {
      MOTLEY_TRY(wait_until_reached(shared.reduced, bucket.round * bucket.chunks, spin,
                                    [&] { return check(index, deadline, false); }));
    }
    bucket.under_way = false;
    return outcome;
  }

  void abort(const Error& error) override {
    break_with(error);
    session_.abort(error);
  }

  std::string name() const override { return "shared-memory"; }

 private:
  struct alignas(kLine) Announcement {
    std::atomic<std::uint32_t> round;    // started last
    std::atomic<std::uint32_t> working;  // the round of which this rank has a chunk in hand, else 0
    struct {
      std::uint64_t step;
      double weight;
    } announced[2];  // by round mod 2
  };

  struct BucketControl {
    SharedCounter arrived;                             // ranks that have started
    SharedCounter reduced;                             // chunks that are done
    alignas(kLine) std::atomic<std::uint64_t> claims;  // round << 32 | chunks claimed in it
  };

  // This process's view of a bucket.
  struct Bucket {
    std::size_t chunk_elements = 0;
    std::uint32_t chunks = 0;
    std::uint32_t round = 0;  // how many times it was started
    std::uint64_t step = 0;
    bool under_way = false;
    double started_at = 0;
    double left_alone = 2 * kMinHelperSeconds;  // between start and wait the last time
  };

  BucketControl& control(int bucket) const { return regions_[0]->at<BucketControl>(0)[bucket]; }

  Announcement& announcement(int bucket, int rank) const {
    return regions_[0]->at<Announcement>(buckets_.size() * sizeof(BucketControl))[bucket * size_ + rank];
  }

  // Works off chunks until none is left. All ranks have started the round, or it is over: then the claims are of a
  // later round, or used up, and nothing but them is touched.
  Status reduce_chunks(int index, std::uint32_t round, std::uint64_t step) {
    const Bucket& bucket = buckets_[index];
    BucketControl& shared = control(index);
    Announcement& own = announcement(index, rank_);
    std::optional<Mean> mean;
    for (;;) {
      std::uint64_t claims = shared.claims.load(std::memory_order_acquire);
      std::uint32_t chunk;
      own.working.store(round, std::memory_order_relaxed);
      do {
        const auto claimed_round = static_cast<std::uint32_t>(claims >> 32);
        chunk = MOTLEY_GUARD("reducer-claims-round", claimed_round == round) ? static_cast<std::uint32_t>(claims) : 0;
        const bool over = static_cast<std::int32_t>(claimed_round - round) > 0;
        if (!MOTLEY_GUARD("reducer-round-over", !over) || chunk == bucket.chunks) {
          own.working.store(0, std::memory_order_relaxed);
          return {};
        }
      } while (!shared.claims.compare_exchange_weak(claims, (std::uint64_t{round} << 32) | (chunk + 1),
                                                    std::memory_order_acq_rel, std::memory_order_acquire));
      // From here on the round cannot end before this chunk is done, so all that was announced for it stands still.
      if (!mean) {
        std::vector<double> weights;
        for (int rank = 0; rank < size_; ++rank) {
          const auto& announced = announcement(index, rank).announced[round % 2];
          if (announced.step != step) {
            return fail(Error{ErrorCode::kInvalidInput,
                              fmt::format("bucket {}: rank {} is at step {}, rank {} at step {}", index, rank,
                                          announced.step, rank_, step),
                              rank});
          }
          weights.push_back(announced.weight);
        }
        mean = weighted_mean(weights);
      }
      const std::size_t begin = chunk * bucket.chunk_elements;
      const std::size_t count = std::min(bucket.chunk_elements, layout_.bucket_elements[index] - begin);
      const std::size_t offset = offsets_[index] + begin * width_;
      std::vector<const std::byte*> inputs;
      for (int rank : mean->ranks) inputs.push_back(values_[rank]);
      if (!MOTLEY_KEEPS("planted-chunk-done-then-counted")) shared.reduced.add(round * bucket.chunks);
      const std::size_t first = has_injected_faults() ? count / 2 : 0;  // in two parts, with a point between them
      if (first > 0) {
        sum_as(layout_.type, inputs, mean->coefficients, mean->scale, values_, offset, first);
        inject_fault(session_.job_rank(rank_), "reducing");
      }
      sum_as(layout_.type, inputs, mean->coefficients, mean->scale, values_, offset + first * width_, count - first);
      if (MOTLEY_KEEPS("planted-chunk-done-then-counted")) shared.reduced.add(round * bucket.chunks);
    }
  }

  Status check(int index, const Deadline& deadline, bool arriving) const {
    if (is_broken_) {
      std::lock_guard lock(mutex_);
      return fail(*broken_);
    }
    const Bucket& bucket = buckets_[index];
    return check_wait(session_, deadline, fmt::format("step {}, bucket {}", bucket.step, index), [&] {
      std::vector<int> ranks;
      for (int rank = 0; rank < size_; ++rank) {
        const Announcement& other = announcement(index, rank);
        const bool missing = arriving ? static_cast<std::int32_t>(other.round.load() - bucket.round) < 0
                                      : other.working.load() == bucket.round;
        if (missing) ranks.push_back(rank);
      }
      return ranks;
    });
  }

  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      if (const Status reduced = reduce_chunks(job.bucket, job.round, job.step); !reduced) break_with(reduced.error());
      lock.lock();
    }
  }

  void break_with(const Error& error) {
    std::lock_guard lock(mutex_);
    if (!broken_) broken_ = error;
    is_broken_ = true;
  }

  net::Session& session_;
  const bool background_progress_;
  const int rank_;
  const int size_;
  Layout layout_;
  std::size_t width_ = 0;             // bytes of a value
  std::vector<std::size_t> offsets_;  // of buckets in each rank's values
  std::unique_ptr<Group> group_;
  std::vector<std::unique_ptr<net::Region>> regions_;  // one per rank
  std::vector<std::byte*> values_;                     // of each rank, where its first bucket starts
  std::vector<Bucket> buckets_;

  struct Job {
    int bucket;
    std::uint32_t round;
    std::uint64_t step;
  };
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::deque<Job> jobs_;  // for the helper: buckets that all ranks have started
  bool stop_ = false;
  std::optional<Error> broken_;
  std::thread helper_;
  std::atomic<bool> is_broken_ = false;
};

}  // namespace

std::unique_ptr<GradientReducer> make_shared_memory_reducer(net::Session& session, const ReducerOptions& options) {
  return std::make_unique<SharedMemoryReducer>(session, options);
}

}  // namespace motley::collective
