// A Group over memory that all ranks of one host map: each operation is one barrier, or one for each 128 KiB.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "motley/collective/exchange.h"
#include "motley/collective/shared_counter.h"
#include "motley/net/region.h"

namespace motley::collective {

class SharedGroup final : public Group {
 public:
  // Collective. `name` tells groups of one session apart while they are being made.
  static Result<std::unique_ptr<SharedGroup>> create(net::Session& session, const std::string& name,
                                                     const Deadline& deadline);

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override;
  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override;
  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override;
  Status barrier(const Deadline& deadline) override;
  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) override;
  Status store(int counter, std::int64_t value, const Deadline& deadline) override;

  // True if every rank can have a core of its own, so that a short spin costs nobody anything.
  bool may_spin() const { return may_spin_; }

 private:
  struct Slot;
  struct Control;
  enum class Operation : std::uint32_t { kAllGather = 1, kBroadcast, kBarrier };

  SharedGroup(net::Session& session, std::unique_ptr<net::Region> region);
  Slot& slot(int rank) const;
  std::byte* chunk(int rank) const;
  Status meet(Operation operation, std::span<const std::byte> mine, std::size_t total, const Deadline& deadline);

  net::Session& session_;
  std::unique_ptr<net::Region> region_;
  int rank_;
  int size_;
  bool may_spin_ = false;
  std::uint64_t sequence_ = 0;
  Status failed_;
};

}  // namespace motley::collective
