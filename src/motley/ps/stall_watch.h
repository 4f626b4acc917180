// Whether something stands still: something waits, and nothing has moved for a while. Told the time, it needs no clock.
#pragma once

#include <cstdint>

namespace motley::ps {

class StallWatch {
 public:
  // `progress` changes with everything that moves. Returns the seconds for which nothing has, zero where nothing waits.
  double look(std::uint64_t progress, bool waits, double now) {
    if (!waits || progress != progress_ || !waited_) {
      moved_at_ = now;
      said_ = false;
    }
    progress_ = progress;
    waited_ = waits;
    return now - moved_at_;
  }
  // True once a stall, when it has lasted so long.
  bool is_due(double lasted, double limit) {
    if (said_ || lasted < limit) return false;
    said_ = true;
    return true;
  }

 private:
  std::uint64_t progress_ = 0;
  bool waited_ = false;
  bool said_ = false;
  double moved_at_ = 0;
};

}  // namespace motley::ps
