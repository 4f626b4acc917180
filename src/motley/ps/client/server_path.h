// A rank and the servers of its job: control connections, joining, and the ways that gradients go there, and weights,
// or sums of gradients, come back, a bucket at a time: memory that both map, or channels over TCP.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/net/connection.h"
#include "motley/net/region.h"
#include "motley/net/session.h"
#include "motley/ps/client/server_options.h"
#include "motley/ps/client/server_watch.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

using Channels = std::vector<std::unique_ptr<net::Connection>>;

// A rank's control connections to the servers of its job: joining, the state, and bad news. They also know the way to
// open the channels.
class ControlConnections {
 public:
  struct Server {
    ServerAddress address;
    std::string name;  // "server at 10.0.0.5:4711"
    std::unique_ptr<net::Connection> control;
    std::size_t number = 0;  // among those of the job
    std::string host_id = {};
    bool in_region = false;  // the gradients and weights of its segments stand in this rank's region
    int first_bin = 0;       // the first of its cores, counted over all servers that are there
    int cores = 1;           // that the job uses
    bool has_state = false;  // of an elastic job's epoch before
    bool is_lost = false;    // as this rank has seen
    BinRange kept = {};      // whose state it keeps, counted as first_bin

    bool owns(const Segment& segment) const { return BinRange{first_bin, cores}.contains(segment.bin); }
    bool holds(const Segment& segment) const { return owns(segment) || kept.contains(segment.bin); }
  };

  // `job_suffix` and `elastic` as in ServerOptions. The session must outlive the connections.
  ControlConnections(net::Session& session, std::string job_suffix, std::optional<ElasticJob> elastic)
      : session_(session), job_suffix_(std::move(job_suffix)), elastic_(std::move(elastic)), watch_(session) {}

  // Once. Every server says what it is, but for the one that is known to be lost.
  Status connect(const std::vector<ServerAddress>& addresses, const Deadline& deadline);
  // Also asks, whenever it asks, whether this one is there, which only other servers use.
  void watch(const ServerAddress& address) { watch_.add(address); }
  std::vector<Server>& servers() { return servers_; }
  const std::vector<Server>& servers() const { return servers_; }

  // A connection to every core of all servers, in the order of their bins.
  Result<Channels> open_channels(const Deadline& deadline);
  // The number of the server that counts as lost because it let nobody in.
  std::optional<int> unreachable() const { return unreachable_; }

  // Whoever sends, or waits for an answer, while channels may be in use, holds this; the other calls take it
  // themselves.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  Status send(Server& server, std::uint16_t type, std::uint64_t tag, std::span<const std::byte> payload,
              const Deadline& deadline, const char* what);
  // The next message of this type; a server's word that the job has failed is an error. `what` is waited for.
  Result<net::Message> receive_from(Server& server, std::uint16_t type, const Deadline& deadline, const char* what);
  // For every turn of a wait: what servers have to say unasked, which is nothing as long as all goes well, and whether
  // they are there. The first error is final.
  Status check();
  // For a wait that was in vain although no rank is known to be late: whether they are there, asked at once.
  Status ask_whether_there();
  // The ranks that the servers wait for, if they answer; those that do not are in silent_servers() afterwards.
  std::vector<int> ask_for_missing();
  const std::vector<std::string>& silent_servers() const { return silent_servers_; }
  // Tells the servers that this rank leaves in order, unless it has failed. Nothing else is called after it.
  void leave();
  void set_failed() { failed_ = true; }

 private:
  Error judge(Server& server, const Error& error) const;
  Status note_lost(Status asked);
  Result<std::unique_ptr<net::Connection>> open(const ServerAddress& address, std::size_t number, std::uint32_t purpose,
                                                const Deadline& deadline);

  net::Session& session_;
  const std::string job_suffix_;
  const std::optional<ElasticJob> elastic_;
  ServerWatch watch_;
  std::vector<Server> servers_;
  std::mutex mutex_;
  std::optional<int> unreachable_;
  std::vector<std::string> silent_servers_;
  std::optional<Error> verdict_;  // what a server said, or its loss: whoever asks again gets the same
  std::atomic<bool> failed_ = false;
};

struct Joined {
  DividedModel model;
  bool may_spin = false;                   // every thread has a core
  std::vector<std::string> without_state;  // servers that have nothing of an elastic job's epoch before
  // Memory of one host; empty where gradients go to all servers over channels.
  std::unique_ptr<net::Region> gradients = nullptr;  // of this rank; over channels its weights are after them
  std::unique_ptr<net::Region> of_server = nullptr;  // which made it for the job; empty over channels
  ServerRegion region = {};                          // what is in it
};

// Connects, and returns once all ranks have joined; collective. kInvalidInput names what servers do not do for a job of
// these options.
Result<Joined> join_servers(net::Session& session, const ServerOptions& options, const collective::Layout& layout,
                            ControlConnections& controls, const Deadline& deadline);

// One turn of a bucket.
struct Round {
  std::uint32_t number = 0;  // how often the bucket was started, from 1
  Announcement announcement;
};

// What came back with a bucket.
struct Answer {
  double total_weight = 0;                // of all ranks; not of an asynchronous job
  std::span<const std::uint32_t> rounds;  // of an asynchronous job: which of each rank are in the weights
};

// One thread calls all, as in GradientReducer; abort may come from any.
class ServerPath {
 public:
  virtual ~ServerPath() = default;
  // Memory of all buckets' values, as DividedModel lays them out: this rank's gradients, and the weights that it reads.
  virtual std::byte* gradients() const = 0;
  virtual std::byte* weights() const = 0;
  // Where the weights are before the first round; null where the server keeps them.
  virtual std::byte* own_weights() const { return weights(); }
  virtual Status start(int bucket, const Round& round) = 0;
  // Where servers only add up, the sum then stands in the gradients' place.
  virtual Result<Answer> wait(int bucket, const Deadline& deadline) = 0;
  // Whether wait() would return at once; false where only wait() knows.
  virtual bool has_come(int) const { return false; }
  virtual void abort(const Error& error) = 0;
  virtual std::uint64_t bytes_sent() const = 0;

 protected:
  ServerPath(net::Session& session, const ServerOptions& options, ControlConnections& controls,
             const DividedModel& model)
      : session_(session),
        controls_(controls),
        model_(model),
        size_(static_cast<std::size_t>(session.membership().size())),
        is_async_(options.staleness.has_value()),
        adds_up_only_(options.update.rule == kernels::UpdateRule::kSum) {}

  net::Session& session_;
  ControlConnections& controls_;
  const DividedModel& model_;
  const std::size_t size_;  // of the job
  const bool is_async_;
  const bool adds_up_only_;
};

// What is referred to must outlive the paths. Over memory, where `channels` only carry wakeups.
std::unique_ptr<ServerPath> make_memory_path(net::Session& session, const ServerOptions& options,
                                             ControlConnections& controls, const Joined& joined, Channels channels);
// Over TCP, a channel to each core of the servers.
Result<std::unique_ptr<ServerPath>> make_channel_path(net::Session& session, const ServerOptions& options,
                                                      ControlConnections& controls, const Joined& joined,
                                                      Channels channels);

}  // namespace motley::ps
