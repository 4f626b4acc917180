#include "motley/ps/dense/replica.h"

#include <algorithm>
#include <utility>

#include "motley/base/clock.h"
#include "motley/base/os/signals.h"

namespace motley::ps {
namespace {

constexpr double kKeeperRetrySeconds = 0.005;  // where the keeper does not know of the job's epoch yet
constexpr double kKeeperLookSeconds = 0.05;    // between two looks at whether it is of no use any more

}  // namespace

ReplicaLinks::ReplicaLinks(Options options, std::function<void()> wake) : options_(std::move(options)) {
  const auto end = [this, wake = std::move(wake)](Result<Channels> connected) {
    connecting_ = std::move(connected);
    over_ = true;
    wake();
  };
  thread_ = start_thread_or([this, end] { end(connect()); }, [&](const Error& error) { end(fail(error)); });
}

ReplicaLinks::~ReplicaLinks() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

Result<Channels> ReplicaLinks::connect() const {
  const Deadline deadline = Deadline::after(options_.seconds);
  Channels channels;
  while (static_cast<int>(channels.size()) < options_.cores) {
    auto channel = open(static_cast<int>(channels.size()), deadline);
    if (channel) {
      channels.push_back(std::move(*channel));
    } else if (cancelled_ || deadline.passed()) {
      return fail(std::move(channel.error()));
    } else {
      SteadyClock::instance().sleep_until(monotonic_seconds() + kKeeperRetrySeconds);
    }
  }
  return channels;
}

Result<std::unique_ptr<net::Connection>> ReplicaLinks::open(int core, const Deadline& deadline) const {
  net::Claim claim = options_.claim;
  claim.identity.purpose = kServerReplica + static_cast<std::uint32_t>(core);
  MOTLEY_ASSIGN(auto channel,
                net::connect_to_host(options_.keeper, options_.token, claim, deadline, options_.payload_checksum,
                                     options_.encryption, [this] { return cancelled_.load(); }));
  for (;;) {
    const auto message = channel->receive(Deadline::after(kKeeperLookSeconds), "whether it keeps the state");
    if (message && message->header.type == kServerKept) return channel;
    if (message) return fail(ErrorCode::kRefused, "it does not keep the state");
    if (message.error().code != ErrorCode::kTimeout || cancelled_ || deadline.passed()) return fail(message.error());
  }
}

// Segments come in the order in which the other server's core takes them, each as an array after the other, and are
// put where they belong once they are whole: where a frame is cut off, what was kept before stands.
class ReplicaTask final : public AggregationTask {
 public:
  ReplicaTask(std::shared_ptr<DenseJob> job, int core, Channels channels, TellLost lost)
      : AggregationTask(std::move(channels), 0, std::move(lost)), job_(std::move(job)), incoming_(job_->kept_.size()) {
    const std::vector<Segment>& segments = job_->model_.segments();
    for (std::size_t index = 0; index < segments.size(); ++index) {
      if (segments[index].bin == job_->join_.elastic.kept.first + core) items_.push_back(index);
    }
    channels_[0]->post_owned(kServerKept, 0, {});
    expect_next();
  }

  bool advance() override {
    if (!has_come()) return false;
    const std::size_t index = items_[taken_ % items_.size()];
    const Segment& segment = job_->model_.segments()[index];
    job_->keep(segment, 0, segment.count);
    for (std::size_t number = 0; number < incoming_.size(); ++number) {
      std::copy_n(incoming_[number].begin(), segment.count, job_->array(number, segment));
    }
    job_->record_kept(index, round(), taken_ >= items_.size());
    channels_[0]->post_owned(kServerKept, channel_tag(round(), index), {});
    ++taken_;
    expect_next();
    progress(0);
    return true;
  }

  void progress(std::size_t channel) override {
    if (ended(channel)) return;
    // Where segments come, the next one may be here before the last one is taken.
    const auto moved = items_.empty() ? transfer(channel) : channels_[channel]->progress();
    if (!moved) end_channel(channel, moved.error());
  }

  bool fall_asleep() override { return !has_come(); }

 private:
  bool has_come() const { return !items_.empty() && channels_[0]->pending_receives() == 0; }
  std::uint32_t round() const { return static_cast<std::uint32_t>(taken_ / items_.size()) + 1; }

  void expect_next() {
    if (items_.empty()) return;
    const std::size_t index = items_[taken_ % items_.size()];
    for (std::size_t number = 0; number < incoming_.size(); ++number) {
      incoming_[number].resize(job_->model_.segments()[index].count);
      expect(0, static_cast<std::uint16_t>(kServerState + number), channel_tag(round(), index),
             std::as_writable_bytes(std::span(incoming_[number])));
    }
  }

  const std::shared_ptr<DenseJob> job_;
  std::vector<std::vector<float>> incoming_;  // of a segment, by array
  std::vector<std::size_t> items_;            // segments of a round
  std::uint64_t taken_ = 0;                   // items, over all rounds
};

std::unique_ptr<AggregationTask> make_replica_task(std::shared_ptr<DenseJob> job, int core,
                                                   std::unique_ptr<net::Connection> channel, TellLost lost) {
  Channels channels;
  channels.push_back(std::move(channel));
  return std::make_unique<ReplicaTask>(std::move(job), core, std::move(channels), std::move(lost));
}

}  // namespace motley::ps
