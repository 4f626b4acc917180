// Connections that say their last words and are to be closed. The other end closes first: closed here with something
// unread, a connection would be reset, and that takes along what the other end has not read yet. One thread calls all.
#pragma once

#include <poll.h>

#include <memory>
#include <utility>
#include <vector>

#include "motley/net/connection.h"
#include "motley/net/wait_set.h"

namespace motley::net {

class LingeringConnections {
 public:
  // What is posted on it are its last words. It is closed after so long whatever the other end does.
  void add(std::unique_ptr<Connection> connection, double seconds) {
    lingering_.push_back({std::move(connection), monotonic_seconds() + seconds});
  }
  // Adds what to wait for.
  void add_to(WaitSet& waits) const {
    for (const Lingering& one : lingering_) {
      waits.add(one.connection->descriptor(), one.is_finished ? POLLIN : POLLOUT);
      waits.end_at(one.until);
    }
  }
  // Does what can be done without blocking.
  void step() { std::erase_if(lingering_, is_over); }

 private:
  struct Lingering {
    std::unique_ptr<Connection> connection;
    double until;  // monotonic seconds
    bool is_finished = false;
  };
  static constexpr int kMaxFrames = 64;  // that are taken, and thrown away, at a time

  static bool is_over(Lingering& one) {
    Connection& connection = *one.connection;
    if (monotonic_seconds() >= one.until) return true;
    if (!one.is_finished) {
      if (!connection.progress()) return true;
      if (connection.wants_to_write()) return false;
    }
    for (int taken = 0; taken < kMaxFrames; ++taken) {
      const auto message = connection.try_receive();
      if (!message) return true;
      if (!*message) break;
    }
    // After what has come was read: TLS reads nothing of its own after its end.
    if (!std::exchange(one.is_finished, true)) connection.finish_sending();
    return false;
  }

  std::vector<Lingering> lingering_;
};

}  // namespace motley::net
