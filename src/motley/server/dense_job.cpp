// Segment after segment, always in the same order: once all ranks' gradients of a segment are there, they are summed in
// the order of the ranks and the optimizer takes its step, in one pass over memory. As the order of rounds, buckets and
// segments is the same for everybody, a frame needs no looking up: it is the next one or an error.
//
// A segment's memory is used again in the next round only after all ranks have got this round's weights, since no rank
// starts a bucket before it has waited for it. So weights may be sent straight from where they stand.
#include "motley/server/dense_job.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "motley/base/clock.h"
#include "motley/exchange/mean.h"

namespace motley::server {

using exchange::Announcement;
using exchange::Segment;
using exchange::ServerRegion;

Result<std::shared_ptr<DenseJob>> DenseJob::create(const exchange::ServerJoin& join, int cores,
                                                   std::vector<std::unique_ptr<transport::Region>> regions,
                                                   const std::string& region_name) {
  auto job = std::make_shared<DenseJob>();
  job->join_ = join;
  job->cores_ = cores;
  job->received_ =
      std::vector<std::atomic<std::uint64_t>>(static_cast<std::size_t>(cores) * static_cast<std::size_t>(join.size));
  const std::vector<std::size_t> elements(join.bucket_elements.begin(), join.bucket_elements.end());
  job->map_ = exchange::make_chunk_map(elements, sizeof(float), join.chunk_bytes, join.bins);
  job->metrics_ = std::make_shared<JobMetrics>(join.size, cores);
  const std::vector<std::size_t>& load = job->map_.load;
  const auto values = std::accumulate(load.begin(), load.end(), std::size_t{0});
  if (values > 0) {
    job->metrics_->map_imbalance = static_cast<double>(*std::ranges::max_element(load)) *
                                   static_cast<double>(load.size()) / static_cast<double>(values);
  }
  job->offsets_ = ServerRegion::value_offsets(join.bucket_elements);
  job->segments_of_bucket_.assign(elements.size(), 0);
  for (const Segment& segment : job->map_.segments) {
    ++job->segments_of_bucket_[static_cast<std::size_t>(segment.bucket)];
  }
  const std::size_t bytes = job->offsets_.back();
  for (int array = 0; array < kernels::state_arrays(join.update.rule); ++array) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, "the optimizer's state"));
    job->state_.push_back(std::move(pages));
  }
  if (!regions.empty()) {
    const std::size_t size = ServerRegion::bytes(join.bucket_elements, cores, join.size);
    MOTLEY_ASSIGN(job->region_, transport::Region::create(region_name, size));
    job->shared_ = ServerRegion(job->region_->data(), join.bucket_elements, cores, join.size);
    job->gradients_ = std::move(regions);
    return job;
  }
  const std::size_t width = kernels::bytes_of(join.wire);
  for (int rank = 0; rank < join.size; ++rank) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes / sizeof(float) * width, "gradients"));
    job->pushes_.push_back(std::move(pages));
  }
  MOTLEY_ASSIGN(job->weights_, Pages::allocate(bytes, "weights"));
  if (join.wire != kernels::WireFormat::kFloat32) {
    MOTLEY_ASSIGN(job->wire_weights_, Pages::allocate(bytes / sizeof(float) * width, "weights on the wire"));
  }
  return job;
}

std::size_t DenseJob::bytes_needed(const exchange::ServerJoin& join, int cores, bool in_memory) {
  const std::size_t bytes = ServerRegion::value_offsets(join.bucket_elements).back();
  const std::size_t copies = 1 + static_cast<std::size_t>(kernels::state_arrays(join.update.rule));
  if (in_memory) {
    return ServerRegion::bytes(join.bucket_elements, cores, join.size) + (copies - 1) * bytes;
  }
  const std::size_t own = bytes * static_cast<std::size_t>(cores) / static_cast<std::size_t>(join.bins);
  const std::size_t pushes = static_cast<std::size_t>(join.size) * own / sizeof(float) * kernels::bytes_of(join.wire);
  return copies * own + pushes;
}

std::size_t DenseJob::element_of(const Segment& segment) const {
  return offsets_[static_cast<std::size_t>(segment.bucket)] / sizeof(float) + segment.begin;
}

