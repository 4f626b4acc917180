#include "motley/net/wait_set.h"

#include <sys/eventfd.h>

#include <cmath>

namespace motley::net {

WaitSet::WaitSet() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void WaitSet::wake() const {
  ::eventfd_write(wake_.get(), 1);
}

bool WaitSet::wait() {
  add(wake_.get(), POLLIN);
  waited_.swap(added_);
  added_.clear();
  // Rounded up, so that the moment has passed when nothing else ends the wait.
  const double left =
      std::ceil((std::exchange(end_at_, std::numeric_limits<double>::infinity()) - monotonic_seconds()) * 1e3);
  constexpr double kLongest = std::numeric_limits<int>::max();
  ::poll(waited_.data(), waited_.size(), std::isinf(left) ? -1 : static_cast<int>(std::clamp(left, 0.0, kLongest)));
  eventfd_t count = 0;
  return ::eventfd_read(wake_.get(), &count) == 0;
}

int WaitSet::events(int descriptor) const {
  int found = 0;
  for (const pollfd& waited : waited_) found |= waited.fd == descriptor ? waited.revents : 0;
  return found;
}

}  // namespace motley::net
