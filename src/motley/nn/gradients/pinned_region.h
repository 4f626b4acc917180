// Memory that others own, such as a region that processes share, pinned where it is, so that a device copies from and
// to it by itself. Pinning takes longer than a copy: once, and not for each.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstddef>
#include <span>

#include "motley/base/result.h"

namespace motley::nn {

class PinnedRegion {
 public:
  // For devices of this type. The memory stays its owner's, who keeps it as long as this object lives. kUnavailable
  // where the device's library pins no memory of others, or not this. No two regions may have a page in common.
  static Result<PinnedRegion> pin(c10::DeviceType type, std::span<std::byte> memory);

  PinnedRegion() = default;
  // Once nothing copies from or to it.
  ~PinnedRegion();
  PinnedRegion(PinnedRegion&& other) noexcept;
  PinnedRegion& operator=(PinnedRegion&& other) noexcept;

 private:
  c10::DeviceType type_ = c10::DeviceType::CPU;
  std::byte* memory_ = nullptr;  // nullptr: there is none
};

}  // namespace motley::nn
