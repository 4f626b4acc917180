#include "motley/nn/emulated/twin_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "motley/base/os/descriptor.h"

namespace motley::nn::emulated {
namespace {

int flags(Protection protection) {
  switch (protection) {
    case Protection::kNone:
      return PROT_NONE;
    case Protection::kRead:
      return PROT_READ;
    case Protection::kReadWrite:
      break;
  }
  return PROT_READ | PROT_WRITE;
}

}  // namespace

Result<TwinMemory> TwinMemory::create(std::size_t bytes, Protection protection) {
  TwinMemory memory;
  memory.bytes_ = (bytes + kPage - 1) / kPage * kPage;
  const Descriptor file(::memfd_create("emulated accelerator", MFD_CLOEXEC));
  if (file.get() < 0 || ::ftruncate(file.get(), static_cast<off_t>(memory.bytes_)) != 0) {
    return fail(ErrorCode::kUnavailable, "an emulated accelerator needs memory by memfd_create(2): {}",
                std::strerror(errno));
  }
  const auto map = [&](int access) {
    void* const address = ::mmap(nullptr, memory.bytes_, access, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
    return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
  };
  memory.host_ = map(flags(protection));
  memory.device_ = map(PROT_READ | PROT_WRITE);
  if (memory.host_ == nullptr || memory.device_ == nullptr) {
    return fail(ErrorCode::kUnavailable, "an emulated accelerator cannot map {} bytes twice: {}", memory.bytes_,
                std::strerror(errno));
  }
  return memory;
}

Result<TwinMemory> TwinMemory::map_again(void* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = address / kPage * kPage;
  TwinMemory twin;
  twin.owns_host_ = false;
  twin.bytes_ = (address + bytes + kPage - 1) / kPage * kPage - first;
  twin.host_ = reinterpret_cast<std::byte*>(first);
  // An old size of 0 asks for one more mapping of the same pages (mremap(2)), which only shared ones can have.
  void* const again = ::mremap(twin.host_, 0, twin.bytes_, MREMAP_MAYMOVE);
  if (again == MAP_FAILED) {
    return fail(ErrorCode::kUnavailable, "an emulated accelerator pins only memory that is mapped shared: {}",
                std::strerror(errno));
  }
  twin.device_ = static_cast<std::byte*>(again);
  return twin;
}

TwinMemory::~TwinMemory() {
  if (host_ != nullptr && owns_host_) ::munmap(host_, bytes_);
  if (device_ != nullptr) ::munmap(device_, bytes_);
}

void protect(std::byte* page, std::size_t bytes, Protection protection) {
  ::mprotect(page, bytes, flags(protection));
}

}  // namespace motley::nn::emulated
