// A rank's control connections to the servers of its job: joining, the state, and bad news. They also know the way to
// open the channels.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "motley/net/connection.h"
#include "motley/net/session.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

class ControlConnections {
 public:
  struct Server {
    ServerAddress address;
    std::string name;  // "server at 10.0.0.5:4711"
    std::unique_ptr<net::Connection> control;
    std::string host_id = {};
    int first_bin = 0;  // the first of its cores, counted over all servers
    int cores = 1;      // that the job uses

    bool owns(const Segment& segment) const { return segment.bin >= first_bin && segment.bin < first_bin + cores; }
  };

  // `job_suffix` as in ServerOptions. The session must outlive the connections.
  ControlConnections(net::Session& session, std::string job_suffix);

  // Once. Every server says what it is.
  Status connect(const std::vector<ServerAddress>& addresses, const Deadline& deadline);
  std::vector<Server>& servers() { return servers_; }

  // A connection to every core of all servers, in the order of their bins.
  Result<std::vector<std::unique_ptr<net::Connection>>> open_channels(const Deadline& deadline) const;

  // Whoever sends, or waits for an answer, while channels may be in use, holds this; the other calls take it
  // themselves.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // The next message of this type; a server's word that the job has failed is an error. `what` is waited for.
  Result<net::Message> receive_from(Server& server, std::uint16_t type, const Deadline& deadline, const char* what);
  // What servers have to say unasked, which is nothing as long as all goes well. The first error is final.
  Status check();
  // The ranks that the servers wait for, if they answer.
  std::vector<int> ask_for_missing();
  // Tells the servers that this rank leaves in order, unless it has failed.
  void leave();
  void set_failed() { failed_ = true; }

 private:
  Result<std::unique_ptr<net::Connection>> open(const ServerAddress& address, std::uint32_t purpose,
                                                const Deadline& deadline) const;

  net::Session& session_;
  const std::string job_suffix_;
  std::vector<Server> servers_;
  std::mutex mutex_;
  std::optional<Error> verdict_;  // what a server said, or its loss: whoever asks again gets the same
  std::atomic<bool> failed_ = false;
};

}  // namespace motley::ps
