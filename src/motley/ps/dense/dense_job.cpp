// Segment after segment, always in the same order: once all ranks' gradients of a segment are there, they are summed in
// the order of the ranks and the optimizer takes its step, in one pass over memory. As the order of rounds, buckets and
// segments is the same for everybody, a frame needs no looking up: it is the next one or an error.
//
// A segment's memory is used again in the next round only after all ranks have got this round's weights, since no rank
// starts a bucket before it has waited for it. So weights may be sent straight from where they stand.
#include "motley/ps/dense/dense_job.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "motley/base/clock.h"
#include "motley/kernels/compress.h"

namespace motley::ps {

Result<std::shared_ptr<DenseJob>> DenseJob::create(const ServerJoin& join, int cores,
                                                   std::vector<std::unique_ptr<net::Region>> regions,
                                                   const std::string& region_name) {
  auto job = std::make_shared<DenseJob>();
  job->join_ = join;
  job->cores_ = cores;
  job->received_ =
      std::vector<std::atomic<std::uint64_t>>(static_cast<std::size_t>(cores) * static_cast<std::size_t>(join.size));
  job->model_ = DividedModel(join.bucket_elements);
  job->model_.divide(join.chunk_bytes, join.bins, join.bin_speeds);
  job->metrics_ = std::make_shared<JobMetrics>(join.size, cores);
  const std::vector<std::size_t>& load = job->model_.load();
  const auto values = std::accumulate(load.begin(), load.end(), std::size_t{0});
  if (values > 0) {
    job->metrics_->map_imbalance = static_cast<double>(*std::ranges::max_element(load)) *
                                   static_cast<double>(load.size()) / static_cast<double>(values);
  }
  job->claimed_ = std::vector<std::atomic<std::uint32_t>>(join.bucket_elements.size());
  const std::size_t bytes = job->model_.bytes();
  for (int array = 0; array < kernels::state_arrays(join.update.rule); ++array) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, "the optimizer's state"));
    job->state_.push_back(std::move(pages));
  }
  if (!regions.empty()) {
    const std::size_t size = ServerRegion::bytes(join.bucket_elements, cores, join.size, join.is_async);
    MOTLEY_ASSIGN(job->region_, net::Region::create(region_name, size));
    job->shared_ = ServerRegion(job->region_->data(), join.bucket_elements, cores, join.size, join.is_async);
    job->gradients_ = std::move(regions);
    if (join.is_async) {
      MOTLEY_ASSIGN(job->weights_, Pages::allocate(bytes, "weights"));
    }
    return job;
  }
  job->push_at_ = job->model_.frame_offsets(join.wire);
  for (int rank = 0; rank < join.size; ++rank) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(job->push_at_.back(), "gradients"));
    job->pushes_.push_back(std::move(pages));
  }
  MOTLEY_ASSIGN(job->weights_, Pages::allocate(bytes, "weights"));
  job->answer_form_ = join.wire.answer(join.size, join.update);
  job->answer_at_ = job->model_.frame_offsets(job->answer_form_);
  for (int rank = 0; rank < join.size && join.is_async; ++rank) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(job->answer_at_.back(), "weights of a rank"));
    job->copies_.push_back(std::move(pages));
  }
  if (join.wire.type != collective::WireType::kNative && !join.is_async) {
    MOTLEY_ASSIGN(job->answers_, Pages::allocate(job->answer_at_.back(), "weights on the wire"));
  }
  if (join.wire.lossy()) {
    MOTLEY_ASSIGN(job->acknowledged_, Pages::allocate(bytes, "the weights that workers have"));
  }
  return job;
}

void DenseJob::begin(std::uint64_t updates) {
  updates_ = updates;
  if (acknowledged_.data() == nullptr || join_.update.rule == kernels::UpdateRule::kSum) return;
  for (const Segment& segment : model_.segments()) {
    if (segment.bin < join_.first_bin || segment.bin >= join_.first_bin + cores_) continue;
    std::copy_n(array(0, segment), segment.count, acknowledged_.as<float>() + model_.element_index(segment));
  }
}

