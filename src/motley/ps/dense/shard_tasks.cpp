// What a core does with its part of a dense job: a segment after the other, always in the same order, so that a frame
// needs no looking up: it is the next one or an error.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>

#include "motley/base/clock.h"
#include "motley/base/guard.h"
#include "motley/base/os/injected_fault.h"
#include "motley/ps/dense/dense_job.h"

namespace motley::ps {

constexpr int kMaxWakeups = 64;  // taken of one rank before others

// A core's part of a job.
class ShardTask : public AggregationTask {
 public:
  ShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : AggregationTask(std::move(channels), job->model_.buckets().size(), std::move(lost)),
        job_(std::move(job)),
        core_(core),
        metrics_(job_->metrics_->shards[core]) {
    std::vector<Arrivals::Item> round;
    const std::vector<Segment>& segments = job_->model_.segments();
    for (std::size_t index = 0; index < segments.size(); ++index) {
      if (!job_->claimed() && segments[index].bin != job_->join_.first_bin + core_) continue;
      const auto bucket = static_cast<std::size_t>(segments[index].bucket);
      if (items_.empty() || items_.back().bucket != bucket) {
        items_.push_back({bucket, nullptr, 0});
        round.push_back({.segment = false, .judged = segments[index].begin == 0});
      }
      items_.push_back({bucket, &segments[index], index});
      round.push_back({.segment = true});
    }
    const std::size_t alone = job_->is_async() ? ranks() : 1;
    for (std::size_t i = 0; i < alone; ++i) arrivals_.emplace_back(round, ranks() / alone, metrics_);
    if (!items_.empty()) metrics_.bucket.set(items_[0].bucket);
    if (job_->in_memory() || items_.empty()) return;
    bound_channels(ranks());
    for (std::uint64_t number = 0; number < ahead(); ++number) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) post(number, rank);
    }
  }

  void progress(std::size_t rank) override {
    if (ended(rank)) return;
    Result<bool> moved = false;
    if (job_->in_memory()) {
      // Only wakeups come, and the core is awake.
      net::Connection& channel = *channels_[rank];
      auto wakeup = channel.try_receive();
      for (int taken = 1; wakeup && *wakeup && taken < kMaxWakeups; ++taken) wakeup = channel.try_receive();
      if (!wakeup) moved = fail(wakeup.error());
    } else {
      moved = transfer(rank);
    }
    if (!moved) {
      end_channel(
          rank, {moved.error().code, fmt::format("rank {}: {}", rank, moved.error().message), static_cast<int>(rank)});
    } else if (*moved) {
      came(rank, received(rank), monotonic_seconds());
    }
  }

  // Says to the workers that they have to send a wakeup.
  bool fall_asleep() override {
    if (!job_->in_memory()) return !has_work();
    job_->shared_.core(core_).asleep.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return !has_work();
  }

  void wake_up() override {
    if (job_->in_memory()) job_->shared_.core(core_).asleep.store(0, std::memory_order_relaxed);
  }

 protected:
  struct Item {
    std::size_t bucket;
    const Segment* segment;  // null: the announcement, over channels
    std::size_t index;       // of the segment
  };
  virtual bool has_work() const = 0;
  std::size_t ranks() const { return static_cast<std::size_t>(job_->join_.size); }
  // Items are counted over all rounds.
  const Item& item_at(std::uint64_t number) const { return items_[number % items_.size()]; }
  std::uint32_t to_round(std::uint64_t number) const { return static_cast<std::uint32_t>(number / items_.size()) + 1; }
  // How many frames are expected of a rank at a time: no more than there is room for, nor than a round has. They take
  // turns at its places.
  std::uint64_t ahead() const { return std::min(DenseJob::kPushSlots, items_.size()); }
  // Expects the frame of this item from the rank.
  void post(std::uint64_t number, std::size_t rank) {
    const Item& item = item_at(number);
    const std::uint32_t round = to_round(number);
    if (item.segment == nullptr) return expect_announcement(rank, item.bucket, round);
    expect(rank, kServerPush, channel_tag(round, item.index),
           {job_->push_slot(core_, rank, number % ahead()),
            in_region(rank) ? 0 : job_->join_.wire.frame_bytes(item.segment->count)});
  }
  // Whether what the rank pushes and gets is in memory that both map, although frames over channels say when.
  bool in_region(std::size_t rank) const { return !job_->in_memory() && job_->gradients_[rank] != nullptr; }
  // What the rank has pushed: the frame of this item, or its segment's gradient in memory.
  const std::byte* pushed(std::size_t rank, const Item& item, std::uint64_t number) const {
    return job_->gradients_[rank] ? job_->gradients_[rank]->data() + job_->model_.offset(*item.segment)
                                  : job_->push_slot(core_, rank, number % ahead());
  }

  // Counts what has come over the rank's channel.
  std::uint64_t received(std::size_t rank) const {
    const std::uint64_t received = arrived(rank);
    job_->received_[core_ * ranks() + rank].store(received, std::memory_order_relaxed);
    return received;
  }

  const Announcement& announced(std::size_t bucket, std::size_t rank, std::uint32_t round) const {
    return job_->in_memory() ? job_->shared_.announced(bucket, rank).by_round[round % 2] : landing_[rank][bucket];
  }

  // Takes the optimizer's step on a segment, chunk by chunk: set_inputs(first element) makes `inputs` those of a chunk,
  // whose new weights also go to `wire` where that is not null.
  template <class SetInputs>
  void take_step(const Segment& segment, std::span<const kernels::WireInput> inputs,
                 std::span<const float> coefficients, float scale, const kernels::UpdateOptions& options,
                 std::byte* wire, kernels::WireFormat format, const SetInputs& set_inputs) {
    std::vector<float*> state(job_->state_.size());
    const std::size_t chunk = chunk_elements();
    for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
      if (begin > 0) inject_fault(core_, "updating");
      set_inputs(begin);
      job_->keep(segment, begin, std::min(chunk, segment.count - begin));
      for (std::size_t array = 0; array < state.size(); ++array) {
        state[array] = job_->array(array + 1, segment) + begin;
      }
      kernels::fused_update(inputs, coefficients, scale, options, job_->array(0, segment) + begin, state.data(),
                            wire == nullptr ? nullptr : wire + begin * kernels::byte_size(format), format,
                            std::min(chunk, segment.count - begin));
    }
  }
  // The same where it can be taken back: weights and state as they were after the update before become those after this
  // one. Returns the sum of the gradient's squares.
  template <class SetInputs>
  double take_reversible_step(const Segment& segment, std::span<const kernels::WireInput> inputs,
                              std::span<const float> coefficients, float scale, const kernels::UpdateOptions& options,
                              std::uint64_t update, const SetInputs& set_inputs) {
    const std::size_t arrays = job_->state_.size() / 2;
    std::vector<const float*> state(arrays);
    std::vector<float*> new_state(arrays);
    double squares = 0;
    const std::size_t chunk = chunk_elements();
    for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
      set_inputs(begin);
      for (std::size_t array = 0; array < arrays; ++array) {
        state[array] = job_->array_after(update - 1, array + 1, segment) + begin;
        new_state[array] = job_->array_after(update, array + 1, segment) + begin;
      }
      squares += kernels::fused_update_apart(
          inputs, coefficients, scale, options, job_->array_after(update - 1, 0, segment) + begin, state.data(),
          job_->array_after(update, 0, segment) + begin, new_state.data(), std::min(chunk, segment.count - begin));
    }
    return squares;
  }
  // Those of an asynchronous job's rank alone, or of all.
  Arrivals& rank_arrivals(std::size_t rank) { return arrivals_[arrivals_.size() > 1 ? rank : 0]; }
  // When the rank started the bucket in memory, as it says.
  double time_in_memory(std::size_t rank, std::size_t bucket) const {
    const double time = job_->shared_.announced(bucket, rank).time;
    const double now = monotonic_seconds();
    return time >= 0 && time <= now ? time : now;
  }

  void came(std::size_t rank, std::uint64_t end, double time) {
    rank_arrivals(rank).came(arrivals_.size() > 1 ? 0 : rank, end, time);
  }

  const std::shared_ptr<DenseJob> job_;
  const int core_;
  ShardMetrics& metrics_;
  std::vector<Item> items_;  // of a round, in the order in which they come

 private:
  std::size_t chunk_elements() const {
    const std::size_t chunk = std::max<std::size_t>(job_->join_.chunk_bytes / sizeof(float), 16);
    // Blocks of int8 are not cut.
    return job_->join_.wire.lossy() ? kernels::int8_blocks(chunk) * kernels::kInt8Block : chunk;
  }

  std::vector<Arrivals> arrivals_;
};

