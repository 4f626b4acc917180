#include "motley/base/result.h"

#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace motley {

const char* to_string(ErrorCode code) {
  static constexpr const char* kNames[] = {
      "invalid input", "unavailable", "timeout",     "peer lost", "server lost", "refused",  "corrupt", "input/output",
      "out of memory", "diverged",    "interrupted", "left",      "forbidden",   "too many", "internal"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ErrorCode::kInternal) + 1);
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

void stop_on_broken_invariant(const char* file, int line, const std::string& sentence) {
  std::fprintf(stderr, "motley: broken invariant at %s:%d: %s\n", file, line, sentence.c_str());
  std::abort();
}

}  // namespace motley
