// CUDA's functions are those of the library that libtorch has loaded, so that this builds without CUDA's headers.
#include "motley/bind/pinned_blocks.h"

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <bit>

#include "motley/nn/gradients/named_tensors.h"

namespace motley::bind {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: for all devices

bool pin(void* memory, std::size_t bytes) {
  using Register = int (*)(void*, std::size_t, unsigned);
  static const auto call = reinterpret_cast<Register>(::dlsym(RTLD_DEFAULT, "cudaHostRegister"));
  return call != nullptr && call(memory, bytes, kPortable) == 0;
}

void unpin(void* memory) {
  using Unregister = int (*)(void*);
  static const auto call = reinterpret_cast<Unregister>(::dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
  if (call != nullptr) call(memory);
}

}  // namespace

PinnedBlocks::~PinnedBlocks() {
  for (auto& [bytes, block] : free_) {
    if (block.read) nn::catch_torch(ErrorCode::kInternal, "waiting for copies", [&] { block.read->synchronize(); });
    unpin(block.memory.get());
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
    MOTLEY_ASSIGN(const bool is_read, nn::catch_torch(ErrorCode::kInternal, "looking for a block that has been read",
                                                      [&] { return found->second.read->query(); }));
    if (!is_read) continue;
    Block block = std::move(found->second);
    free_.erase(found);
    return block;
  }
  Block block;
  MOTLEY_ASSIGN(block.memory, communicator.allocate(bytes));
  is_refused_ = !pin(block.memory.get(), bytes);
  if (is_refused_) return fail(ErrorCode::kUnavailable, "shared memory cannot be pinned");
  return block;
}

void PinnedBlocks::give_back(Block block, std::size_t bytes) {
  auto read = copies_.filled();
  const std::lock_guard lock(mutex_);
  if (!read) return;  // the device is lost, and with it what it was given
  block.read = std::move(*read);
  free_.emplace(bytes, std::move(block));
}

}  // namespace motley::bind