float* DenseJob::array(std::size_t index, const Segment& segment) const {
  float* values = index > 0     ? state_[index - 1].as<float>()
                  : in_memory() ? reinterpret_cast<float*>(shared_.values())
                                : weights_.as<float>();
  return values + element_of(segment);
}

std::span<float> DenseJob::part(const exchange::StatePart& part) {
  if (part.array > state_.size() || part.segment >= map_.segments.size()) return {};
  const Segment& segment = map_.segments[part.segment];
  const std::size_t begin = part.piece * exchange::kPieceElements;
  const bool here = segment.bin >= join_.first_bin && segment.bin < join_.first_bin + cores_;
  if (!here || begin >= segment.count) return {};
  return {array(part.array, segment) + begin, std::min(exchange::kPieceElements, segment.count - begin)};
}

std::vector<int> DenseJob::missing_ranks() const {
  const auto size = static_cast<std::size_t>(join_.size);
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < size; ++rank) {
    bool behind = false;
    for (std::size_t core = 0; core < static_cast<std::size_t>(cores_); ++core) {
      for (std::size_t other = 0; other < size; ++other) {
        behind = behind || received_[core * size + rank] < received_[core * size + other];
      }
    }
    if (behind) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

DenseJob::Standing DenseJob::standing() const {
  Standing standing;
  const auto size = static_cast<std::size_t>(join_.size);
  std::vector<bool> missing(size);
  // What one of the parts that wait for all ranks has from each of them.
  const auto look = [&](const auto& come_from, std::uint64_t bucket, const auto& step) {
    std::uint64_t most = 0;
    for (std::size_t rank = 0; rank < size; ++rank) most = std::max<std::uint64_t>(most, come_from(rank));
    for (std::size_t rank = 0; rank < size; ++rank) {
      const std::uint64_t come = come_from(rank);
      standing.progress += come;
      if (come == most) continue;
      missing[rank] = true;
      if (!standing.waits) {
        standing.waits = true;
        standing.bucket = bucket;
        standing.step = step(most);
      }
    }
  };
  if (in_memory()) {
    for (std::size_t bucket = 0; bucket < join_.bucket_elements.size(); ++bucket) {
      const auto said = [&](std::size_t rank) -> ServerRegion::Said& {
        return shared_.said(bucket, static_cast<int>(rank));
      };
      const auto round_of = [&](std::size_t rank) { return said(rank).round.load(std::memory_order_acquire); };
      look(round_of, bucket, [&](std::uint64_t most) {
        std::size_t rank = 0;
        while (rank + 1 < size && round_of(rank) != most) ++rank;
        return said(rank).by_round[most % 2].step;
      });
    }
  }
  for (std::size_t core = 0; core < metrics_->shares.size(); ++core) {
    const ShareMetrics& share = metrics_->shares[core];
    if (!in_memory()) {
      look([&](std::size_t rank) { return received_[core * size + rank].load(std::memory_order_relaxed); },
           share.bucket.get(), [&](std::uint64_t) { return share.step.get(); });
    }
    standing.progress += share.segments.get();
    if (share.waiting.get() > 0 && !standing.waits) {
      standing.waits = true;
      standing.bucket = share.bucket.get();
      standing.step = share.step.get();
    }
  }
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (missing[rank]) standing.missing.push_back(static_cast<int>(rank));
  }
  return standing;
}

DenseShare::DenseShare(std::shared_ptr<DenseJob> job, int core,
                       std::vector<std::unique_ptr<transport::TcpConnection>> lanes, std::function<void(Error)> lost)
    : job_(std::move(job)),
      core_(core),
      metrics_(job_->metrics_->shares[static_cast<std::size_t>(core)]),
      lanes_(std::move(lanes)),
      lost_(std::move(lost)) {
  std::vector<Arrivals::Item> round;
  const std::vector<Segment>& segments = job_->map_.segments;
  for (std::size_t index = 0; index < segments.size(); ++index) {
    if (segments[index].bin != job_->join_.first_bin + core_) continue;
    const int bucket = segments[index].bucket;
    const bool first = items_.empty() || items_.back().bucket != bucket;
    if (first) {
      items_.push_back({bucket, nullptr, 0});
      round.push_back({.segment = false, .judged = segments[index].begin == 0});
    }
    items_.push_back({bucket, &segments[index], index});
    round.push_back({.segment = true});
  }
  arrivals_.emplace(std::move(round), lanes_.size(), metrics_);
  if (!items_.empty()) metrics_.bucket.set(static_cast<std::uint64_t>(items_[0].bucket));
  posted_.assign(lanes_.size(), 0);
  ended_.assign(lanes_.size(), false);
  said_.resize(lanes_.size());
  announced_.assign(lanes_.size(), std::vector<Announcement>(job_->offsets_.size()));
  if (!job_->in_memory()) {
    for (const Item& item : items_) post(item, round_);
  }
}