std::size_t DenseJob::bytes_needed(const ServerJoin& join, int cores, bool in_memory) {
  const std::size_t bytes = ServerRegion::value_offsets(join.bucket_elements).back();
  const std::size_t copies = 1 + static_cast<std::size_t>(kernels::state_arrays(join.update.rule));
  if (in_memory) {
    return ServerRegion::bytes(join.bucket_elements, cores, join.size, join.is_async) +
           (join.is_async ? copies : copies - 1) * bytes;
  }
  double share = static_cast<double>(cores) / join.bins;
  if (!join.bin_speeds.empty()) {
    const auto first = join.bin_speeds.begin() + join.first_bin;
    share = std::accumulate(first, first + std::min(cores, join.bins - join.first_bin), 0.0) /
            std::accumulate(join.bin_speeds.begin(), join.bin_speeds.end(), 0.0);
  }
  const auto own = static_cast<std::size_t>(static_cast<double>(bytes) * share);
  const std::size_t pushes = static_cast<std::size_t>(join.size) * join.wire.frame_bytes(own / sizeof(float));
  return (copies + (join.wire.lossy() ? 1 : 0)) * own + (join.is_async ? 2 : 1) * pushes;
}

float* DenseJob::array(std::size_t index, const Segment& segment) const {
  float* values = index > 0                    ? state_[index - 1].as<float>()
                  : in_memory() && !is_async() ? reinterpret_cast<float*>(shared_.values())
                                               : weights_.as<float>();
  return values + model_.element_index(segment);
}

std::span<float> DenseJob::part(const StatePart& part) {
  if (part.array > state_.size() || part.segment >= model_.segments().size()) return {};
  const Segment& segment = model_.segments()[part.segment];
  const std::size_t begin = part.piece * kPieceElements;
  const bool here = segment.bin >= join_.first_bin && segment.bin < join_.first_bin + cores_;
  if (!here || begin >= segment.count) return {};
  return {array(part.array, segment) + begin, std::min(kPieceElements, segment.count - begin)};
}

// Where all wait for all, those that have brought less than another are missing; in an asynchronous job the slowest
// are, while the server holds an answer back for them.
DenseJob::Standing DenseJob::standing() const {
  Standing standing;
  const auto size = static_cast<std::size_t>(join_.size);
  std::set<int> missing;
  const auto look = [&](const std::vector<std::uint64_t>& come, std::uint64_t bucket, std::uint64_t step, bool holds) {
    const auto [least, most] = std::ranges::minmax(come);
    standing.progress += std::accumulate(come.begin(), come.end(), std::uint64_t{0});
    if (!holds && (is_async() || least == most)) return;
    for (std::size_t rank = 0; rank < size && least < most; ++rank) {
      if (come[rank] < (is_async() ? least + 1 : most)) missing.insert(static_cast<int>(rank));
    }
    if (standing.waits) return;
    standing.waits = true;
    standing.bucket = bucket;
    standing.step = step;
  };
  std::vector<std::uint64_t> come(size);
  for (std::size_t bucket = 0; in_memory() && !is_async() && bucket < join_.bucket_elements.size(); ++bucket) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      come[rank] = shared_.announced(bucket, static_cast<int>(rank)).round.load(std::memory_order_acquire);
    }
    const auto ready =
        static_cast<std::uint32_t>(*std::ranges::min_element(come) * model_.buckets()[bucket].segments());
    const auto unclaimed = static_cast<std::int32_t>(ready - claimed_[bucket].load(std::memory_order_relaxed));
    standing.waiting += static_cast<std::uint64_t>(std::max(unclaimed, 0));
    const auto furthest = std::ranges::max_element(come);
    const auto& announced = shared_.announced(bucket, static_cast<int>(furthest - come.begin()));
    look(come, bucket, announced.by_round[*furthest % 2].step, false);
  }
  for (std::size_t core = 0; core < metrics_->shards.size(); ++core) {
    const ShardMetrics& shard = metrics_->shards[core];
    for (std::size_t rank = 0; rank < size; ++rank) {
      come[rank] = is_async()    ? shard.ranks[rank].taken.get()
                   : in_memory() ? 0
                                 : received_[core * size + rank].load(std::memory_order_relaxed);
    }
    look(come, shard.bucket.get(), shard.step.get(), shard.held.get() > 0 || shard.waiting.get() > 0);
    standing.progress += shard.segments.get();
  }
  standing.waits = standing.waits || standing.waiting > 0;
  standing.missing.assign(missing.begin(), missing.end());
  return standing;
}

