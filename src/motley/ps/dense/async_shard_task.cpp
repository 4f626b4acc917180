// A core's part of an asynchronous job: each push updates the weights by itself, as soon as it is there, and is
// answered with weights that lack no more of the other ranks' pushes than it allows.
//
// Items of a rank come in the order of rounds, buckets and segments, as everywhere; ranks take turns. A push of the
// share w of a step is an update by the fraction w (kernels/update.h). The new weights go into the rank's own copy in
// the same pass over memory if it may have them at once; if it has to wait for others, they are copied when the last of
// those has come. Nobody writes a rank's copy after it was answered until it pushes the same segment again.
#include <algorithm>
#include <cmath>

#include "motley/base/clock.h"
#include "motley/ps/dense/dense_job.h"

namespace motley::ps {

class AsyncShardTask final : public ShardTask {
 public:
  AsyncShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : ShardTask(std::move(job), core, std::move(channels), std::move(lost)), item_steps_(items_.size()) {
    ranks_.resize(this->channels().size());
    for (Progress& progress : ranks_) progress.ahead.resize(job_->model_.buckets().size());
  }

  bool advance() override {
    if (items_.empty() || failed_) return false;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::size_t rank = (turn_ + i) % ranks_.size();
      if (!has_item(rank)) continue;
      turn_ = rank + 1;
      return take(rank);
    }
    return false;
  }

 private:
  // Where a rank is. Items are counted over all rounds.
  struct Progress {
    std::uint64_t taken = 0;     // items that have had their effect
    std::uint64_t answered = 0;  // items that need no answer any more
    Announcement announced;
    std::vector<std::uint64_t> ahead;  // items that it may be ahead, by bucket
  };