// Expects the item's frames of this round from all ranks.
void DenseShare::post(const Item& item, std::uint32_t round) {
  for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
    if (item.segment == nullptr) {
      lanes_[rank]->post_receive(
          exchange::kServerAnnounce, exchange::lane_tag(round, static_cast<std::size_t>(item.bucket)),
          std::as_writable_bytes(std::span(&announced_[rank][static_cast<std::size_t>(item.bucket)], 1)));
    } else {
      const std::size_t width = kernels::bytes_of(job_->join_.wire);
      std::byte* slot = job_->pushes_[rank].data() + job_->element_of(*item.segment) * width;
      lanes_[rank]->post_receive(exchange::kServerPush, exchange::lane_tag(round, item.index),
                                 {slot, item.segment->count * width});
    }
    ++posted_[rank];
  }
}

bool DenseShare::has_work() {
  if (items_.empty() || failed_) return false;
  const Item& item = items_[next_];
  if (job_->in_memory()) {
    return item.segment != nullptr || job_->shared_.bucket(static_cast<std::size_t>(item.bucket))
                                          .arrived.reached(round_ * static_cast<std::uint32_t>(job_->join_.size));
  }
  std::uint64_t from_all = UINT64_MAX;
  double now = 0;
  for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
    const std::uint64_t received = posted_[rank] - lanes_[rank]->pending_receives();
    from_all = std::min(from_all, received);
    if (received == arrivals_->of(rank)) continue;
    if (now == 0) now = monotonic_seconds();
    arrivals_->came(rank, received, now);
    job_->received_[static_cast<std::size_t>(core_) * lanes_.size() + rank].store(received, std::memory_order_relaxed);
    if (item.segment == nullptr && received > taken_) {
      metrics_.step.set(announced_[rank][static_cast<std::size_t>(item.bucket)].step);
    }
  }
  arrivals_->ready(from_all);
  return from_all > taken_;
}

bool DenseShare::advance() {
  if (!has_work()) return false;
  const Item item = items_[next_];
  if (item.segment == nullptr) {
    if (!begin_bucket(item)) return false;
  } else {
    update(item);
  }
  ++taken_;
  if (!job_->in_memory()) post(item, round_ + 1);
  if (++next_ == items_.size()) {
    next_ = 0;
    ++round_;
  }
  metrics_.bucket.set(static_cast<std::uint64_t>(items_[next_].bucket));
  if (!job_->in_memory()) {
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) progress(static_cast<int>(rank));
  }
  return true;
}

// All ranks have announced the bucket: what coefficients their gradients get.
bool DenseShare::begin_bucket(const Item& item) {
  const auto bucket = static_cast<std::size_t>(item.bucket);
  std::vector<double> weights;
  for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
    said_[rank] = job_->in_memory() ? job_->shared_.said(bucket, static_cast<int>(rank)).by_round[round_ % 2]
                                    : announced_[rank][bucket];
    if (said_[rank].step != said_[0].step || said_[rank].learning_rate != said_[0].learning_rate ||
        !(said_[rank].weight >= 0)) {
      give_up(
          Error{ErrorCode::kInvalidInput,
                fmt::format("bucket {}: rank {} is at step {} with learning rate {} and weight {}, rank 0 at step {} "
                            "with learning rate {}",
                            bucket, rank, said_[rank].step, said_[rank].learning_rate, said_[rank].weight,
                            said_[0].step, said_[0].learning_rate),
                static_cast<int>(rank)});
      return false;
    }
    weights.push_back(said_[rank].weight);
  }
  const exchange::Mean mean = exchange::weighted_mean(weights);
  ranks_ = mean.ranks;
  coefficients_.assign(mean.coefficients.begin(), mean.coefficients.end());
  scale_ = static_cast<float>(mean.scale);
  answer_ = {said_[0].step, mean.total_weight, said_[0].learning_rate};
  if (job_->in_memory()) {
    const double now = monotonic_seconds();
    const std::uint64_t end = arrivals_->end_of_bucket(taken_);
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      const double time = job_->shared_.said(bucket, static_cast<int>(rank)).time;
      arrivals_->came(rank, end, time >= 0 && time <= now ? time : now);
    }
    arrivals_->ready(end);
  }
  arrivals_->begun(taken_);
  metrics_.step.set(answer_.step);
  if (!job_->in_memory()) {
    const auto bytes = std::as_bytes(std::span(&answer_, 1));
    for (const auto& lane : lanes_) {
      lane->post_owned(exchange::kServerAnnounce, exchange::lane_tag(round_, bucket), {bytes.begin(), bytes.end()});
    }
  }
  return true;
}

