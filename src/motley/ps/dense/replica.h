// What servers of an elastic job do for each other: each sends its weights and the optimizer's state to another one,
// its keeper, after every update, so that the job goes on where one of them is lost.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "motley/net/admission.h"
#include "motley/ps/dense/dense_job.h"

namespace motley::ps {

// The connections of a server to its keeper, one for each of its cores, which a thread of their own makes.
class ReplicaLinks {
 public:
  struct Options {
    net::Endpoint keeper;
    net::Secret token;
    net::Claim claim;  // of any rank of the job
    int cores = 1;
    double seconds = 0;  // that it may take
    bool payload_checksum = true;
    net::Encryption encryption = net::Encryption::kAuto;
  };
  // `wake` is called, by another thread, when they are there, or nobody has answered in time; at once where no thread
  // can be started.
  ReplicaLinks(Options options, std::function<void()> wake);
  ~ReplicaLinks();

  bool over() const { return over_; }
  void cancel() { cancelled_ = true; }  // nobody waits any more; it is over soon
  // Once it is over, and once: by core.
  Result<Channels> take() { return std::move(*connecting_); }

 private:
  Result<Channels> connect() const;
  Result<std::unique_ptr<net::Connection>> open(int core, const Deadline& deadline) const;

  const Options options_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> over_ = false;
  std::optional<Result<Channels>> connecting_;  // the thread's, until it is over
  std::thread thread_;
};

// The keeper's side: keeps what one core of the other server sends.
std::unique_ptr<AggregationTask> make_replica_task(std::shared_ptr<DenseJob> job, int core,
                                                   std::unique_ptr<net::Connection> channel, TellLost lost);

}  // namespace motley::ps
