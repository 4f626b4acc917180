// Gradients meeting in memory that all ranks of one host map. See docs/exchange.md for the protocol.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/collective/exchange.h"
#include "motley/collective/shared_group.h"
#include "motley/net/region.h"

namespace motley::collective {

class SharedMemoryExchange final : public Exchange {
 public:
  SharedMemoryExchange(net::Session& session, const ExchangeOptions& options);
  ~SharedMemoryExchange() override;

  Status prepare(const Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::string name() const override { return "shared-memory"; }

 private:
  struct Announcement;
  struct BucketControl;

  // This process's view of a bucket.
  struct Bucket {
    std::size_t elements = 0;
    std::size_t offset = 0;  // bytes from the start of each rank's values
    std::size_t chunk_elements = 0;
    std::uint32_t chunks = 0;
    std::uint32_t round = 0;  // how many times it was started
    std::uint64_t step = 0;
    bool under_way = false;
    double started_at = 0;
    double left_alone = 0;  // seconds between start and wait the last time
  };

  BucketControl& control(int bucket) const;
  Announcement& announcement(int bucket, int rank) const;
  Status reduce_chunks(int bucket, std::uint32_t round, std::uint64_t step);
  Status check(int bucket, const Deadline& deadline, bool arriving) const;
  void help();
  void break_with(const Error& error);

  net::Session& session_;
  const bool background_progress_;
  const int rank_;
  const int size_;
  DataType type_ = DataType::kFloat32;
  std::unique_ptr<SharedGroup> group_;
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

}  // namespace motley::collective