  bool has_work() const override {
    if (items_.empty() || failed_) return false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (has_item(rank)) return true;
    }
    return false;
  }

  bool has_item(std::size_t rank) const {
    const std::uint64_t taken = ranks_[rank].taken;
    if (!job_->in_memory()) return received(rank) > taken;
    const Item& item = items_[taken % items_.size()];
    if (item.segment != nullptr) return true;
    const std::uint32_t started = job_->shared_.announced(static_cast<std::size_t>(item.bucket), static_cast<int>(rank))
                                      .round.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(started - round_number(taken)) >= 0;
  }

  // The rank's next item takes effect, and whoever waited for it is answered.
  bool take(std::size_t rank) {
    Progress& own = ranks_[rank];
    const Item& item = items_[own.taken % items_.size()];
    const std::uint32_t round = round_number(own.taken);
    bool written = false;
    if (item.segment == nullptr) {
      own.announced = announced(item.bucket, rank, round);
      if (job_->in_memory()) {
        came(rank, rank_arrivals(rank).end_of_bucket(own.taken), time_in_memory(rank, item.bucket));
      }
      if (!(own.announced.weight >= 0 && own.announced.weight <= 1 && std::isfinite(own.announced.learning_rate))) {
        give_up(
            Error{ErrorCode::kInvalidInput,
                  fmt::format("bucket {}: rank {} is at step {} with learning rate {} and the share {} of the step",
                              item.bucket, rank, own.announced.step, own.announced.learning_rate, own.announced.weight),
                  static_cast<int>(rank)});
        return false;
      }
      own.ahead[static_cast<std::size_t>(item.bucket)] =
          std::min<std::uint64_t>(own.announced.ahead, kAnyStaleness) * items_.size();
      ++own.taken;
    } else {
      const bool next = own.answered == own.taken;
      ++own.taken;
      written = next && own.announced.weight > 0 && may_answer(rank, slowest());
      if (own.announced.weight > 0) apply(rank, item, written);
      rank_arrivals(rank).updated(own.taken - 1, monotonic_seconds());
      if (!job_->in_memory()) metrics_.bytes_in.add(item.segment->count * kernels::byte_size(format()));
    }
    if (!job_->in_memory()) post(item, round + 1, rank);
    const std::uint64_t slowest_now = slowest();
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      while (may_answer(other, slowest_now)) {
        answer(other, written && other == rank);
      }
      if (!job_->in_memory()) progress(static_cast<int>(other));
    }
    count(rank);
    return true;
  }

  // For the metrics: who is where after this rank's item.
  void count(std::size_t rank) {
    const auto last = std::ranges::min_element(ranks_, {}, &Progress::taken);
    const auto furthest = std::ranges::max_element(ranks_, {}, &Progress::taken);
    std::uint64_t held = 0;
    for (const Progress& progress : ranks_) held += progress.taken - progress.answered;
    metrics_.held.set(held);
    metrics_.ahead.set((furthest->taken - last->taken) / items_.size());
    metrics_.ranks[rank].taken.set(ranks_[rank].taken);
    metrics_.bucket.set(static_cast<std::uint64_t>(items_[last->taken % items_.size()].bucket));
    metrics_.step.set(last->announced.step);
  }

  void apply(std::size_t rank, const Item& item, bool answers) {
    const Segment& segment = *item.segment;
    const Announcement& announced = ranks_[rank].announced;
    double& steps = item_steps_[static_cast<std::size_t>(&item - items_.data())];
    steps += announced.weight;
    kernels::UpdateOptions options = job_->join_.update;
    options.learning_rate = announced.learning_rate;
    options.step = static_cast<double>(job_->updates_) + steps;
    options.fraction = announced.weight;
    const std::size_t width = kernels::byte_size(format());
    const std::byte* pushed = job_->in_memory()
                                  ? job_->gradients_[rank]->data() + job_->model_.element_index(segment) * width
                                  : job_->pushes_[rank].data() + job_->push_at_[item.index];
    std::byte* copy = rank_copy(rank, item);
    std::vector<float*> state(job_->state_.size());
    const float one = 1;
    const std::size_t chunk = chunk_elements();
    for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
      const std::size_t count = std::min(chunk, segment.count - begin);
      for (std::size_t array = 0; array < state.size(); ++array) {
        state[array] = job_->array(array + 1, segment) + begin;
      }
      const kernels::WireInput input{pushed + begin * width, format()};
      kernels::fused_update({&input, 1}, {&one, 1}, 1, options, job_->array(0, segment) + begin, state.data(),
                            answers ? copy + begin * width : nullptr, format(), count);
    }
    metrics_.bytes_aggregated.add(segment.count * sizeof(float));
  }

  bool may_answer(std::size_t rank, std::uint64_t slowest) const {
    const Progress& it = ranks_[rank];
    const Item& item = items_[it.answered % items_.size()];
    return it.answered < it.taken && it.answered < slowest + it.ahead[static_cast<std::size_t>(item.bucket)];
  }

  // The rank gets the weights of the next item that it has not got. `written`: they stand in its copy already.
  void answer(std::size_t rank, bool written) {
    Progress& own = ranks_[rank];
    const std::size_t at = own.answered % items_.size();
    const Item& item = items_[at];
    const std::uint32_t round = round_number(own.answered++);
    if (item.segment == nullptr) return;
    if (!written) write_copy(rank, item);
    if (!job_->in_memory()) {
      const std::size_t bytes = item.segment->count * kernels::byte_size(format());
      metrics_.bytes_out.add(bytes);
      channels_[rank]->post_send(kServerWeights, channel_tag(round, item.index), {rank_copy(rank, item), bytes});
    }
    const bool last = at + 1 == items_.size() || items_[at + 1].bucket != item.bucket;
    if (last) answer_bucket(rank, item, at, round);
    if (job_->in_memory()) {
      const auto bucket = static_cast<std::size_t>(item.bucket);
      job_->shared_.answered(bucket, static_cast<int>(rank)).add(round * job_->model_.buckets()[bucket].segments());
    }
  }

  void write_copy(std::size_t rank, const Item& item) {
    const std::span<const float> weights(job_->array(0, *item.segment), item.segment->count);
    kernels::write_format(format(), weights, rank_copy(rank, item));
  }

  // All of this core's weights of a bucket are on their way: says which rounds of each rank are in them. In memory the
  // core says it that owns the bucket's end.
  void answer_bucket(std::size_t rank, const Item& item, std::size_t at, std::uint32_t round) {
    const auto bucket = static_cast<std::size_t>(item.bucket);
    std::vector<std::uint32_t> rounds;
    for (const Progress& other : ranks_) {
      rounds.push_back(static_cast<std::uint32_t>((other.taken + items_.size() - 1 - at) / items_.size()));
    }
    if (!job_->in_memory()) {
      channels_[rank]->post_owned(kServerAnnounce, channel_tag(round, bucket), copy_bytes(rounds));
    } else if (item.segment->begin + item.segment->count == job_->join_.bucket_elements[bucket]) {
      std::ranges::copy(rounds, job_->shared_.rounds(bucket, static_cast<int>(rank)).begin());
    }
  }

  std::uint32_t round_number(std::uint64_t item) const { return static_cast<std::uint32_t>(item / items_.size()) + 1; }

  std::uint64_t slowest() const { return std::ranges::min_element(ranks_, {}, &Progress::taken)->taken; }

  std::byte* rank_copy(std::size_t rank, const Item& item) const {
    if (!job_->in_memory()) return job_->copies_[rank].data() + job_->answer_at_[item.index];
    return job_->shared_.rank_values(static_cast<int>(rank)) + job_->model_.offset(*item.segment);
  }

  kernels::WireFormat format() const {
    return job_->in_memory() ? kernels::WireFormat::kFloat32 : job_->join_.wire.format();
  }

  std::vector<Progress> ranks_;
  std::vector<double> item_steps_;  // steps since the job began, by item
  std::size_t turn_ = 0;            // the rank that is looked at first
};

std::unique_ptr<AggregationTask> make_async_task(std::shared_ptr<DenseJob> job, int core, Channels channels,
                                                 TellLost lost) {
  return std::make_unique<AsyncShardTask>(std::move(job), core, std::move(channels), std::move(lost));
}

}  // namespace motley::ps