// Once all ranks' gradients of a segment are there, they are summed in the order of the ranks and the optimizer takes
// its step, in one pass over memory.
//
// A segment's memory is used again in the next round only after all ranks have got this round's weights, since no rank
// starts a bucket before it has waited for it. So weights may be sent straight from where they stand.
//
// Where another server keeps this one's state, each update is sent there before all ranks have its weights: rank 0's
// wait until the keeper has said that it has the state. So what all ranks have, two servers have.
class DenseShardTask final : public ShardTask {
 public:
  // `channels`: by rank, and then the one to the keeper where there is one.
  DenseShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : ShardTask(std::move(job), core, std::move(channels), std::move(lost)), announcements_(ranks()) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) remote_ += in_region(rank) ? 0 : 1;
  }

  void progress(std::size_t channel) override {
    if (channel < ranks()) return ShardTask::progress(channel);
    if (ended(channel)) return;
    if (const auto moved = transfer(channel); !moved) end_channel(channel, moved.error());
    release();
  }

  bool advance() override {
    if (!has_work()) return false;
    if (job_->claimed()) {
      claim();
      return true;
    }
    const Item& item = item_at(taken_);
    if (item.segment == nullptr) {
      if (!begin_bucket(item)) return false;
    } else {
      update(item);
    }
    for (std::size_t rank = 0; rank < ranks(); ++rank) post(taken_ + ahead(), rank);
    metrics_.bucket.set(item_at(++taken_).bucket);
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) progress(rank);
    return true;
  }

 private:
  bool has_work() const override {
    if (items_.empty() || failed_) return false;
    const Item& item = item_at(taken_);
    if (job_->claimed()) {
      return MOTLEY_GUARD(
          "server-all-arrived",
          job_->shared_.bucket(item.bucket).arrived.reached(round() * static_cast<std::uint32_t>(job_->join_.size)));
    }
    bool all = true;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const bool here = MOTLEY_GUARD("server-all-received", received(rank) > taken_);
      if (here && item.segment == nullptr) metrics_.step.set(announced(item.bucket, rank, round()).step);
      all = here && all;
    }
    return all;
  }

  // In memory a core takes the next segment of the bucket that none has taken in this round, so that none waits for a
  // core that came late. Who has claimed one keeps the round from ending: the announcements stand until it is done. Who
  // comes after the last only passes on to the next bucket, which may be rounds behind, and must not look at them.
  void claim() {
    const Item& head = item_at(taken_);
    const std::uint32_t segments = job_->model_.buckets()[head.bucket].segments();
    const std::uint32_t end = round() * segments;
    std::atomic<std::uint32_t>& claimed = job_->claimed_[head.bucket];
    std::uint32_t seen = claimed.load(std::memory_order_relaxed);
    while (static_cast<std::int32_t>(seen - end) < 0) {
      if (!claimed.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) continue;
      if (!begun_ && !begin_bucket(head)) return;
      if (seen + segments == end) judge_last(metrics_, times_);
      begun_ = true;
      update(item_at(taken_ + 1 + segments - (end - seen)));
      return;
    }
    begun_ = false;
    taken_ += 1 + segments;
  }

  // All ranks have announced the bucket: what coefficients their gradients get.
  bool begin_bucket(const Item& item) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      announcements_[rank] = announced(item.bucket, rank, round());
    }
    const auto mean = weigh(item.bucket, announcements_);
    if (!mean) return false;
    ranks_ = mean->ranks;
    coefficients_.assign(mean->coefficients.begin(), mean->coefficients.end());
    scale_ = static_cast<float>(mean->scale) * static_cast<float>(announcements_[0].factor);
    answer_ = {announcements_[0].step, mean->total_weight, announcements_[0].learning_rate, 0};
    answer_.update = announcements_[0].update;
    metrics_.step.set(answer_.step);
    if (job_->claimed()) {
      times_.clear();
      for (std::size_t rank = 0; rank < ranks(); ++rank) times_.push_back(time_in_memory(rank, item.bucket));
    } else {
      rank_arrivals(0).begun(taken_);
    }
    if (!job_->in_memory()) {
      for (std::size_t rank = has_keeper() ? 1 : 0; rank < ranks(); ++rank) {
        channels_[rank]->post_owned(kServerAnnounce, channel_tag(round(), item.bucket),
                                    copy_bytes(std::span(&answer_, 1)));
      }
      if (has_keeper()) held_.push_back({channel_tag(round(), item.bucket), answer_, {}});
    }
    return true;
  }

  void update(const Item& item) {
    const Segment& segment = *item.segment;
    const ServerJoin& join = job_->join_;
    kernels::UpdateOptions options = join.update;
    options.learning_rate = answer_.learning_rate;
    options.step = static_cast<double>(job_->updates_ + round());
    const bool lossy = !job_->in_memory() && join.wire.lossy();
    const bool sparse = lossy && join.wire.type == collective::WireType::kTopK;
    if (sparse && !add_up(item)) return;
    const kernels::WireFormat format = job_->in_memory() || lossy ? kernels::WireFormat::kFloat32 : join.wire.format();
    const std::size_t width = kernels::byte_size(format);
    std::byte* const answer =
        job_->answers_.data() == nullptr ? nullptr : job_->answers_.data() + job_->answer_at_[item.index];
    const float whole = 1;
    const std::span coefficients = sparse ? std::span(&whole, 1) : std::span<const float>(coefficients_);
    std::vector<kernels::WireInput> inputs(coefficients.size());
    const auto set_inputs = [&](std::size_t begin) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (sparse) {
          inputs[i] = {sum_.data() + begin};
          continue;
        }
        const std::byte* frame = pushed(ranks_[i], item, taken_);
        inputs[i] =
            lossy ? join.wire.input(frame, segment.count, begin) : kernels::WireInput{frame + begin * width, format};
      }
    };
    if (job_->is_reversible()) {
      options.step = static_cast<double>(job_->updates_ + answer_.update);
      job_->shared_.squares(item.index) =
          take_reversible_step(segment, inputs, coefficients, scale_, options, answer_.update, set_inputs);
      job_->made_[item.index] = answer_.update;
    } else {
      take_step(segment, inputs, coefficients, scale_, options, lossy ? nullptr : answer, format, set_inputs);
    }
    job_->record_update(item.index, round());
    if (job_->claimed()) {
      count_update(metrics_, *std::ranges::min_element(times_), monotonic_seconds());
    } else {
      rank_arrivals(0).updated(taken_, monotonic_seconds());
    }
    metrics_.bytes_aggregated.add(ranks_.size() * segment.count * sizeof(float));

    if (job_->in_memory()) {
      job_->shared_.bucket(item.bucket).updated.add(round() * job_->model_.buckets()[item.bucket].segments());
      return;
    }
    const std::size_t answer_bytes = job_->answer_form_.frame_bytes(segment.count);
    metrics_.bytes_in.add(remote_ * join.wire.frame_bytes(segment.count));
    metrics_.bytes_out.add(remote_ * answer_bytes);
    if (lossy) answer_lossily(item);
    const std::byte* values = answer != nullptr ? answer : reinterpret_cast<std::byte*>(job_->array(0, segment));
    const std::uint64_t tag = channel_tag(round(), item.index);
    const bool adds_up_only = join.update.rule == kernels::UpdateRule::kSum;
    for (std::size_t rank = has_keeper() ? 1 : 0; rank < ranks(); ++rank) {
      if (in_region(rank)) {
        std::byte* const place = job_->gradients_[rank]->data() + (adds_up_only ? 0 : job_->model_.weights_at());
        std::memcpy(place + job_->model_.offset(segment), values, answer_bytes);
      }
      channels_[rank]->post_send(kServerWeights, tag, {values, in_region(rank) ? 0 : answer_bytes});
    }
    if (!has_keeper()) return;
    net::Connection& keeper = *channels_.back();
    for (std::size_t number = 0; number <= job_->state_.size(); ++number) {
      keeper.post_send(static_cast<std::uint16_t>(kServerState + number), tag,
                       std::as_bytes(std::span(job_->array(number, segment), segment.count)));
    }
    expect(ranks(), kServerKept, tag, {});
    ++sent_to_keeper_;
    held_.push_back({tag, {}, {values, answer_bytes}});
  }

  bool has_keeper() const { return channels_.size() > ranks() && !ended(ranks()); }
  // For rank 0, which gets it once the next frames of its round are expected.
  struct Held {
    std::uint64_t tag = 0;
    Announcement announcement;          // of a bucket, or
    std::span<const std::byte> values;  // the weights of a segment
  };
  // All of it where the keeper is lost: then this server is there, and has the state.
  void release() {
    const std::uint64_t kept = sent_to_keeper_ - (has_keeper() ? channels_.back()->pending_receives() : 0);
    for (; !held_.empty(); held_.pop_front()) {
      const Held& next = held_.front();
      if (next.values.empty()) {
        channels_[0]->post_owned(kServerAnnounce, next.tag, copy_bytes(std::span(&next.announcement, 1)));
        continue;
      }
      if (released_ == kept) break;
      ++released_;
      channels_[0]->post_send(kServerWeights, next.tag, next.values);
    }
    ShardTask::progress(0);
  }

  // The sum of a segment's sparse pushes.
  bool add_up(const Item& item) {
    sum_.assign(item.segment->count, 0);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (job_->join_.wire.add(pushed(ranks_[i], item, taken_), coefficients_[i], sum_)) continue;
      give_up({ErrorCode::kCorrupt,
               fmt::format("bucket {}, segment {}: rank {} pushed an index beyond the segment's {} values", item.bucket,
                           item.index, ranks_[i], item.segment->count),
               ranks_[i]});
      return false;
    }
    return true;
  }

  // Workers are told how the weights have changed against those that they have, so that what one answer leaves out is
  // in the next difference. A gradient without an optimizer is a difference already.
  void answer_lossily(const Item& item) {
    const Segment& segment = *item.segment;
    const std::span weights(job_->array(0, segment), segment.count);
    const std::span acknowledged(job_->acknowledged_.as<float>(job_->model_.offset(segment)), segment.count);
    const collective::WireForm& form = job_->answer_form_;
    std::byte* frame = job_->answers_.data() + job_->answer_at_[item.index];
    if (job_->join_.update.rule != kernels::UpdateRule::kSum) {
      change_.resize(segment.count);
      std::ranges::transform(weights, acknowledged, change_.begin(), std::minus());
      form.compress(change_, frame);
      const bool added = form.add(frame, 1, acknowledged);
      MOTLEY_INVARIANT(added, "an own frame has an index beyond the segment");
    } else if (ranks_.empty()) {
      std::fill_n(frame, form.frame_bytes(segment.count), std::byte{0});  // no gradient
    } else {
      std::ranges::transform(weights, acknowledged, acknowledged.begin(), std::plus());
      form.compress(acknowledged, frame);
    }
  }

  std::uint32_t round() const { return to_round(taken_); }

  std::uint64_t taken_ = 0;  // items; where segments are claimed, those before a bucket's head
  bool begun_ = false;       // that bucket in this round, by this core
  std::size_t remote_ = 0;   // ranks whose values come and go over channels

  // Of the bucket under way.
  std::vector<Announcement> announcements_;  // by rank
  std::vector<int> ranks_;                   // that bring something
  std::vector<float> coefficients_;
  float scale_ = 0;
  Announcement answer_;
  std::vector<double> times_;  // of a claimed job: when ranks came, by rank

  std::deque<Held> held_;             // until the keeper has the state of this and what was before
  std::uint64_t sent_to_keeper_ = 0;  // segments
  std::uint64_t released_ = 0;

  std::vector<float> sum_;     // of a segment's sparse pushes
  std::vector<float> change_;  // of a segment's weights, that workers do not know of
};

