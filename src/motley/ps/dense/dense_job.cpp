// The job's memory, its state, and how it stands.
#include "motley/ps/dense/dense_job.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace motley::ps {

Result<std::shared_ptr<DenseJob>> DenseJob::create(const ServerJoin& join, int cores,
                                                   std::vector<std::unique_ptr<net::Region>> regions) {
  const auto size = static_cast<std::size_t>(join.size);
  auto job = std::make_shared<DenseJob>();
  job->join_ = join;
  job->cores_ = cores;
  job->received_ = std::vector<std::atomic<std::uint64_t>>(cores * size);
  job->claimed_ = std::vector<std::atomic<std::uint32_t>>(join.bucket_elements.size());
  job->model_ = DividedModel(join.bucket_elements);
  job->model_.divide(join.chunk_bytes, join.bins, join.bin_speeds);
  job->metrics_ = std::make_shared<JobMetrics>(join.size, cores);
  const std::vector<std::size_t>& load = job->model_.load();
  const auto values = std::accumulate(load.begin(), load.end(), std::size_t{0});
  if (values > 0) {
    job->metrics_->map_imbalance = static_cast<double>(*std::ranges::max_element(load)) *
                                   static_cast<double>(load.size()) / static_cast<double>(values);
  }
  const auto allocate = [](std::vector<Pages>& all, std::size_t count, std::size_t bytes, const char* what) -> Status {
    while (all.size() < count) {
      MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, what));
      all.push_back(std::move(pages));
    }
    return {};
  };
  const std::size_t bytes = job->model_.bytes();
  MOTLEY_TRY(allocate(job->state_, kernels::state_arrays(join.update.rule), bytes, "the optimizer's state"));
  if (regions.empty() || join.is_async) {
    MOTLEY_ASSIGN(job->weights_, Pages::allocate(bytes, "weights"));
  }
  if (!regions.empty()) {
    job->gradients_ = std::move(regions);
    MOTLEY_ASSIGN(job->region_,
                  net::Region::create(ServerRegion::bytes(join.bucket_elements, cores, join.size, join.is_async)));
    job->shared_ = ServerRegion(job->region_->data(), join.bucket_elements, cores, join.size, join.is_async);
    return job;
  }
  job->push_at_ = job->model_.frame_offsets(join.wire);
  job->answer_form_ = join.wire.answer(join.size, join.update);
  job->answer_at_ = job->model_.frame_offsets(job->answer_form_);
  MOTLEY_TRY(allocate(job->pushes_, size, job->push_at_.back(), "gradients"));
  if (join.is_async) {
    MOTLEY_TRY(allocate(job->copies_, size, job->answer_at_.back(), "weights of a rank"));
  } else if (join.wire.type != collective::WireType::kNative) {
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
    if (!is_here(segment)) continue;
    std::copy_n(array(0, segment), segment.count, acknowledged_.as<float>(model_.offset(segment)));
  }
}

std::size_t DenseJob::bytes_needed(const ServerJoin& join, int cores, bool in_memory) {
  const std::size_t bytes = collective::value_offsets(join.bucket_elements, sizeof(float)).back();
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

std::byte* DenseJob::pushed(std::size_t rank, std::size_t segment) const {
  return in_memory() ? gradients_[rank]->data() + model_.offset(model_.segments()[segment])
                     : pushes_[rank].data() + push_at_[segment];
}

std::span<float> DenseJob::part(const StatePart& part) {
  if (part.array > state_.size() || part.segment >= model_.segments().size()) return {};
  const Segment& segment = model_.segments()[part.segment];
  const std::size_t begin = part.piece * kPieceElements;
  if (!is_here(segment) || begin >= segment.count) return {};
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
