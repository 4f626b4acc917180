// Whether the servers that a rank waits for are still there, and go on. One that ends closes its connections; one that
// is stopped, or whose host hangs, closes none and says nothing. So a rank that waits asks now and then, by a
// connection of its own: whoever serves at all lets that in, however long ranks keep a job waiting, and says how long
// one of the threads that sum and update has been at what it does. That is a segment at the most: one that does not
// come to its end is stuck, and with it the ranks, although the thread that answers lives on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/net/session.h"
#include "motley/ps/client/server_options.h"

namespace motley::ps {

// "server at 10.0.0.5:4711"
std::string describe_server(const ServerAddress& address);

class ServerWatch {
 public:
  // The session, whose silence_seconds say when a server counts as lost, must outlive this.
  explicit ServerWatch(const net::Session& session) : session_(session) {}
  // One that has let this rank in just now.
  void add(const ServerAddress& address) {
    servers_.push_back({address});
    asked_ = monotonic_seconds();
  }

  // For every turn of a wait: asks twice in silence_seconds, and gives each server half of them to answer.
  Status check();
  // At once. kServerLost, naming the server, where one does not answer, or has said twice in a row that it has made no
  // progress for longer than the session's patience; the session's failure where that is why.
  Status ask();
  // Which one was lost then, as a number in the order of add().
  std::optional<std::size_t> lost() const { return lost_; }

 private:
  struct Server {
    ServerAddress address;
    bool is_late = false;  // as it said last: once may be right after all of its machine was stopped for a while
  };
  Result<double> ask_for_progress(const ServerAddress& address) const;

  const net::Session& session_;
  std::vector<Server> servers_;
  double asked_ = 0;  // monotonic seconds
  std::optional<std::size_t> lost_;
};

}  // namespace motley::ps
