// The memory of one rank that all ranks of a host map, handed out in blocks: buffers in it are reduced where they are.
// It may grow to all of the machine's memory, and takes no more than was in use at once.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "motley/net/region.h"

namespace motley::collective {

class SharedArena {
 public:
  // How large the arenas of so many ranks are.
  static std::size_t capacity(int ranks);
  static Result<std::shared_ptr<SharedArena>> create(std::size_t bytes);

  // A zeroed or used block, aligned to 4 KiB. It keeps the arena alive and goes back into it with its last reference;
  // that must not be while another rank may still read or write it. Any thread.
  static Result<std::shared_ptr<std::byte>> allocate(const std::shared_ptr<SharedArena>& arena, std::size_t bytes);

  // Where the memory begins in the arena, if all of it lies there.
  std::optional<std::size_t> offset(const std::byte* begin, std::size_t bytes) const;
  net::Region& region() { return *region_; }

 private:
  explicit SharedArena(std::unique_ptr<net::Region> region) : region_(std::move(region)) {}
  Result<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset, std::size_t bytes);

  const std::unique_ptr<net::Region> region_;
  std::mutex mutex_;                         // guards all below
  std::map<std::size_t, std::size_t> free_;  // bytes by offset, below committed_; no two touch each other
  std::size_t committed_ = 0;
};

}  // namespace motley::collective
