// The job's memory, its state, and how it stands.
#include "motley/ps/dense/dense_job.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "motley/base/guard.h"

namespace motley::ps {

constexpr std::uint64_t kNotThere = std::numeric_limits<std::uint64_t>::max();

Result<std::shared_ptr<DenseJob>> DenseJob::create(const ServerJoin& join, int cores,
                                                   std::vector<std::unique_ptr<net::Region>> regions, bool in_memory) {
  const auto size = static_cast<std::size_t>(join.size);
  auto job = std::make_shared<DenseJob>();
  job->divide(join, cores);
  job->received_ = std::vector<std::atomic<std::uint64_t>>(cores * size);
  job->claimed_ = std::vector<std::atomic<std::uint32_t>>(join.bucket_elements.size());
  job->metrics_ = std::make_shared<JobMetrics>(join.size, cores);
  const std::vector<std::size_t>& load = job->model_.load();
  const auto values = std::accumulate(load.begin(), load.end(), std::size_t{0});
  if (values > 0) {
    job->metrics_->map_imbalance = static_cast<double>(*std::ranges::max_element(load)) *
                                   static_cast<double>(load.size()) / static_cast<double>(values);
  }
  // Arrays are of the whole model, of which a server among several uses its segments' places only.
  const bool has_all = std::ranges::all_of(
      job->model_.segments(), [&](const Segment& segment) { return job->is_here(segment) || job->is_kept(segment); });
  const auto allocate = [&](std::vector<Pages>& all, std::size_t count, std::size_t bytes, const char* what) -> Status {
    while (all.size() < count) {
      MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, what, has_all));
      all.push_back(std::move(pages));
    }
    return {};
  };
  const std::size_t bytes = job->model_.bytes();
  const bool is_reversible = join.is_reversible && in_memory;
  const std::size_t arrays = kernels::state_arrays(join.update.rule);
  MOTLEY_TRY(allocate(job->state_, is_reversible ? 2 * arrays : arrays, bytes, "the optimizer's state"));
  if (is_reversible) job->made_.assign(job->model_.segments().size(), 0);
  if (join.elastic.kept_seconds > 0 && join.update.rule != kernels::UpdateRule::kSum) {
    MOTLEY_TRY(allocate(job->kept_, 1 + job->state_.size(), bytes, "the state of the update before"));
    job->counts_.assign(job->model_.segments().size(), kNotThere);
  }
  if (!in_memory || join.is_async) {
    MOTLEY_ASSIGN(job->weights_, Pages::allocate(bytes, "weights", has_all));
  }
  job->gradients_ = std::move(regions);
  if (in_memory) {
    MOTLEY_ASSIGN(job->region_, net::Region::create(ServerRegion::bytes(join.bucket_elements, cores, join.size,
                                                                        join.is_async, job->reversible_segments())));
    job->shared_ = ServerRegion(job->region_->data(), join.bucket_elements, cores, join.size, join.is_async,
                                job->reversible_segments());
    return job;
  }
  job->push_bytes_ = job->largest_push();
  job->answer_form_ = join.wire.answer(join.size, join.update);
  job->answer_at_ = job->model_.frame_offsets(job->answer_form_);
  MOTLEY_TRY(
      allocate(job->pushes_, static_cast<std::size_t>(cores), size * kPushSlots * job->push_bytes_, "gradients"));
  if (join.is_async) {
    MOTLEY_TRY(allocate(job->copies_, size, job->answer_at_.back(), "weights of a rank"));
  } else if (join.wire.type != collective::WireType::kNative) {
    MOTLEY_ASSIGN(job->answers_, Pages::allocate(job->answer_at_.back(), "weights on the wire", has_all));
  }
  if (join.wire.lossy()) {
    MOTLEY_ASSIGN(job->acknowledged_, Pages::allocate(bytes, "the weights that workers have", has_all));
  }
  return job;
}

void DenseJob::divide(const ServerJoin& join, int cores) {
  join_ = join;
  cores_ = cores;
  model_ = DividedModel(join.bucket_elements);
  model_.divide(join.chunk_bytes, join.bins, join.bin_speeds);
  model_.move_bins(join.elastic.adopted.first, join.elastic.adopted.count, join.first_bin, cores);
}

void DenseJob::begin(std::uint64_t updates) {
  has_begun_ = true;
  updates_ = updates;
  for (std::uint64_t& count : counts_) {
    if (count != kNotThere) count = updates;
  }
  if (acknowledged_.data() == nullptr || join_.update.rule == kernels::UpdateRule::kSum) return;
  for (const Segment& segment : model_.segments()) {
    if (!is_here(segment)) continue;
    std::copy_n(array(0, segment), segment.count, acknowledged_.as<float>(model_.offset(segment)));
  }
}

