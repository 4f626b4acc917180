#include "motley/data/local/loader.h"

#include <chrono>

namespace motley::data {

Status read_batch(const Dataset& dataset, Batch& batch, Parts parts) {
  const double begin = monotonic_seconds();
  const std::size_t inputs = parts.inputs ? batch.samples.size() : 0;
  const std::size_t targets = parts.targets ? batch.samples.size() * dataset.target_width() : 0;
  const bool has_classes = dataset.target_kind() == TargetKind::kClass;
  batch.features.resize(inputs * dataset.feature_count());
  batch.classes.resize(has_classes ? targets : 0);
  batch.values.resize(has_classes ? 0 : targets);
  batch.ids.resize(inputs * dataset.categories());
  MOTLEY_TRY(dataset.read(batch.samples, {batch.features, batch.classes, batch.values, batch.ids}));
  batch.seconds = monotonic_seconds() - begin;
  return {};
}

Loader::Loader(const Dataset& dataset, std::size_t depth) : dataset_(dataset), depth_(depth) {
  MOTLEY_INVARIANT(depth > 0, "a loader reads at least one batch ahead");
  thread_ = std::thread([this] { run(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool Loader::request(std::span<const std::uint32_t> samples, Parts parts) {
  MOTLEY_INVARIANT(!samples.empty(), "a request for no samples");
  if (outstanding_ == depth_) return false;
  ++outstanding_;
  dataset_.expect(samples, parts);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back({{samples.begin(), samples.end()}, parts});
  }
  wake_.notify_all();
  return true;
}

Result<Batch> Loader::take(const Deadline& deadline) {
  MOTLEY_INVARIANT(outstanding_ > 0, "a batch is taken that was not requested");
  std::unique_lock lock(mutex_);
  const auto allowed = std::chrono::duration<double>(deadline.remaining());
  if (!wake_.wait_for(lock, allowed, [this] { return !done_.empty(); })) {
    return fail(ErrorCode::kTimeout, "the loader did not read its next batch within {} s ({} requested)",
                deadline.allowed(), outstanding_);
  }
  Done done = std::move(done_.front());
  done_.pop_front();
  --outstanding_;
  MOTLEY_TRY(std::move(done.status));
  return std::move(done.batch);
}

std::vector<std::uint64_t> Loader::next_ids(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (outstanding_ > 0) {
    wake_.wait_for(lock, std::chrono::duration<double>(deadline.remaining()), [this] { return !done_.empty(); });
  }
  return done_.empty() || !done_.front().status ? std::vector<std::uint64_t>() : done_.front().batch.ids;
}

void Loader::recycle(Batch batch) {
  const std::lock_guard lock(mutex_);
  if (spare_.size() <= depth_) spare_.push_back(std::move(batch));
}

void Loader::discard() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  requests_.clear();
  done_.clear();
  outstanding_ = 0;
}

void Loader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !requests_.empty(); });
    if (stop_) return;
    Done done;
    if (!spare_.empty()) {
      done.batch = std::move(spare_.back());
      spare_.pop_back();
    }
    const Parts parts = requests_.front().parts;
    done.batch.samples = std::move(requests_.front().samples);
    requests_.pop_front();
    const std::uint64_t generation = generation_;
    lock.unlock();

    try {
      done.status = read_batch(dataset_, done.batch, parts);
    } catch (const std::bad_alloc&) {
      done.status =
          fail(ErrorCode::kUnavailable, "not enough memory to read {} samples ahead", done.batch.samples.size());
    }

    lock.lock();
    if (generation == generation_) {
      done_.push_back(std::move(done));
      wake_.notify_all();
    }
  }
}

}  // namespace motley::data