// A core's part of an asynchronous job: each push updates the weights by itself, as soon as it is there, and is
// answered with weights that lack no more of the other ranks' pushes than it allows.
//
// Items of a rank come in the order of rounds, buckets and segments, as everywhere; ranks take turns. A push of the
// share w of a step is an update by the fraction w (kernels/update.h). The new weights go into the rank's own copy in
// the same pass over memory if it may have them at once; if it has to wait for others, they are copied when the last of
// those has come. Nobody writes a rank's copy after it was answered until it pushes the same segment again.
class AsyncShardTask final : public ShardTask {
 public:
  AsyncShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : ShardTask(std::move(job), core, std::move(channels), std::move(lost)), item_steps_(items_.size()) {
    ranks_.resize(this->channels().size());
    for (Progress& progress : ranks_) progress.ahead.resize(job_->model_.buckets().size());
  }

  bool advance() override {
    const auto rank = next_rank();
    if (!rank) return false;
    turn_ = *rank + 1;
    return take(*rank);
  }

 private:
  // Where a rank is. Items are counted over all rounds.
  struct Progress {
    std::uint64_t taken = 0;     // items that have had their effect
    std::uint64_t answered = 0;  // items that need no answer any more
    Announcement announced;
    std::vector<std::uint64_t> ahead;  // items that it may be ahead, by bucket
  };