// All ranks have the weights after `updates`, and no rank has begun the next round but one. So a segment is there, or
// one update ahead, and then kept_ has what it was.
bool DenseJob::take_over(DenseJob& before, std::uint64_t updates) {
  const auto is_there = [&](std::size_t index) {
    return before.counts_[index] == updates || before.counts_[index] == updates + 1;
  };
  const auto is_alike = [](const Segment& a, const Segment& b) {
    return a.bucket == b.bucket && a.begin == b.begin && a.count == b.count;
  };
  if (kept_.size() != before.kept_.size() ||
      !std::ranges::equal(model_.segments(), before.model_.segments(), is_alike)) {
    return false;
  }
  for (std::size_t index = 0; index < counts_.size(); ++index) {
    if (is_here(model_.segments()[index]) && !is_there(index)) return false;
  }
  has_begun_ = true;
  updates_ = updates;
  if (kept_.empty()) return true;  // servers that only add up have no state
  std::swap(state_, before.state_);
  std::swap(kept_, before.kept_);
  if (!in_memory() && !before.in_memory()) std::swap(weights_, before.weights_);
  for (std::size_t index = 0; index < counts_.size(); ++index) {
    const Segment& segment = model_.segments()[index];
    if (!is_there(index) || !(is_here(segment) || is_kept(segment))) continue;
    const std::uint64_t made = before.counts_[index];
    if (in_memory() || before.in_memory()) {
      std::copy_n(before.array(0, segment), segment.count, array(0, segment));
    }
    const bool is_ahead = made > updates && MOTLEY_KEEPS("planted-update-undone");
    for (std::size_t number = 0; is_ahead && number < kept_.size(); ++number) {
      std::copy_n(kept_[number].as<float>() + model_.element_index(segment), segment.count, array(number, segment));
    }
    counts_[index] = updates;
  }
  return true;
}

void DenseJob::mark_given(const StatePart& part) {
  if (!counts_.empty()) counts_[part.segment] = 0;
}

void DenseJob::keep(const Segment& segment, std::size_t begin, std::size_t count) const {
  for (std::size_t number = 0; number < kept_.size(); ++number) {
    std::copy_n(array(number, segment) + begin, count,
                kept_[number].as<float>() + model_.element_index(segment) + begin);
  }
}

void DenseJob::record_update(std::size_t segment, std::uint32_t round) {
  if (!counts_.empty()) counts_[segment] = updates_ + round;
}

void DenseJob::record_kept(std::size_t segment, std::uint32_t round, bool is_known) {
  if (is_known || (keeps() && counts_[segment] != kNotThere)) record_update(segment, round);
}

std::size_t DenseJob::bytes_needed(const ServerJoin& join, int cores, bool in_memory) {
  const std::size_t bytes = collective::value_offsets(join.bucket_elements, sizeof(float)).back();
  const std::size_t arrays = 1 + static_cast<std::size_t>(kernels::state_arrays(join.update.rule));
  const bool keeps = join.elastic.kept_seconds > 0 && join.update.rule != kernels::UpdateRule::kSum;
  const std::size_t copies = arrays * (keeps ? 2 : 1);
  if (in_memory) {
    const std::size_t segments =
        join.is_reversible ? segment_count(join.bucket_elements, join.chunk_bytes, join.bins) : 0;
    return ServerRegion::bytes(join.bucket_elements, cores, join.size, join.is_async, segments) +
           (join.is_async ? copies : (copies - 1) * (join.is_reversible ? 2 : 1)) * bytes;
  }
  DenseJob job;  // a segment is whole, however large: what comes here is more than an equal part of the values
  job.divide(join, cores);
  std::size_t own = 0;
  for (const Segment& segment : job.model_.segments()) {
    if (job.is_here(segment) || job.is_kept(segment)) own += segment.count * sizeof(float);
  }
  const auto ranks = static_cast<std::size_t>(join.size);
  const std::size_t pushed = join.wire.frame_bytes(own / sizeof(float));  // by each
  return (copies + (join.wire.lossy() ? 1 : 0)) * own +
         ranks * std::min(static_cast<std::size_t>(cores) * kPushSlots * job.largest_push(), pushed) +
         (join.is_async ? ranks * pushed : 0);
}

float* DenseJob::array_after(std::uint64_t update, std::size_t index, const Segment& segment) const {
  const std::size_t first = is_reversible() ? update % 2 * (state_.size() / 2) : 0;
  float* values = index > 0                    ? state_[first + index - 1].as<float>()
                  : is_reversible()            ? reinterpret_cast<float*>(shared_.values_after(update))
                  : in_memory() && !is_async() ? reinterpret_cast<float*>(shared_.values())
                                               : weights_.as<float>();
  return values + model_.element_index(segment);
}

std::size_t DenseJob::largest_push() const {
  std::size_t bytes = 0;
  for (const Segment& segment : model_.segments()) bytes = std::max(bytes, join_.wire.frame_bytes(segment.count));
  return (bytes + 63) / 64 * 64;
}

std::span<float> DenseJob::part(const StatePart& part) {
  const std::size_t arrays = is_reversible() ? state_.size() / 2 : state_.size();
  if (part.array > arrays || part.segment >= model_.segments().size()) return {};
  const Segment& segment = model_.segments()[part.segment];
  const std::size_t begin = part.piece * kPieceElements;
  if (!(is_here(segment) || is_kept(segment)) || begin >= segment.count) return {};
  const std::uint64_t made = made_.empty() ? 0 : made_[part.segment];
  return {array_after(made, part.array, segment) + begin, std::min(kPieceElements, segment.count - begin)};
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
      come[rank] = shared_.announced(bucket, rank).round.load(std::memory_order_acquire);
    }
    const auto ready =
        static_cast<std::uint32_t>(*std::ranges::min_element(come) * model_.buckets()[bucket].segments());
    const auto unclaimed = static_cast<std::int32_t>(ready - claimed_[bucket].load(std::memory_order_relaxed));
    standing.waiting += static_cast<std::uint64_t>(std::max(unclaimed, 0));
    const auto furthest = std::ranges::max_element(come);
    const auto& announced = shared_.announced(bucket, furthest - come.begin());
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

}  // namespace motley::ps
