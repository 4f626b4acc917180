// Memory that several processes of one machine map: made by its owner, mapped by peers whom it gives the address, gone
// when the last process unmaps it, also after a kill: it has no name that could be left behind or opened by others.
// Host memory only so far. A region is backed by memory as a whole from the start, or, where it only bounds what may be
// needed, piece by piece as its owner commits it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"

namespace motley::net {

// Equal for processes that can open each other's shared memory: same boot of the same machine, same /dev/shm
// (containers may have their own), same user.
std::string host_id();

// Where a peer finds a region while its owner has it: a descriptor of that process. Default: nowhere.
struct RegionAddress {
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
  std::uint64_t file = 0;  // its inode, so that what else may stand there later is told apart
  bool valid() const { return process > 0 && descriptor >= 0; }
};

class Region {
 public:
  // Makes a zeroed region of at least `bytes` (rounded up to pages), with memory really reserved: a full /dev/shm is an
  // error here and not a SIGBUS later. Only processes of this user may map it.
  static Result<std::unique_ptr<Region>> create(std::size_t bytes);
  // Maps a peer's region; `bytes` must fit in it.
  static Result<std::unique_ptr<Region>> map(const RegionAddress& address, std::size_t bytes);

  // The same for a region of which only what its owner commits is backed by memory; nothing else of it may be touched.
  static Result<std::unique_ptr<Region>> create_uncommitted(std::size_t bytes);
  static Result<std::unique_ptr<Region>> map_uncommitted(const RegionAddress& address, std::size_t bytes);
  // Backs this part, in whole pages, with zeroed memory, for all who map it; what is committed already stays as it is.
  // The owner's call, of a region made by create_uncommitted. A full /dev/shm is an error.
  Status commit(std::size_t offset, std::size_t bytes);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // The owner's, for peers.
  RegionAddress address() const { return address_; }

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  enum class Backing { kWhole, kCommitted };
  static Result<std::unique_ptr<Region>> create(std::size_t bytes, Backing backing);
  static Result<std::unique_ptr<Region>> map(const RegionAddress& address, std::size_t bytes, Backing backing);
  Region(Descriptor descriptor, RegionAddress address, std::byte* data, std::size_t size)
      : descriptor_(std::move(descriptor)), address_(address), data_(data), size_(size) {}
  Descriptor descriptor_;  // the owner's
  RegionAddress address_;
  std::byte* data_;
  std::size_t size_;
};

}  // namespace motley::net
