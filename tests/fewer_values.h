// Under the sanitizers, where all takes ten times as long, tests of long vectors and of many rounds have a fifth of
// them.
#pragma once

#include <cstddef>

namespace motley {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
#else
inline constexpr bool kIsSanitized = false;
#endif

// Odd where `count` is.
constexpr std::size_t fewer(std::size_t count) {
  return kIsSanitized ? (count / 5) | (count & 1) : count;
}

}  // namespace motley
