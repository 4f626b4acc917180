// The parameter server as a service: lets jobs in, keeps them apart, hands their parts to the cores, and tells all of a
// job's ranks when one is lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <ranges>
#include <string>
#include <thread>
#include <vector>

#include "motley/net/admission.h"
#include "motley/net/connection.h"
#include "motley/net/lingering_connections.h"
#include "motley/ps/dense/aggregation_thread.h"
#include "motley/ps/dense/dense_job.h"
#include "motley/ps/dense/rack_job.h"
#include "motley/ps/dense/replica.h"
#include "motley/ps/embedding/sparse_service.h"
#include "motley/ps/service/metrics.h"
#include "motley/ps/tenants/tenants.h"

namespace motley::ps {

struct ServiceOptions {
  net::Endpoint listen;          // port 0: any free one
  int cores = 0;                 // 0: as many as this process may use
  bool pin_cores = false;        // each core's thread to a processor of its own
  std::size_t quota_bytes = 0;   // memory that one job may take; 0: no limit
  double stall_seconds = 10;     // after which a job that waits and does not move is logged; 0: never
  bool payload_checksum = true;  // over what is sent to other hosts in the clear
  net::Encryption encryption = net::Encryption::kAuto;
  std::filesystem::path tables;  // folder of sparse tables' cold tiers and checkpoints; empty: neither
};

// Whether something stands still: something waits, and nothing has moved for a while. Told the time, it needs no clock.
class StallWatch {
 public:
  // `progress` changes with everything that moves. Returns the seconds for which nothing has, zero where nothing waits.
  double look(std::uint64_t progress, bool waits, double now) {
    if (!waits || progress != progress_ || !waited_) {
      moved_at_ = now;
      reported_ = false;
    }
    progress_ = progress;
    waited_ = waits;
    return now - moved_at_;
  }
  // True once a stall, when it has lasted so long.
  bool is_due(double lasted, double limit) {
    if (reported_ || lasted < limit) return false;
    reported_ = true;
    return true;
  }

 private:
  std::uint64_t progress_ = 0;
  bool waited_ = false;
  bool reported_ = false;
  double moved_at_ = 0;
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> start(const ServiceOptions& options, const Tenants& tenants);
  ~Service();

  const net::Endpoint& endpoint() const { return endpoint_; }  // really listening at
  std::string address() const;                                 // the same as text
  int cores() const { return static_cast<int>(cores_.size()); }
  const Metrics& metrics() const { return *metrics_; }

 private:
  struct Rank {
    std::unique_ptr<net::Connection> control;
    std::vector<std::unique_ptr<net::Connection>> channels;  // by core, until all ranks' are there
    std::optional<ServerJoin> join;
    bool loaded = false;
    bool left = false;
  };
  struct Job {
    std::uint64_t number = 0;
    std::string name;             // "tenant/job"
    net::Claim claim;             // of who came first
    std::map<int, Rank> ranks;    // that have come; of an elastic job those that are gone have no connection
    std::shared_ptr<void> place;  // as the tenant's jobs are counted
    std::shared_ptr<DenseJob> dense;
    std::shared_ptr<DenseJob> before;     // of an elastic job's epoch before, until all ranks of this one have joined
    double deserted_at = 0;               // since when no rank of an elastic job is there; 0: one is
    std::shared_ptr<RackJob> rack;        // instead, where this server is that of a rack
    std::vector<bool> shared;             // by core: its share was handed over
    std::unique_ptr<ReplicaLinks> links;  // to the keeper of an elastic job's state, until they are there
    Channels replicas;                    // then these, by core; empty: there is no keeper
    std::vector<std::uint64_t> kept;      // numbers of the tasks that keep another server's state
    std::unique_ptr<MemoryQuota::Lease> memory;
    std::shared_ptr<JobMetrics> metrics;
    StallWatch watch;
  };
  // What still connects to other servers for a job that is over.
  struct Ending {
    std::shared_ptr<RackJob> rack;
    std::unique_ptr<ReplicaLinks> links;
    bool over() const { return (!rack || rack->over()) && (!links || links->over()); }
  };

