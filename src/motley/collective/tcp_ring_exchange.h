// Gradients meeting over TCP: a segmented ring for large buckets, all to all for small ones. See docs/exchange.md.
#pragma once

#include <memory>
#include <vector>

#include "motley/base/os/pages.h"
#include "motley/collective/direct_lane.h"
#include "motley/collective/exchange.h"
#include "motley/collective/lane_driver.h"
#include "motley/collective/ring_lane.h"

namespace motley::collective {

class TcpRingExchange final : public Exchange, private Lanes {
 public:
  TcpRingExchange(net::Session& session, const ExchangeOptions& options);

  Status prepare(const Layout& layout, const Deadline& deadline) override;
  std::span<std::byte> buffer(int bucket) override;
  Status start(std::uint64_t step, int bucket, double weight) override;
  Result<Outcome> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::string name() const override { return "tcp-ring"; }
  std::uint64_t bytes_sent() const override;

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
    LaneDriver::Patience patience;
  };

  Status connect(const Layout& layout, std::size_t largest_segment_elements, const Deadline& deadline);
  Result<bool> advance() override;
  bool idle() const override;
  void list_descriptors(std::vector<pollfd>& descriptors) const override;
  bool done(const Bucket& bucket) const;
  std::vector<int> waits_for(const Bucket& bucket) const;

  net::Session& session_;
  const ExchangeOptions options_;
  const int rank_;
  const int size_;
  bool over_loopback_ = false;
  Layout layout_;
  Pages values_;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<net::Connection>> neighbours_;  // of the lanes

  // These belong to whoever holds the driver's lock.
  std::vector<std::unique_ptr<RingLane>> lanes_;
  std::unique_ptr<DirectLane> direct_;
  LaneDriver driver_{session_, *this};  // last: its helper ends first
};

}  // namespace motley::collective
