// CUDA's functions, or ROCm's in their place, are those of the library that libtorch has loaded, so that this builds
// without their headers.
#include "motley/nn/gradients/pinned_region.h"

#include <c10/core/DeviceType.h>
#include <dlfcn.h>

#include <utility>

#include "motley/nn/emulated/emulated_accelerator.h"

namespace motley::nn {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: for all devices

void* find_function(const char* cuda, const char* rocm) {
  void* const found = ::dlsym(RTLD_DEFAULT, cuda);
  return found != nullptr ? found : ::dlsym(RTLD_DEFAULT, rocm);
}

bool is_emulated(c10::DeviceType type) {
  return type == c10::DeviceType::PrivateUse1 && emulated::is_enabled();
}

Status pin_for_cuda(std::span<std::byte> memory) {
  using Register = int (*)(void*, std::size_t, unsigned);
  static const auto call = reinterpret_cast<Register>(find_function("cudaHostRegister", "hipHostRegister"));
  const int error = call == nullptr ? -1 : call(memory.data(), memory.size(), kPortable);
  if (error == 0) return {};
  // Else libtorch would take it for the error of its next kernel.
  using Forget = int (*)();
  static const auto forget = reinterpret_cast<Forget>(find_function("cudaGetLastError", "hipGetLastError"));
  if (forget != nullptr) forget();
  return fail(ErrorCode::kUnavailable, "{} bytes of memory cannot be pinned (error {} of CUDA)", memory.size(), error);
}

}  // namespace

Result<PinnedRegion> PinnedRegion::pin(c10::DeviceType type, std::span<std::byte> memory) {
  if (is_emulated(type)) {
    MOTLEY_TRY(emulated::pin(memory.data(), memory.size()));
  } else if (type == c10::DeviceType::CUDA) {
    MOTLEY_TRY(pin_for_cuda(memory));
  } else {
    return fail(ErrorCode::kUnavailable, "memory of others cannot be pinned for {}", c10::DeviceTypeName(type, true));
  }
  PinnedRegion region;
  region.type_ = type;
  region.memory_ = memory.data();
  return region;
}

PinnedRegion::PinnedRegion(PinnedRegion&& other) noexcept
    : type_(other.type_), memory_(std::exchange(other.memory_, nullptr)) {}

PinnedRegion& PinnedRegion::operator=(PinnedRegion&& other) noexcept {
  std::swap(type_, other.type_);
  std::swap(memory_, other.memory_);
  return *this;
}

PinnedRegion::~PinnedRegion() {
  if (memory_ == nullptr) return;
  if (is_emulated(type_)) {
    emulated::runtime().unpin(memory_);
    return;
  }
  using Unregister = int (*)(void*);
  static const auto call = reinterpret_cast<Unregister>(find_function("cudaHostUnregister", "hipHostUnregister"));
  if (call != nullptr) call(memory_);
}

}  // namespace motley::nn
