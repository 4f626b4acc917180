// A core of a server: its parts of jobs, and the thread that works on them in turn.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/net/connection.h"
#include "motley/ps/dense/dense_metrics.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/ps/tenants/weighted_round_robin.h"

namespace motley::ps {

using Channels = std::vector<std::unique_ptr<net::Connection>>;
// Is told of a channel that has ended, and of what makes the job impossible.
using TellLost = std::function<void(Error)>;

// A core's part of a job, as the core's thread sees it, and what those parts have in common: channels that items come
// over in a known order, and the announcements of buckets among them. All is called by the core's thread.
class AggregationTask {
 public:
  AggregationTask(Channels channels, std::size_t buckets, TellLost lost)
      : channels_(std::move(channels)),
        landing_(channels_.size(), std::vector<Announcement>(buckets)),
        lost_(std::move(lost)),
        posted_(channels_.size()),
        ended_(channels_.size()) {}
  virtual ~AggregationTask() = default;
  // Works on at most one segment. True if there was something to do.
  virtual bool advance() = 0;
  // Reads and writes what a channel's socket allows.
  virtual void progress(std::size_t channel) = 0;
  // False if there is work already.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() {}
  const Channels& channels() const { return channels_; }
  bool ended(std::size_t channel) const { return ended_[channel]; }
  // Whether what comes over the channel may be read now. Frames that there is no room for yet wait in its socket.
  bool reads(std::size_t channel) const { return channel >= bounded_ || channels_[channel]->pending_receives() > 0; }

 protected:
  // The first so many channels bring no more at a time than they have room for.
  void bound_channels(std::size_t count) { bounded_ = count; }
  // The next frame of a channel, a bucket's announcement or another, is to be this one.
  void expect_announcement(std::size_t channel, std::size_t bucket, std::uint32_t round) {
    expect(channel, kServerAnnounce, channel_tag(round, bucket),
           std::as_writable_bytes(std::span(&landing_[channel][bucket], 1)));
  }
  void expect(std::size_t channel, std::uint16_t type, std::uint64_t tag, std::span<std::byte> into) {
    channels_[channel]->post_receive(type, tag, into);
    ++posted_[channel];
  }
  // Reads and writes what the channel's socket allows. That it has ended is seen also where nothing is to come.
  Result<bool> transfer(std::size_t channel);
  // Frames that have come over the channel.
  std::uint64_t arrived(std::size_t channel) const { return posted_[channel] - channels_[channel]->pending_receives(); }
  // What coefficients the gradients of a bucket get that were announced so. Announcements that do not agree are the end
  // of the job. `ranks`: whose they are, where not of all in their order.
  std::optional<collective::Mean> weigh(std::size_t bucket, std::span<const Announcement> announced,
                                        std::span<const int> ranks = {});
  // A channel that has ended is no failure by itself: a rank that has all its weights may go while others still wait
  // for theirs. Whether it was missed is for the service to say.
  void end_channel(std::size_t channel, Error error) {
    ended_[channel] = true;
    lost_(std::move(error));
  }
  void give_up(Error error) {
    failed_ = true;
    lost_(std::move(error));
  }

  Channels channels_;
  std::vector<std::vector<Announcement>> landing_;  // of announcements, by channel and bucket
  bool failed_ = false;

 private:
  TellLost lost_;
  std::vector<std::uint64_t> posted_;  // receives, by channel
  std::vector<bool> ended_;            // by channel
  std::size_t bounded_ = 0;            // channels of which only what is expected is read
};

// Works on its shares of all jobs in turn, a segment at a time, so that no job waits for another's whole model and no
// tenant for another's many jobs. It sleeps in poll when there is nothing to do.
class AggregationThread {
 public:
  // `pinned_to`: the processor that it may run on, if it is to have its own. `spins`: whether it looks out for work for
  // some microseconds before it sleeps.
  AggregationThread(std::optional<int> pinned_to, const std::atomic<bool>& spins, ThreadMetrics& metrics);
  ~AggregationThread();

  // From any thread; takes effect soon. A job has one share on a core. `weight`: of the tenant, among tenants.
  void add(std::uint64_t job, std::unique_ptr<AggregationTask> task, const std::string& tenant, int weight) {
    request({job, std::move(task), tenant, weight});
  }
  void remove(std::uint64_t job) { request({job, nullptr, {}, 0}); }
  // The same, and nothing of the job is touched here any more once it returns: after a segment at the longest. False
  // where that has not come to an end after so many seconds.
  bool remove_now(std::uint64_t job, double seconds);
  // How long it has been at what it does now, which is a segment at the most, or a sleep of a moment.
  double stuck_seconds() const { return monotonic_seconds() - turned_at_.load(std::memory_order_relaxed); }

 private:
  struct Request {
    std::uint64_t job;
    std::unique_ptr<AggregationTask> task;  // null: remove
    std::string tenant;
    int weight;
  };
  void request(Request request);
  void run();
  void take_requests();
  void serve_sockets(int milliseconds);

  const std::atomic<bool>& spins_;
  ThreadMetrics& metrics_;
  std::map<std::uint64_t, std::unique_ptr<AggregationTask>> tasks_;  // of the thread
  WeightedRoundRobin turns_;
  std::vector<pollfd> polled_;
  std::vector<std::pair<AggregationTask*, std::size_t>> owners_;  // of what is polled, after the first

  Descriptor wake_;
  std::mutex mutex_;  // guards the requests
  std::condition_variable taken_;
  std::vector<Request> requests_;
  bool stop_ = false;
  std::atomic<bool> requested_ = false;
  std::atomic<double> turned_at_{monotonic_seconds()};  // when it last looked for something to do
  std::thread thread_;
};

}  // namespace motley::ps