ShardTask::ShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
    : AggregationTask(std::move(channels), job->model_.buckets().size(), std::move(lost)),
      job_(std::move(job)),
      core_(core),
      metrics_(job_->metrics_->shards[static_cast<std::size_t>(core)]) {
  std::vector<Arrivals::Item> round;
  const std::vector<Segment>& segments = job_->model_.segments();
  for (std::size_t index = 0; index < segments.size(); ++index) {
    if (!job_->claimed() && segments[index].bin != job_->join_.first_bin + core_) continue;
    const int bucket = segments[index].bucket;
    const bool first = items_.empty() || items_.back().bucket != bucket;
    if (first) {
      items_.push_back({bucket, nullptr, 0});
      round.push_back({.segment = false, .judged = segments[index].begin == 0});
    }
    items_.push_back({bucket, &segments[index], index});
    round.push_back({.segment = true});
  }
  const std::size_t alone = job_->is_async() ? channels_.size() : 1;
  for (std::size_t i = 0; i < alone; ++i) arrivals_.emplace_back(round, channels_.size() / alone, metrics_);
  if (!items_.empty()) metrics_.bucket.set(static_cast<std::uint64_t>(items_[0].bucket));
  if (!job_->in_memory()) {
    for (const Item& item : items_) {
      for (std::size_t rank = 0; rank < channels_.size(); ++rank) post(item, 1, rank);
    }
  }
}

void ShardTask::post(const Item& item, std::uint32_t round, std::size_t rank) {
  if (item.segment == nullptr) return expect_announcement(rank, static_cast<std::size_t>(item.bucket), round);
  std::byte* frame = job_->pushes_[rank].data() + job_->push_at_[item.index];
  expect(rank, kServerPush, channel_tag(round, item.index), {frame, job_->join_.wire.frame_bytes(item.segment->count)});
}

std::uint64_t ShardTask::received(std::size_t rank) const {
  const std::uint64_t received = arrived(rank);
  job_->received_[static_cast<std::size_t>(core_) * channels_.size() + rank].store(received, std::memory_order_relaxed);
  return received;
}

void ShardTask::came(std::size_t rank, std::uint64_t end, double time) {
  rank_arrivals(rank).came(arrivals_.size() > 1 ? 0 : rank, end, time);
}

double ShardTask::time_in_memory(std::size_t rank, int bucket) const {
  const double time = job_->shared_.announced(static_cast<std::size_t>(bucket), static_cast<int>(rank)).time;
  const double now = monotonic_seconds();
  return time >= 0 && time <= now ? time : now;
}

const Announcement& ShardTask::announced(int bucket, std::size_t rank, std::uint32_t round) const {
  const auto at = static_cast<std::size_t>(bucket);
  return job_->in_memory() ? job_->shared_.announced(at, static_cast<int>(rank)).by_round[round % 2]
                           : landing_[rank][at];
}

std::size_t ShardTask::chunk_elements() const {
  const std::size_t chunk = std::max<std::size_t>(job_->join_.chunk_bytes / sizeof(float), 16);
  // Blocks of int8 are not cut.
  return job_->join_.wire.lossy() ? kernels::int8_blocks(chunk) * kernels::kInt8Block : chunk;
}

void ShardTask::progress(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  if (ended(at)) return;
  net::Connection& channel = *channels_[at];
  Status status;
  if (job_->in_memory()) {
    // Only bells come, whose ringing has had its effect.
    for (;;) {
      const auto wakeup = channel.try_receive();
      if (!wakeup) status = fail(wakeup.error());
      if (!wakeup || !*wakeup) break;
    }
  } else if (const auto moved = channel.progress(); !moved) {
    status = fail(moved.error());
  } else if (*moved) {
    came(at, received(at), monotonic_seconds());
  }
  if (!status) {
    end_channel(at, {status.error().code, fmt::format("rank {}: {}", rank, status.error().message), rank});
  }
}

bool ShardTask::fall_asleep() {
  if (!job_->in_memory()) return !has_work();
  job_->shared_.core(core_).asleep.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !has_work();
}

void ShardTask::wake_up() {
  if (job_->in_memory()) job_->shared_.core(core_).asleep.store(0, std::memory_order_relaxed);
}

