// Gradients meeting over TCP: a segmented ring for large buckets, all to all for small ones. See docs/exchange.md.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/exchange/direct_lane.h"
#include "motley/exchange/exchange.h"
#include "motley/exchange/ring_lane.h"

namespace motley::exchange {

class TcpRingExchange final : public Exchange {
 public:
  TcpRingExchange(transport::Session& session, const ExchangeOptions& options);
  ~TcpRingExchange() override;

  Status prepare(const Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::string name() const override { return "tcp-ring"; }

 private:
  struct Bucket {
    std::size_t elements = 0;
    std::size_t offset = 0;
    std::size_t segment_elements = 0;
    bool direct = false;
    bool under_way = false;
    std::uint64_t step = 0;
    double total_weight = 0;
    std::uint64_t direct_number = 0;
    std::vector<std::uint64_t> pass_numbers;  // by lane; 0: this lane has no part
    double started_at = 0;
    double left_alone = 0;  // seconds between start and wait the last time
  };

  Status connect(const Layout& layout, std::size_t largest_segment_elements, const Deadline& deadline);
  Result<bool> advance();
  std::unique_lock<std::mutex> lock_first();
  bool done(const Bucket& bucket) const;
  bool idle() const;
  std::vector<int> waits_for(const Bucket& bucket) const;
  void list_descriptors(std::vector<pollfd>& descriptors) const;
  void help();

  transport::Session& session_;
  const ExchangeOptions options_;
  const int rank_;
  const int size_;
  bool may_spin_ = false;
  bool over_loopback_ = false;
  Layout layout_;
  std::byte* values_ = nullptr;  // mapped, values_bytes_
  std::size_t values_bytes_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<transport::Connection>> neighbours_;  // of the lanes

  // The lanes belong to whoever holds the mutex: the thread in wait() if there is one, else the helper.
  std::mutex mutex_;
  std::atomic<int> knocking_ = 0;  // callers that want the mutex; the helper lets them go first
  std::condition_variable wake_;
  std::vector<std::unique_ptr<RingLane>> lanes_;
  std::unique_ptr<DirectLane> direct_;
  std::optional<Error> broken_;
  bool waiting_ = false;  // a thread is in wait()
  bool helping_ = false;  // the helper is wanted whenever nobody waits
  bool helper_polls_ = false;
  bool stop_ = false;
  int doorbell_ = -1;  // eventfd that ends the helper's poll
  std::thread helper_;
};

}  // namespace motley::exchange
