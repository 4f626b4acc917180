// Embedding rows in the memory of an accelerator: the hot ones, which are kept there from step to step, and above them
// those of a batch, each of which crosses the host link once, beside what the device computes. There they are looked
// up, and their gradients are summed. On the CPU the same code runs, to test it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/gradients/device_copy.h"
#include "motley/ps/client/cache_index.h"

namespace motley::train {

// Not thread-safe: one thread, on whose current stream rows are looked up. Errors of libtorch are kInternal, of its
// memory kUnavailable.
class DeviceRows {
 public:
  // Takes memory for `capacity` rows of so many float32 at once (0: none are kept), each of which is used until it is
  // max_staleness steps old. kInvalidInput where the device has less than that.
  static Result<std::unique_ptr<DeviceRows>> create(torch::Device device, std::size_t dimension, std::size_t capacity,
                                                    std::int64_t max_staleness);

  bool keeps() const { return cache_.has_value(); }

  // A batch between take() and complete(); one at a time of those that keep rows.
  struct Batch {
    std::vector<std::uint64_t> missing;  // ids that are not kept, or too old; each once, in the order of the batch
    std::size_t found = 0;               // different ids that are kept
    // On their way: the slots of those found, and for each position of the batch where its row is among those found and
    // those missing.
    torch::Tensor places;
    torch::Tensor rows;  // of those missing
    torch::Tensor kept;  // which of these will be kept, and in which slots; undefined: none
  };
  // Rows as they are after step `after`, or max_staleness before; nullopt: past those that are kept, and none will be.
  Result<Batch> take(std::span<const std::uint64_t> ids, std::optional<std::int64_t> after);
  // For the rows of batch.missing: [missing, dimension], float32, of this machine's memory, pinned.
  Result<torch::Tensor> memory_for(const Batch& batch) const;
  // Sends them to the device, as they are after this step; nullopt as above. Never waits for what is computed.
  Status send(Batch& batch, const torch::Tensor& rows, std::optional<std::int64_t> after);
  // [ids, dimension] on the device, looked up by what is computed from now on.
  Result<torch::Tensor> complete(const Batch& batch);

  // The sum of the gradients of each id, in the order of the batch; equal ids are one.
  struct Sums {
    std::vector<std::uint64_t> ids;
    nn::DeviceCopies::Arriving values;  // [ids, dimension], float32
  };
  // Of gradients [ids, dimension] on the device.
  Result<Sums> sum(std::span<const std::uint64_t> ids, const torch::Tensor& gradients) const;

 private:
  DeviceRows(nn::DeviceCopies copies, std::size_t dimension)
      : copies_(std::move(copies)), dimension_(static_cast<std::int64_t>(dimension)) {}

  const nn::DeviceCopies copies_;
  const std::int64_t dimension_;
  std::optional<ps::CacheIndex> cache_;
  torch::Tensor table_;  // of the slots: capacity x dimension
};

}  // namespace motley::train