// All ranks' gradients of a segment make one step.
class DenseShardTask final : public ShardTask {
 public:
  DenseShardTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : ShardTask(std::move(job), core, std::move(channels), std::move(lost)),
        announcements_(this->channels().size()) {}

  bool advance() override {
    if (!has_work()) return false;
    if (job_->claimed()) {
      claim();
      return true;
    }
    const Item item = items_[next_];
    if (item.segment == nullptr) {
      if (!begin_bucket(item)) return false;
    } else {
      update(item);
    }
    ++taken_;
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) post(item, round_ + 1, rank);
    if (++next_ == items_.size()) {
      next_ = 0;
      ++round_;
    }
    metrics_.bucket.set(static_cast<std::uint64_t>(items_[next_].bucket));
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) progress(static_cast<int>(rank));
    return true;
  }

 private:
  bool has_work() const override {
    if (items_.empty() || failed_) return false;
    if (job_->claimed()) {
      return job_->shared_.bucket(static_cast<std::size_t>(items_[next_].bucket))
          .arrived.reached(round_ * static_cast<std::uint32_t>(job_->join_.size));
    }
    bool all = true;
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
      const bool here = received(rank) > taken_;
      if (here && items_[next_].segment == nullptr) {
        metrics_.step.set(announced(items_[next_].bucket, rank, round_).step);
      }
      all = here && all;
    }
    return all;
  }

  // In memory a core takes the next segment of the bucket that none has taken in this round, so that none waits for a
  // core that came late. Who has claimed one keeps the round from ending: the announcements stand until it is done. Who
  // comes after the last only passes on to the next bucket, which may be rounds behind, and must not look at them.
  void claim() {
    const Item& head = items_[next_];
    const auto bucket = static_cast<std::size_t>(head.bucket);
    const std::uint32_t segments = job_->model_.buckets()[bucket].segments();
    const std::uint32_t end = round_ * segments;
    std::atomic<std::uint32_t>& claimed = job_->claimed_[bucket];
    std::uint32_t seen = claimed.load(std::memory_order_relaxed);
    while (static_cast<std::int32_t>(seen - end) < 0) {
      if (!claimed.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) continue;
      if (!begun_ && !begin_bucket(head)) return;
      if (seen + segments == end) judge_last(metrics_, times_);
      begun_ = true;
      update(items_[next_ + 1 + segments - (end - seen)]);
      return;
    }
    begun_ = false;
    next_ += 1 + segments;
    if (next_ == items_.size()) {
      next_ = 0;
      ++round_;
    }
  }

  // All ranks have announced the bucket: what coefficients their gradients get.
  bool begin_bucket(const Item& item) {
    const auto bucket = static_cast<std::size_t>(item.bucket);
    for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
      announcements_[rank] = announced(item.bucket, rank, round_);
    }
    const auto mean = weigh(item.bucket, announcements_);
    if (!mean) return false;
    ranks_ = mean->ranks;
    coefficients_.assign(mean->coefficients.begin(), mean->coefficients.end());
    scale_ = static_cast<float>(mean->scale);
    answer_ = {announcements_[0].step, mean->total_weight, announcements_[0].learning_rate, 0};
    metrics_.step.set(answer_.step);
    if (job_->claimed()) {
      times_.clear();
      for (std::size_t rank = 0; rank < channels_.size(); ++rank) times_.push_back(time_in_memory(rank, item.bucket));
    } else {
      rank_arrivals(0).begun(taken_);
    }
    if (!job_->in_memory()) {
      for (const auto& channel : channels_) {
        channel->post_owned(kServerAnnounce, channel_tag(round_, bucket), copy_bytes(std::span(&answer_, 1)));
      }
    }
    return true;
  }

  void update(const Item& item) {
    const Segment& segment = *item.segment;
    const ServerJoin& join = job_->join_;
    kernels::UpdateOptions options = join.update;
    options.learning_rate = answer_.learning_rate;
    options.step = static_cast<double>(job_->updates_ + round_);
    const bool lossy = !job_->in_memory() && join.wire.lossy();
    const bool sparse = lossy && join.wire.type == collective::WireType::kTopK;
    if (sparse && !add_up(item)) return;
    const kernels::WireFormat format = job_->in_memory() || lossy ? kernels::WireFormat::kFloat32 : join.wire.format();
    const std::size_t width = kernels::byte_size(format);
    const std::size_t element = job_->model_.element_index(segment);
    std::byte* wire =
        job_->answers_.data() == nullptr || lossy ? nullptr : job_->answers_.data() + job_->answer_at_[item.index];

    const std::size_t chunk = chunk_elements();
    const float whole = 1;
    std::vector<kernels::WireInput> inputs(sparse ? 1 : ranks_.size());
    const std::span coefficients = sparse ? std::span(&whole, 1) : std::span<const float>(coefficients_);
    std::vector<float*> state(job_->state_.size());
    for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
      const std::size_t count = std::min(chunk, segment.count - begin);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (sparse) {
          inputs[i] = {sum_.data() + begin};
        } else if (const auto rank = static_cast<std::size_t>(ranks_[i]); job_->in_memory()) {
          inputs[i] = {job_->gradients_[rank]->data() + (element + begin) * width};
        } else {
          const std::byte* frame = job_->pushes_[rank].data() + job_->push_at_[item.index];
          inputs[i] =
              lossy ? join.wire.input(frame, segment.count, begin) : kernels::WireInput{frame + begin * width, format};
        }
      }
      for (std::size_t array = 0; array < state.size(); ++array) {
        state[array] = job_->array(array + 1, segment) + begin;
      }
      kernels::fused_update(inputs, coefficients, scale_, options, job_->array(0, segment) + begin, state.data(),
                            wire == nullptr ? nullptr : wire + begin * width, format, count);
    }
    if (job_->claimed()) {
      count_update(metrics_, *std::ranges::min_element(times_), monotonic_seconds());
    } else {
      rank_arrivals(0).updated(taken_, monotonic_seconds());
    }
    metrics_.bytes_aggregated.add(ranks_.size() * segment.count * sizeof(float));

    if (job_->in_memory()) {
      const auto bucket = static_cast<std::size_t>(item.bucket);
      job_->shared_.bucket(bucket).updated.add(round_ * job_->model_.buckets()[bucket].segments());
      return;
    }
    metrics_.bytes_in.add(channels_.size() * join.wire.frame_bytes(segment.count));
    metrics_.bytes_out.add(channels_.size() * job_->answer_form_.frame_bytes(segment.count));
    if (lossy) answer_lossily(item);
    const std::byte* values = job_->answers_.data() == nullptr
                                  ? reinterpret_cast<const std::byte*>(job_->array(0, segment))
                                  : job_->answers_.data() + job_->answer_at_[item.index];
    for (const auto& channel : channels_) {
      channel->post_send(kServerWeights, channel_tag(round_, item.index),
                         {values, job_->answer_form_.frame_bytes(segment.count)});
    }
  }

  // The sum of a segment's sparse pushes.
  bool add_up(const Item& item) {
    sum_.assign(item.segment->count, 0);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const auto rank = static_cast<std::size_t>(ranks_[i]);
      const std::byte* frame = job_->pushes_[rank].data() + job_->push_at_[item.index];
      if (job_->join_.wire.add(frame, coefficients_[i], sum_)) continue;
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
    const std::span acknowledged(job_->acknowledged_.as<float>() + job_->model_.element_index(segment), segment.count);
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

  std::size_t next_ = 0;  // of the items; where segments are claimed, the head of a bucket
  bool begun_ = false;    // that bucket in this round, by this core
  std::uint32_t round_ = 1;
  std::uint64_t taken_ = 0;  // items, over all rounds

  // Of the bucket under way.
  std::vector<Announcement> announcements_;  // by rank
  std::vector<int> ranks_;                   // that bring something
  std::vector<float> coefficients_;
  float scale_ = 0;
  Announcement answer_;
  std::vector<double> times_;  // of a claimed job: when ranks came, by rank

  std::vector<float> sum_;     // of a segment's sparse pushes
  std::vector<float> change_;  // of a segment's weights, that workers do not know of
};

std::unique_ptr<AggregationTask> make_shard_task(std::shared_ptr<DenseJob> job, int core, Channels channels,
                                                 TellLost lost) {
  if (job->is_async()) return make_async_task(std::move(job), core, std::move(channels), std::move(lost));
  return std::make_unique<DenseShardTask>(std::move(job), core, std::move(channels), std::move(lost));
}

}  // namespace motley::ps