  bool has_work() const override { return next_rank().has_value(); }

  // That has an item, the one whose turn it is first.
  std::optional<std::size_t> next_rank() const {
    if (items_.empty() || failed_) return std::nullopt;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::size_t rank = (turn_ + i) % ranks_.size();
      if (has_item(rank)) return rank;
    }
    return std::nullopt;
  }

  bool has_item(std::size_t rank) const {
    const std::uint64_t taken = ranks_[rank].taken;
    if (!job_->in_memory()) return received(rank) > taken;
    const Item& item = item_at(taken);
    if (item.segment != nullptr) return true;
    const std::uint32_t started = job_->shared_.announced(item.bucket, rank).round.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(started - to_round(taken)) >= 0;
  }

  // The rank's next item takes effect, and whoever waited for it is answered.
  bool take(std::size_t rank) {
    Progress& own = ranks_[rank];
    const Item& item = item_at(own.taken);
    const std::uint32_t round = to_round(own.taken);
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
      own.ahead[item.bucket] = std::min<std::uint64_t>(own.announced.ahead, kAnyStaleness) * items_.size();
      ++own.taken;
    } else {
      const bool next = own.answered == own.taken;
      ++own.taken;
      written = next && own.announced.weight > 0 && may_answer(rank, slowest());
      if (own.announced.weight > 0) apply(rank, item, written);
      rank_arrivals(rank).updated(own.taken - 1, monotonic_seconds());
      if (!job_->in_memory()) metrics_.bytes_in.add(item.segment->count * kernels::byte_size(format()));
    }
    if (!job_->in_memory()) post(own.taken - 1 + ahead(), rank);
    const std::uint64_t slowest_now = slowest();
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      while (may_answer(other, slowest_now)) {
        answer(other, written && other == rank);
      }
      if (!job_->in_memory()) progress(other);
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
    metrics_.bucket.set(item_at(last->taken).bucket);
    metrics_.step.set(last->announced.step);
  }

  void apply(std::size_t rank, const Item& item, bool answers) {
    const Segment& segment = *item.segment;
    const Announcement& announced = ranks_[rank].announced;
    double& steps = item_steps_[&item - items_.data()];
    steps += announced.weight;
    kernels::UpdateOptions options = job_->join_.update;
    options.learning_rate = announced.learning_rate;
    options.step = static_cast<double>(job_->updates_) + steps;
    options.fraction = announced.weight;
    const std::size_t width = kernels::byte_size(format());
    const std::byte* gradient = pushed(rank, item, ranks_[rank].taken - 1);
    kernels::WireInput input{nullptr, format()};
    const float one = 1;
    take_step(segment, {&input, 1}, {&one, 1}, 1, options, answers ? rank_copy(rank, item) : nullptr, format(),
              [&](std::size_t begin) { input.values = gradient + begin * width; });
    metrics_.bytes_aggregated.add(segment.count * sizeof(float));
  }

  bool may_answer(std::size_t rank, std::uint64_t slowest) const {
    const Progress& it = ranks_[rank];
    const Item& item = item_at(it.answered);
    return it.answered < it.taken && it.answered < slowest + it.ahead[item.bucket];
  }

  // The rank gets the weights of the next item that it has not got. `written`: they stand in its copy already.
  void answer(std::size_t rank, bool written) {
    Progress& own = ranks_[rank];
    const std::size_t at = own.answered % items_.size();
    const Item& item = items_[at];
    const std::uint32_t round = to_round(own.answered++);
    if (item.segment == nullptr) return;
    const Segment& segment = *item.segment;
    std::byte* copy = rank_copy(rank, item);
    if (!written) kernels::write_format(format(), {job_->array(0, segment), segment.count}, copy);
    if (!job_->in_memory()) {
      const std::size_t bytes = segment.count * kernels::byte_size(format());
      metrics_.bytes_out.add(bytes);
      channels_[rank]->post_send(kServerWeights, channel_tag(round, item.index), {copy, bytes});
    }
    if (at + 1 == items_.size() || items_[at + 1].bucket != item.bucket) {
      // All of this core's weights of the bucket are on their way: says which rounds of each rank are in them. In
      // memory the core says it that owns the bucket's end.
      std::vector<std::uint32_t> rounds;
      for (const Progress& other : ranks_) {
        rounds.push_back(static_cast<std::uint32_t>((other.taken + items_.size() - 1 - at) / items_.size()));
      }
      if (!job_->in_memory()) {
        channels_[rank]->post_owned(kServerAnnounce, channel_tag(round, item.bucket), copy_bytes(rounds));
      } else if (segment.begin + segment.count == job_->join_.bucket_elements[item.bucket]) {
        std::ranges::copy(rounds, job_->shared_.rounds(item.bucket, rank).begin());
      }
    }
    if (job_->in_memory()) {
      job_->shared_.answered(item.bucket, rank).add(round * job_->model_.buckets()[item.bucket].segments());
    }
  }

  std::uint64_t slowest() const { return std::ranges::min_element(ranks_, {}, &Progress::taken)->taken; }

  std::byte* rank_copy(std::size_t rank, const Item& item) const {
    if (!job_->in_memory()) return job_->copies_[rank].data() + job_->answer_at_[item.index];
    return job_->shared_.rank_values(rank) + job_->model_.offset(*item.segment);
  }

  kernels::WireFormat format() const {
    return job_->in_memory() ? kernels::WireFormat::kFloat32 : job_->join_.wire.format();
  }

  std::vector<Progress> ranks_;
  std::vector<double> item_steps_;  // steps since the job began, by item
  std::size_t turn_ = 0;            // the rank that is looked at first
};

std::unique_ptr<AggregationTask> make_shard_task(std::shared_ptr<DenseJob> job, int core, Channels channels,
                                                 std::unique_ptr<net::Connection> replica, TellLost lost) {
  if (replica) channels.push_back(std::move(replica));
  if (job->is_async()) {
    return std::make_unique<AsyncShardTask>(std::move(job), core, std::move(channels), std::move(lost));
  }
  return std::make_unique<DenseShardTask>(std::move(job), core, std::move(channels), std::move(lost));
}

}  // namespace motley::ps
