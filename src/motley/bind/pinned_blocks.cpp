#include "motley/bind/pinned_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "motley/nn/gradients/named_tensors.h"

namespace motley::bind {

PinnedBlocks::~PinnedBlocks() {
  for (auto& [bytes, block] : free_) {
    nn::catch_torch(ErrorCode::kInternal, "waiting for copies", [&] {
      for (const auto& event : block.copied) event->synchronize();
    });
  }
}

Result<at::Tensor> PinnedBlocks::take(const std::shared_ptr<PinnedBlocks>& blocks,
                                      collective::Communicator& communicator, const at::Tensor& tensor) {
  const std::size_t bytes = std::bit_ceil(tensor.nbytes());  // few sizes, so that blocks fit again
  MOTLEY_ASSIGN(Block block, blocks->take(communicator, bytes));
  void* const data = block.memory.get();
  return at::from_blob(
      data, tensor.sizes(), [blocks, block = std::move(block), bytes](void*) { blocks->give_back(block, bytes); },
      tensor.options().device(at::kCPU));
}

Result<PinnedBlocks::Block> PinnedBlocks::take(collective::Communicator& communicator, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (is_refused_) return fail(ErrorCode::kUnavailable, "shared memory cannot be pinned");
  const auto [begin, end] = free_.equal_range(bytes);
  for (auto found = begin; found != end; ++found) {
    MOTLEY_ASSIGN(const bool is_idle, nn::catch_torch(ErrorCode::kInternal, "looking for a block without copies", [&] {
                    return std::ranges::all_of(found->second.copied, [](const auto& event) { return event->query(); });
                  }));
    if (!is_idle) continue;
    Block block = std::move(found->second);
    free_.erase(found);
    return block;
  }
  Block block;
  MOTLEY_ASSIGN(block.memory, communicator.allocate(bytes));
  auto pinned = nn::PinnedRegion::pin(copies_.device().type(), {block.memory.get(), bytes});
  is_refused_ = !pinned;
  if (is_refused_) return fail(pinned.error());
  block.pinned = std::make_shared<nn::PinnedRegion>(std::move(*pinned));
  return block;
}

void PinnedBlocks::give_back(Block block, std::size_t bytes) {
  auto read = copies_.filled();
  auto written = copies_.arrived();
  const std::lock_guard lock(mutex_);
  if (!read || !written) return;  // the device is lost, and with it what it was given
  block.copied = {std::move(*read), std::move(*written)};
  free_.emplace(bytes, std::move(block));
}

}  // namespace motley::bind