  // A channel that a core saw end. Its rank may have left in order, which is then about to be said on its control
  // connection.
  struct Lost {
    std::uint64_t job;
    Error error;
    double settle_at;
  };

  Service(const ServiceOptions& options, const Tenants& tenants, Descriptor listener);
  void run();
  void wait_for_events();
  void admit(net::Acceptor::PendingConnection pending);
  void admit_control(const net::Claim& claim, std::unique_ptr<net::Connection> connection);
  void admit_channel(const net::Claim& claim, std::unique_ptr<net::Connection> connection);
  // As what the connection counts, of those that its tenant may have.
  Result<std::shared_ptr<void>> take_place(const net::Claim& claim);
  // Each returns an error that ends the job.
  Status receive_from(Job& job, int rank);
  Status handle(Job& job, int rank, const net::Message& message);
  Status join(Job& job, int newest);
  Status join_rack(Job& job, int newest);
  // Of the servers of racks, whose ranks are racks.
  static bool is_between_racks(const Job& job) {
    return std::ranges::any_of(std::views::values(job.ranks),
                               [](const Rank& rank) { return rank.join && rank.join->racks.between_servers; });
  }
  static std::string rack_server(const Job& job, int rank);
  static std::optional<int> announced_size(const Job& job);
  static bool is_elastic(const Job& job);
  static bool is_deserted(const Job& job);
  bool is_over(Job& job) const;
  void forget(Job& job);
  void let_go(Job& job);
  void begin_epoch(Job& job, const net::Claim& claim);
  int used_cores(const ServerJoin& join) const;
  Status take_memory(Job& job, std::size_t bytes);
  void count_in(Job& job, std::shared_ptr<JobMetrics> metrics, std::size_t bytes);
  Status receive_from_racks(Job& job);
  void announce_joined(Job& job, ServerJoined joined);
  std::vector<ReceivedFrom> received_in_rack(const Job& between) const;
  std::unique_ptr<AggregationTask> make_shard_task(Job& job, std::size_t core);
  TellLost tell_lost(std::uint64_t job);
  void share_if_complete(Job& job, std::size_t core);
  void admit_replica(const net::Claim& claim, std::unique_ptr<net::Connection> connection);
  Status find_keeper(Job& job, const ServerJoin& join);
  void receive_from_keeper(Job& job);
  void end(Job& job, const Error& error);
  Job* find_job(const std::string& tenant, const std::string& name) const;  // null: there is none
  void refuse(std::unique_ptr<net::Connection> connection, const std::string& why,
              ErrorCode code = ErrorCode::kRefused);
  void turn_away(std::unique_ptr<net::Connection> connection, const Error& error);
  void answer_probes();
  double stuck_seconds() const;
  void judge_lost();
  void watch_for_stalls();
  void choose_spinning();

  const ServiceOptions options_;
  const Tenants tenants_;
  MemoryQuota memory_{tenants_};
  TenantUse use_{tenants_};
  const net::Endpoint endpoint_;
  const std::string host_id_;
  std::atomic<bool> spins_ = false;
  std::unique_ptr<Metrics> metrics_;

  // Of the thread.
  net::Acceptor acceptor_;
  SparseService sparse_;
  std::map<std::uint64_t, std::unique_ptr<Job>> jobs_;
  std::uint64_t next_job_ = 1;
  net::LingeringConnections leaving_;  // with last words
  std::vector<Ending> ending_;
  std::vector<std::unique_ptr<net::Connection>> probes_;
  std::vector<Lost> suspected_;
  double watched_at_ = 0;  // for stalls
  bool has_more_ = false;  // requests that have come were left for the next turn

  net::WaitSet waits_;
  std::mutex mutex_;        // guards the two below
  std::vector<Lost> lost_;  // what cores saw
  bool stop_ = false;
  std::vector<std::unique_ptr<AggregationThread>> cores_;
  std::thread thread_;
};

}  // namespace motley::ps
