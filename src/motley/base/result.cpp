#include "motley/base/result.h"

#include <cstdio>
#include <cstdlib>

namespace motley {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidInput:
      return "invalid input";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kServerLost:
      return "server lost";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kRefused:
      return "refused";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kDiverged:
      return "diverged";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void stop_on_broken_invariant(const char* file, int line, const std::string& sentence) {
  std::fprintf(stderr, "motley: broken invariant at %s:%d: %s\n", file, line, sentence.c_str());
  std::abort();
}

}  // namespace motley
