#include "motley/data/local/loader.h"

#include <algorithm>
#include <chrono>

#include "motley/base/os/signals.h"

namespace motley::data {

namespace {

// As Dataset::read, in so many threads, each of which reads a part of the samples. The calling thread reads the parts
// for which there is no thread.
Status read_in_parts(const Dataset& dataset, std::span<const std::uint32_t> samples, const ReadTarget& into,
                     std::size_t threads) {
  threads = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(1, samples.size()));
  std::vector<Status> results(threads);
  const auto read_part = [&](std::size_t number) {
    const std::size_t begin = samples.size() * number / threads, end = samples.size() * (number + 1) / threads;
    const auto part = [&](auto whole) {
      const std::size_t width = whole.size() / std::max<std::size_t>(1, samples.size());
      return whole.subspan(begin * width, (end - begin) * width);
    };
    try {
      results[number] = dataset.read(samples.subspan(begin, end - begin),
                                     {part(into.features), part(into.classes), part(into.values), part(into.ids)});
    } catch (const std::bad_alloc&) {
      results[number] = fail(ErrorCode::kUnavailable, "not enough memory to read {} samples", samples.size());
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(threads);
  for (std::size_t number = 1; number < threads; ++number) {
    const auto read_own = [&read_part, number] { read_part(number); };
    helpers.push_back(start_thread_or(read_own, [&](const Error&) { read_own(); }));
  }
  read_part(0);
  for (std::thread& helper : helpers) {
    if (helper.joinable()) helper.join();
  }
  for (Status& result : results) MOTLEY_TRY(std::move(result));
  return {};
}

}  // namespace

Status read_batch(const Dataset& dataset, Batch& batch, Parts parts, std::size_t threads) {
  const double begin = monotonic_seconds();
  const std::size_t inputs = parts.inputs ? batch.samples.size() : 0;
  const std::size_t targets = parts.targets ? batch.samples.size() * dataset.target_width() : 0;
  const bool has_classes = dataset.target_kind() == TargetKind::kClass;
  batch.features.resize(inputs * dataset.feature_count());
  batch.classes.resize(has_classes ? targets : 0);
  batch.values.resize(has_classes ? 0 : targets);
  batch.ids.resize(inputs * dataset.categories());
  MOTLEY_TRY(read_in_parts(dataset, batch.samples, {batch.features, batch.classes, batch.values, batch.ids}, threads));
  batch.seconds = monotonic_seconds() - begin;
  return {};
}

Loader::Loader(const Dataset& dataset, std::size_t depth, const Options& options)
    : dataset_(dataset), depth_(depth), options_(options) {
  MOTLEY_INVARIANT(depth > 0, "a loader reads at least one batch ahead");
  thread_ = start_thread_or([this] { run(); },
                            [this](const Error& error) { no_thread_ = error.within("reading samples ahead"); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Loader::request(std::span<const std::uint32_t> samples, Parts parts, std::uint64_t epoch) {
  MOTLEY_INVARIANT(!samples.empty(), "a request for no samples");
  if (outstanding_ == depth_) return false;
  ++outstanding_;
  dataset_.expect(samples, parts);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back({{samples.begin(), samples.end()}, parts, epoch});
  }
  wake_.notify_all();
  return true;
}

Result<Batch> Loader::take(const Deadline& deadline) {
  MOTLEY_INVARIANT(outstanding_ > 0, "a batch is taken that was not requested");
  if (no_thread_) return fail(*no_thread_);
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
  if (outstanding_ > 0 && !no_thread_) {
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
    Request request = std::move(requests_.front());
    done.batch.samples = std::move(request.samples);
    requests_.pop_front();
    const std::uint64_t generation = generation_;
    lock.unlock();

    try {
      done.status = read_batch(dataset_, done.batch, request.parts, options_.threads);
      if (done.status) {
        augment(options_.augmentation, request.epoch, done.batch.samples, dataset_.feature_shape(),
                done.batch.features);
      }
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
