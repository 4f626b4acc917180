// Hot rows in the memory of a GPU, a faster and smaller place than the host's: one tensor on a device, with a row of it
// for each row held, which are gathered, and moved by their optimizer, there. Which rows are held is decided by whoever
// brings them up and takes them down again. On the CPU the same code runs, to test it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/protocol/row_index.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::train {

// A record is a row as a whole: its weights, then its optimizer's state (record_floats() floats; row_optimizer.h says
// which). pull() and push() are for ids that are held: others are kInvalidInput, and nothing is changed. Not
// thread-safe. Errors of libtorch are kInternal, of its memory kUnavailable.
class DeviceRows {
 public:
  // Takes memory for `capacity` rows (1 or more) at once.
  static Result<std::unique_ptr<DeviceRows>> create(torch::Device device, std::size_t dimension,
                                                    const ps::RowOptimizer& optimizer, std::size_t capacity);

  std::size_t record_floats() const { return static_cast<std::size_t>(rows_.size(1)); }
  std::size_t capacity() const { return static_cast<std::size_t>(rows_.size(0)); }  // rows, at most
  std::size_t size() const { return index_.size(); }                                // rows, now
  bool holds(std::uint64_t id) const;
  // Brings rows up: distinct ids that are not held, with a record each. All or nothing; kUnavailable where they do not
  // fit.
  Status insert(std::span<const std::uint64_t> ids, std::span<const float> records);
  // Takes rows down: distinct ids that are held, whose records as they are now are written to `records`.
  Status evict(std::span<const std::uint64_t> ids, std::span<float> records);
  // Writes the weights of ids[i] to rows[i * dimension, (i + 1) * dimension). Ids may repeat.
  Status pull(std::span<const std::uint64_t> ids, std::span<float> rows);
  // Gradients as rows above; those of one id are summed in their order, and its optimizer runs once.
  Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients);

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
