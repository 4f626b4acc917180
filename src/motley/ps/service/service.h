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
#include <string>
#include <thread>
#include <vector>

#include "motley/net/acceptor.h"
#include "motley/net/tcp_connection.h"
#include "motley/ps/dense/aggregation_thread.h"
#include "motley/ps/dense/dense_job.h"
#include "motley/ps/dense/rack_job.h"
#include "motley/ps/embedding/sparse_service.h"
#include "motley/ps/service/metrics.h"
#include "motley/ps/service/stall_watch.h"
#include "motley/ps/tenants/tenants.h"

namespace motley::ps {

struct ServiceOptions {
  net::Endpoint listen;          // port 0: any free one
  int cores = 0;                 // 0: as many as this process may use
  bool pin_cores = false;        // each core's thread to a processor of its own
  std::size_t quota_bytes = 0;   // memory that one job may take; 0: no limit
  double stall_seconds = 10;     // after which a job that waits and does not move is logged; 0: never
  bool payload_checksum = true;  // over what is sent to other hosts
  std::filesystem::path tables;  // folder of sparse tables' cold tiers and checkpoints; empty: neither
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
    std::unique_ptr<net::TcpConnection> control;
    std::vector<std::unique_ptr<net::TcpConnection>> channels;  // by core, until all ranks' are there
    std::optional<ServerJoin> join;
    bool loaded = false;
    bool left = false;
  };
  struct Job {
    std::uint64_t number = 0;
    std::string name;  // "tenant/job"
    net::Claim claim;  // of who came first
    std::vector<Rank> ranks;
    std::shared_ptr<DenseJob> dense;
    std::shared_ptr<RackJob> rack;  // instead, where this server is that of a rack
    std::vector<bool> shared;       // by core: its share was handed over
    std::unique_ptr<MemoryQuota::Lease> memory;
    std::shared_ptr<JobMetrics> metrics;
    StallWatch watch;
    // A tenant's own job of this name?
    bool is(const std::string& tenant, const std::string& job) const {
      return claim.identity.tenant == tenant && claim.identity.job == job;
    }
  };
  // A connection with last words.
  struct Leaving {
    std::unique_ptr<net::TcpConnection> connection;
    double until;
    bool announced = false;
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
  void admit_control(const net::Claim& claim, std::unique_ptr<net::TcpConnection> connection);
  void admit_channel(const net::Claim& claim, std::unique_ptr<net::TcpConnection> connection);
  // Each returns an error that ends the job.
  Status receive_from(Job& job, std::size_t rank);
  Status handle(Job& job, std::size_t rank, const net::Message& message);
  Status join(Job& job, std::size_t newest);
  Status join_rack(Job& job, std::size_t newest);
  // Of the servers of racks, whose ranks are racks.
  static bool is_between_racks(const Job& job) {
    return !job.ranks.empty() && std::ranges::any_of(job.ranks, [](const Rank& rank) {
      return rank.join && rank.join->racks.between_servers;
    });
  }
  static std::string rack_server(const Job& job, std::size_t rack);
  int used_cores(const ServerJoin& join) const;
  Status take_memory(Job& job, std::size_t bytes);
  void count_in(Job& job, std::shared_ptr<JobMetrics> metrics, std::size_t bytes);
  Status receive_from_racks(Job& job);
  void announce_joined(Job& job, ServerJoined joined);
  std::vector<ReceivedFrom> received_in_rack(const Job& between) const;
  std::unique_ptr<AggregationTask> make_shard_task(Job& job, std::size_t core);
  void wake();
  void end(Job& job, const Error& error);
  void turn_away(std::unique_ptr<net::TcpConnection> connection, const Error& error);
  void send_back();
  static bool has_left(Leaving& leaving);
  void judge_lost();
  void watch_for_stalls();
  void choose_spinning();

  const ServiceOptions options_;
  const Tenants tenants_;
  MemoryQuota memory_{tenants_};
  const net::Endpoint endpoint_;
  const std::string host_id_;
  std::atomic<bool> spins_ = false;
  std::unique_ptr<Metrics> metrics_;

  // Of the thread.
  net::Acceptor acceptor_;
  SparseService sparse_;
  std::map<std::uint64_t, std::unique_ptr<Job>> jobs_;
  std::uint64_t next_job_ = 1;
  std::vector<Leaving> leaving_;
  std::vector<std::unique_ptr<net::TcpConnection>> probes_;
  std::vector<Lost> suspected_;
  double watched_at_ = 0;  // for stalls
  bool has_more_ = false;  // requests that have come were left for the next turn

  Descriptor wake_;
  std::mutex mutex_;        // guards the two below
  std::vector<Lost> lost_;  // what cores saw
  bool stop_ = false;
  std::vector<std::unique_ptr<AggregationThread>> cores_;
  std::thread thread_;
};

}  // namespace motley::ps
