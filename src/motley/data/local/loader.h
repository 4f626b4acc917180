// Reads samples ahead: a thread fills buffers for the parts that were requested while the worker computes on the part
// before, with others' help where decoding takes long. The worker asks for what it will need (its next share, a
// micro-batch of it, a pulled shard) and takes batches in the order of the requests.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/data/local/augmentation.h"
#include "motley/data/local/dataset.h"

namespace motley::data {

// Samples that were read, in the order of the request. Parts that were not asked for are empty.
struct Batch {
  std::vector<std::uint32_t> samples;
  std::vector<float> features;        // samples x feature_count
  std::vector<std::int64_t> classes;  // samples x target_width, for class targets
  std::vector<float> values;          // the same, for real targets
  std::vector<std::uint64_t> ids;     // samples x categories
  double seconds = 0;                 // that reading took
};

// Reads these parts of batch.samples into the batch's memory, in so many threads.
Status read_batch(const Dataset& dataset, Batch& batch, Parts parts = {}, std::size_t threads = 1);

// One thread requests, takes and discards. The dataset must outlive the loader.
class Loader {
 public:
  struct Options {
    std::size_t threads = 1;  // that read and decode a batch's samples
    Augmentation augmentation = {};
  };
  // At most `depth` batches are requested and not yet taken; that bounds the memory.
  Loader(const Dataset& dataset, std::size_t depth, const Options& options);
  Loader(const Dataset& dataset, std::size_t depth) : Loader(dataset, depth, Options()) {}
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Asks for these samples (one or more) as this epoch augments them. Never blocks; false when `depth` requests are
  // already waiting.
  bool request(std::span<const std::uint32_t> samples, Parts parts = {}, std::uint64_t epoch = 0);
  std::size_t waiting() const { return outstanding_; }

  // The oldest request's batch. Its samples now count as used: recording them in UseCounts is the caller's, here and
  // only here, so that what was read ahead and discarded is never counted. A batch that comes back by recycle() lends
  // its memory to a later one. kUnavailable where the system gave the loader no thread.
  Result<Batch> take(const Deadline& deadline);
  void recycle(Batch batch);

  // The ids of the batch that take() would give; empty where it has not been read by the deadline, or none was
  // requested.
  std::vector<std::uint64_t> next_ids(const Deadline& deadline);

  // Forgets all requests that were not taken, when the plan has changed.
  void discard();

 private:
  struct Request {
    std::vector<std::uint32_t> samples;
    Parts parts;
    std::uint64_t epoch = 0;
  };
  struct Done {
    Batch batch;
    Status status;
  };
  void run();

  const Dataset& dataset_;
  const std::size_t depth_;
  const Options options_;
  std::size_t outstanding_ = 0;          // of the caller's thread alone
  std::optional<Error> no_thread_ = {};  // why none could be started to read; likewise

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::deque<Request> requests_;
  std::deque<Done> done_;
  std::vector<Batch> spare_;
  std::uint64_t generation_ = 0;  // raised by discard: what is being read then is dropped
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace motley::data
