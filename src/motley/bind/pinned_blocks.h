// Blocks of a communicator's memory that a device copies from and to by itself: pinned once each, and used again
// and again, as pinning takes longer than an operation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "motley/collective/communicator.h"
#include "motley/nn/gradients/device_copy.h"
#include "motley/nn/gradients/pinned_region.h"

namespace motley::bind {

class PinnedBlocks {
 public:
  explicit PinnedBlocks(nn::DeviceCopies copies) : copies_(std::move(copies)) {}
  ~PinnedBlocks();
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;

  // A tensor on the CPU of that one's size and type, in a block of its own, which comes back with its last reference
  // and is given out again once the copies that were begun before that have ended, both ways: those of an operation
  // that was given up may be under way. kUnavailable where the block cannot be pinned. Any thread.
  static Result<at::Tensor> take(const std::shared_ptr<PinnedBlocks>& blocks, collective::Communicator& communicator,
                                 const at::Tensor& tensor);

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<nn::PinnedRegion> pinned;         // goes first
    std::vector<std::shared_ptr<c10::Event>> copied;  // after the copies that used it
  };

  Result<Block> take(collective::Communicator& communicator, std::size_t bytes);
  void give_back(Block block, std::size_t bytes);

  const nn::DeviceCopies copies_;
  std::mutex mutex_;                        // guards all below
  std::multimap<std::size_t, Block> free_;  // by bytes
  bool is_refused_ = false;                 // pinning was
};

}  // namespace motley::bind
