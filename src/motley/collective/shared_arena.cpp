#include "motley/collective/shared_arena.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace motley::collective {
namespace {

constexpr std::size_t kUnit = 4 << 10;
constexpr std::size_t kAddressSpace = std::size_t{1} << 45;  // for the arenas of all ranks

}  // namespace

std::size_t SharedArena::capacity(int ranks) {
  const auto memory =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return std::min(memory, kAddressSpace / static_cast<std::size_t>(ranks)) / kUnit * kUnit;
}

Result<std::shared_ptr<SharedArena>> SharedArena::create(std::size_t bytes) {
  MOTLEY_ASSIGN(auto region, net::Region::create_uncommitted(bytes));
  return std::shared_ptr<SharedArena>(new SharedArena(std::move(region)));
}

Result<std::shared_ptr<std::byte>> SharedArena::allocate(const std::shared_ptr<SharedArena>& arena, std::size_t bytes) {
  bytes = std::max(kUnit, (bytes + kUnit - 1) / kUnit * kUnit);
  MOTLEY_ASSIGN(const std::size_t offset, arena->take(bytes));
  return std::shared_ptr<std::byte>(arena->region_->data() + offset,
                                    [arena, offset, bytes](std::byte*) { arena->give_back(offset, bytes); });
}

std::optional<std::size_t> SharedArena::offset(const std::byte* begin, std::size_t bytes) const {
  const std::byte* const data = region_->data();
  if (begin < data || begin + bytes > data + region_->size()) return {};
  return static_cast<std::size_t>(begin - data);
}

// The first free block that is large enough, else new memory, together with a free block that ends where it begins.
Result<std::size_t> SharedArena::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find_if(free_, [&](const auto& block) { return block.second >= bytes; });
  if (found == free_.end()) {
    std::size_t begin = committed_;
    if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == committed_) begin = free_.rbegin()->first;
    if (begin + bytes > region_->size()) {
      return fail(ErrorCode::kIo, "all {} bytes of shared memory for buffers of this rank are in use", region_->size());
    }
    MOTLEY_TRY(region_->commit(committed_, begin + bytes - committed_));
    committed_ = begin + bytes;
    found = free_.insert_or_assign(begin, bytes).first;
  }
  const auto [offset, size] = *found;
  free_.erase(found);
  if (size > bytes) free_.emplace(offset + bytes, size - bytes);
  return offset;
}

void SharedArena::give_back(std::size_t offset, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto block = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(block); next != free_.end() && block->first + block->second == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  if (const auto before = std::prev(block); before->first + before->second == block->first) {
    before->second += block->second;
    free_.erase(block);
  }
}

}  // namespace motley::collective
