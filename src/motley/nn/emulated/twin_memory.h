// Memory that is mapped twice: once where the host sees it, under protection, and once where only an emulated device's
// kernels do. So what the host may not touch faults when it does, while a kernel computes with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "motley/base/result.h"

namespace motley::nn::emulated {

enum class Protection { kNone, kRead, kReadWrite };

class TwinMemory {
 public:
  // Zeroed; whole pages, which are really taken only where they are touched.
  static Result<TwinMemory> create(std::size_t bytes, Protection protection);
  // The pages of [memory, memory + bytes), which the caller has mapped shared and keeps; only the other mapping is this
  // object's. kUnavailable where it is not shared.
  static Result<TwinMemory> map_again(void* memory, std::size_t bytes);

  TwinMemory() = default;
  ~TwinMemory();
  TwinMemory(TwinMemory&& other) noexcept
      : host_(std::exchange(other.host_, nullptr)),
        device_(std::exchange(other.device_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        owns_host_(other.owns_host_) {}
  TwinMemory& operator=(TwinMemory&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(owns_host_, other.owns_host_);
    return *this;
  }

  std::byte* host() const { return host_; }      // addresses of tensors
  std::byte* device() const { return device_; }  // the same bytes, always readable and writable
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::size_t bytes_ = 0;
  bool owns_host_ = true;
};

constexpr std::size_t kPage = 4096;

// The host's access to whole pages from an address on.
void protect(std::byte* page, std::size_t bytes, Protection protection);

}  // namespace motley::nn::emulated
