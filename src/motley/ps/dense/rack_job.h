// A job of one rack, whose server adds up what its rack's workers push and hands one gradient on to the racks' servers,
// which meet in a job of their own; what comes back goes to all workers of the rack. To its workers the rack's server
// is a server, and towards the others it is a worker: the job between the racks is an ordinary DenseJob.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/os/memory.h"
#include "motley/net/handshake.h"
#include "motley/ps/dense/aggregation_thread.h"
#include "motley/ps/protocol/chunk_map.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

// What is put behind a job's name to name the one between its racks.
inline constexpr const char* kBetweenRacks = " (between racks)";

struct Uplinks {
  int cores = 0;                   // of each server that the job uses
  Channels controls;               // by rack
  std::vector<bool> have_state;    // of an elastic job's epoch before, by rack
  std::vector<Channels> channels;  // by core, then by rack
};

inline std::string server_name(const RackPlan& racks, std::size_t rack) {
  return "server at " + racks.servers[rack];  // "server at 10.0.0.5:4711"
}

class RackJob {
 public:
  // Begins to meet the other racks' servers. `claim`: of the job between the racks. `wake` is called, by another
  // thread, when that is over; at once where no thread can be started.
  RackJob(ServerJoin join, net::Claim claim, const net::Secret& token, bool payload_checksum,
          const net::Encryption& encryption, std::function<void()> wake);
  ~RackJob();
  static std::size_t bytes_needed(const ServerJoin& join, int rack);

  // All below is for the service's thread.
  // True in the one call after which the job is ready: the racks have met and there is memory. Else nothing has
  // changed.
  Result<bool> connected();
  // Nobody waits for the meeting any more; it is over soon.
  void cancel() { cancelled_ = true; }
  bool over() const { return over_; }
  bool ready() const { return ready_; }
  int cores() const { return uplinks_.cores; }
  int bins() const { return join_.racks.racks() * uplinks_.cores; }
  // Of an elastic job: whose servers have nothing of the epoch before.
  std::vector<int> racks_without_state() const;
  const std::vector<int>& ranks() const { return ranks_; }
  const Channels& controls() const { return uplinks_.controls; }
  Channels take_controls() { return std::move(uplinks_.controls); }
  // In order: all is done. Else the other racks' servers keep what they have, for the next epoch of an elastic job.
  void leave();

  // What a worker said. False: nothing of the kind is known.
  Result<bool> take(int rank, const net::Message& message);
  // What the racks' servers have said, for the workers; rank -1: for all.
  struct Answer {
    int rank = -1;
    std::uint16_t type = 0;
    std::uint64_t tag = 0;
    std::vector<std::byte> payload;
  };
  Result<std::vector<Answer>> receive();
  // Frames that have come from the rack's ranks; from any thread.
  std::vector<ReceivedFrom> received() const;
  // Whether the uplinks have as much to send as is good: then nothing more should be taken.
  bool congested() const;
  // Requests of the rank that the racks' servers have not answered yet.
  std::size_t owed(int rank) const;

 private:
  friend class RackShardTask;
  Result<Uplinks> connect(net::Claim claim, const net::Secret& token, bool payload_checksum,
                          const net::Encryption& encryption) const;
  Result<bool> answer(std::size_t rack, net::Message& message, std::vector<Answer>& answers);

  const ServerJoin join_;
  const int rack_;
  const std::vector<int> ranks_;  // of this rack
  DividedModel model_;
  std::vector<Pages> pushes_;                         // by worker, in the wire's format
  Pages values_;                                      // the rack's gradients, then new weights, likewise
  std::vector<std::atomic<std::uint64_t>> received_;  // frames, by core and worker

  Uplinks uplinks_;
  bool ready_ = false;
  std::vector<int> loaded_;    // ranks
  std::uint64_t updates_ = 0;  // as rank 0 said, or another where it is not here
  std::size_t servers_loaded_ = 0;
  std::vector<std::deque<int>> saving_;  // ranks that wait for a part of the state, by server
  std::vector<int> asking_;              // ranks that ask whom to wait for
  std::vector<ReceivedFrom> counts_;     // that servers have answered so far
  int servers_counted_ = 0;

  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> over_ = false;
  std::optional<Result<Uplinks>> connecting_;  // the thread's, until it is over
  std::thread thread_;
};

// A core's part of a rack's job. `channels`: of this core, by worker.
std::unique_ptr<AggregationTask> make_rack_task(std::shared_ptr<RackJob> job, int core, Channels channels,
                                                TellLost lost);

}  // namespace motley::ps
