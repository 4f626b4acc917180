// What a thread waits for at once: connections with something to read or room to write, other descriptors, a moment,
// and another thread's word. It is told anew before each wait, so that nothing that has gone is waited for.
#pragma once

#include <poll.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/net/connection.h"

namespace motley::net {

class WaitSet {
 public:
  WaitSet();
  // Ends the wait under way or, where there is none, the next one. The only call for other threads.
  void wake() const;

  // `events`: POLLIN, POLLOUT, POLLRDHUP.
  void add(int descriptor, int events) { added_.push_back({descriptor, static_cast<short>(events), 0}); }
  // Something to read, if it `reads`, and room for what waits to be sent.
  void add(const Connection& connection, bool reads = true) {
    add(connection.descriptor(), (reads ? POLLIN : 0) | (connection.wants_to_write() ? POLLOUT : 0));
    if (reads && connection.has_input()) end_at(0);
  }
  // The wait ends then, whatever has happened.
  void end_at(double time) { end_at_ = std::min(end_at_, time); }  // monotonic seconds
  void end_after(double seconds) { end_at(monotonic_seconds() + seconds); }

  // Until something of this happens; what was added is forgotten. True where another thread woke it.
  bool wait();
  // What the last wait found of a descriptor.
  int events(int descriptor) const;

 private:
  std::vector<pollfd> added_;
  std::vector<pollfd> waited_;
  double end_at_ = std::numeric_limits<double>::infinity();
  const Descriptor wake_;
};

}  // namespace motley::net
