// The purposes of this room's connections, as Session::connect tells them apart.
#pragma once

#include <cstdint>

namespace motley::collective {

inline constexpr std::uint32_t kGroupPurpose = 0x1000;
inline constexpr std::uint32_t kCounterPurpose = 0x1001;
inline constexpr std::uint32_t kDirectPurpose = 0x1002;
inline constexpr std::uint32_t kRowsPurpose = 0x1003;
inline constexpr std::uint32_t kTiedPurpose = 0x1004;
inline constexpr std::uint32_t kRingPurpose = 0x1100;  // plus the lane

}  // namespace motley::collective
