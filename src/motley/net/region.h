// Memory that several processes of one machine map: created and exported by its owner, mapped by peers, gone when the
// last process unmaps it, also after a kill. Host memory only so far. A region is backed by memory as a whole from the
// start, or, where it only bounds what may be needed, piece by piece as its owner commits it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "motley/base/os/descriptor.h"
#include "motley/base/result.h"

namespace motley::net {

// Equal for processes that can open each other's shared memory: same boot of the same machine, same /dev/shm
// (containers may have their own), same user.
std::string host_id();

class Region {
 public:
  // Makes a zeroed region of at least `bytes` (rounded up to pages), with memory really reserved: a full /dev/shm is an
  // error here and not a SIGBUS later. `name` is a short unique word such as "s1f3a-r2"; only this user may open it.
  static Result<std::unique_ptr<Region>> create(const std::string& name, std::size_t bytes);
  // Maps the region that a peer created under this name; `bytes` must fit in it.
  static Result<std::unique_ptr<Region>> map(const std::string& name, std::size_t bytes);

  // The same for a region of which only what its owner commits is backed by memory; nothing else of it may be touched.
  static Result<std::unique_ptr<Region>> create_uncommitted(const std::string& name, std::size_t bytes);
  static Result<std::unique_ptr<Region>> map_uncommitted(const std::string& name, std::size_t bytes);
  // Backs this part, in whole pages, with zeroed memory, for all who map it; what is committed already stays as it is.
  // The owner's call, of a region made by create_uncommitted. A full /dev/shm is an error.
  Status commit(std::size_t offset, std::size_t bytes);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Takes the name away once all peers have mapped it, so that nothing is left behind. Idempotent.
  void unlink();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  enum class Backing { kWhole, kCommitted };
  static Result<std::unique_ptr<Region>> create(const std::string& name, std::size_t bytes, Backing backing);
  static Result<std::unique_ptr<Region>> map(const std::string& name, std::size_t bytes, Backing backing);
  Region(std::string name, Descriptor descriptor, std::byte* data, std::size_t size, bool owner)
      : name_(std::move(name)), descriptor_(std::move(descriptor)), data_(data), size_(size), linked_(owner) {}
  std::string name_;
  Descriptor descriptor_;  // of what can be committed later
  std::byte* data_;
  std::size_t size_;
  bool linked_;
};

}  // namespace motley::net
