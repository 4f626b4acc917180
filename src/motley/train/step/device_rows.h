// Hot rows in the memory of a GPU: a tier (collective/row_tier.h) of one tensor on a device, with a row of it for each
// row held, which are gathered, and moved by their optimizer, there. On the CPU the same code runs, to test it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "motley/ps/embedding/row_tier.h"
#include "motley/ps/protocol/row_index.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::train {

// Not thread-safe. Errors of libtorch are kInternal, of its memory kUnavailable.
class DeviceRows final : public ps::RowTier {
 public:
  // Takes memory for `capacity` rows (1 or more) at once.
  static Result<std::unique_ptr<DeviceRows>> create(torch::Device device, std::size_t dimension,
                                                    const ps::RowOptimizer& optimizer, std::size_t capacity);

  std::size_t record_floats() const override { return static_cast<std::size_t>(rows_.size(1)); }
  std::size_t capacity() const override { return static_cast<std::size_t>(rows_.size(0)); }
  std::size_t size() const override { return index_.size(); }
  bool holds(std::uint64_t id) const override;
  Status insert(std::span<const std::uint64_t> ids, std::span<const float> records) override;
  Status evict(std::span<const std::uint64_t> ids, std::span<float> records) override;
  Status pull(std::span<const std::uint64_t> ids, std::span<float> rows) override;
  Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients) override;

  // pull() and push() for who computes on the device: weights [n, dimension] there, and gradients of that shape.
  Result<torch::Tensor> gather(std::span<const std::uint64_t> ids) const;
  Status apply(std::span<const std::uint64_t> ids, const torch::Tensor& gradients);

 private:
  DeviceRows(torch::Tensor rows, std::size_t dimension, const ps::RowOptimizer& optimizer);
  Result<std::vector<std::int64_t>> find_slots(std::span<const std::uint64_t> ids) const;
  torch::Tensor on_device(const std::vector<std::int64_t>& slots) const;
  void update(torch::Tensor& records, const torch::Tensor& gradients) const;

  torch::Tensor rows_;  // capacity x record_floats
  const std::int64_t dimension_;
  const ps::RowOptimizer optimizer_;
  ps::RowIndex index_;               // from ids to rows of the tensor
  std::vector<std::uint32_t> free_;  // of them
};

}  // namespace motley::train
