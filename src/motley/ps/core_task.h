// A core's part of a job, as the core's thread sees it.
#pragma once

#include <memory>
#include <vector>

#include "motley/net/tcp_connection.h"

namespace motley::ps {

// All is called by the core's thread.
class CoreTask {
 public:
  virtual ~CoreTask() = default;
  // Works on at most one segment. True if there was something to do.
  virtual bool advance() = 0;
  // Reads and writes what a lane's socket allows.
  virtual void progress(int lane) = 0;
  virtual const std::vector<std::unique_ptr<net::TcpConnection>>& lanes() const = 0;
  virtual bool ended(std::size_t lane) const = 0;
  // False if there is work already.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() = 0;
};

}  // namespace motley::ps