void DenseShare::update(const Item& item) {
  const Segment& segment = *item.segment;
  const exchange::ServerJoin& join = job_->join_;
  kernels::UpdateOptions options = join.update;
  options.learning_rate = answer_.learning_rate;
  options.step = job_->updates_ + round_;
  const kernels::WireFormat format = job_->in_memory() ? kernels::WireFormat::kFloat32 : join.wire;
  const std::size_t width = kernels::bytes_of(format);
  const std::size_t element = job_->element_of(segment);
  std::byte* wire = job_->wire_weights_.data();

  const std::size_t chunk = std::max<std::size_t>(join.chunk_bytes / sizeof(float), 16);
  std::vector<kernels::WireInput> inputs(ranks_.size());
  std::vector<float*> state(job_->state_.size());
  for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
    const std::size_t count = std::min(chunk, segment.count - begin);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const auto rank = static_cast<std::size_t>(ranks_[i]);
      const std::byte* values = job_->in_memory() ? job_->gradients_[rank]->data() : job_->pushes_[rank].data();
      inputs[i] = {values + (element + begin) * width, format};
    }
    for (std::size_t array = 0; array < state.size(); ++array) {
      state[array] = job_->array(array + 1, segment) + begin;
    }
    kernels::fused_update(inputs, coefficients_, scale_, options, job_->array(0, segment) + begin, state.data(),
                          wire == nullptr ? nullptr : wire + (element + begin) * width, format, count);
  }
  arrivals_->updated(taken_, monotonic_seconds());
  metrics_.bytes_aggregated.add(ranks_.size() * segment.count * sizeof(float));
  if (job_->in_memory()) {
    const auto bucket = static_cast<std::size_t>(item.bucket);
    job_->shared_.bucket(bucket).updated.add(round_ * job_->segments_of_bucket_[bucket]);
    return;
  }
  metrics_.bytes_in.add(lanes_.size() * segment.count * width);
  metrics_.bytes_out.add(lanes_.size() * segment.count * width);
  const std::byte* values =
      wire == nullptr ? reinterpret_cast<const std::byte*>(job_->array(0, segment)) : wire + element * width;
  for (const auto& lane : lanes_) {
    lane->post_send(exchange::kServerWeights, exchange::lane_tag(round_, item.index), {values, segment.count * width});
  }
}

// A lane that has ended is no failure by itself: a rank that has all its weights may go while others still wait for
// theirs. Whether it was missed is for the service to say.
void DenseShare::progress(int rank) {
  if (ended_[static_cast<std::size_t>(rank)]) return;
  transport::TcpConnection& lane = *lanes_[static_cast<std::size_t>(rank)];
  Status status;
  if (job_->in_memory()) {
    // Only bells come, whose ringing has had its effect.
    for (;;) {
      const auto bell = lane.try_receive();
      if (!bell) status = fail(bell.error());
      if (!bell || !*bell) break;
    }
  } else if (const auto moved = lane.progress(); !moved) {
    status = fail(moved.error());
  }
  if (!status) {
    ended_[static_cast<std::size_t>(rank)] = true;
    lost_(Error{status.error().code, fmt::format("rank {}: {}", rank, status.error().message), rank});
  }
}

void DenseShare::give_up(Error error) {
  failed_ = true;
  lost_(std::move(error));
}

bool DenseShare::fall_asleep() {
  if (!job_->in_memory()) return !has_work();
  job_->shared_.core(core_).asleep.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !has_work();
}

void DenseShare::wake_up() {
  if (job_->in_memory()) job_->shared_.core(core_).asleep.store(0, std::memory_order_relaxed);
}

}  // namespace motley::server
