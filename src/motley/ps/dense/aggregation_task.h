// A core's part of a job, as the core's thread sees it, and what those parts have in common: channels that items come
// over in a known order, and the announcements of buckets among them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "motley/collective/mean.h"
#include "motley/net/connection.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

using Channels = std::vector<std::unique_ptr<net::Connection>>;
// Is told of a channel that has ended, and of what makes the job impossible.
using TellLost = std::function<void(Error)>;

// All is called by the core's thread.
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
  virtual void progress(int channel) = 0;
  // False if there is work already.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() {}
  const Channels& channels() const { return channels_; }
  bool ended(std::size_t channel) const { return ended_[channel]; }

 protected:
  // The next frame of a channel, a bucket's announcement or another, is to be this one.
  void expect_announcement(std::size_t channel, std::size_t bucket, std::uint32_t round) {
    expect(channel, kServerAnnounce, channel_tag(round, bucket),
           std::as_writable_bytes(std::span(&landing_[channel][bucket], 1)));
  }
  void expect(std::size_t channel, std::uint16_t type, std::uint64_t tag, std::span<std::byte> into) {
    channels_[channel]->post_receive(type, tag, into);
    ++posted_[channel];
  }
  // Frames that have come over the channel.
  std::uint64_t arrived(std::size_t channel) const { return posted_[channel] - channels_[channel]->pending_receives(); }
  // What coefficients the gradients of a bucket get that were announced so. Announcements that do not agree are the end
  // of the job. `ranks`: whose they are, where not of all in their order.
  std::optional<collective::Mean> weigh(int bucket, std::span<const Announcement> announced,
                                        std::span<const int> ranks = {});
  // A channel that has ended is no failure by itself: a rank that has all its weights may go while others still wait
  // for theirs. Whether it was missed is for the service to say.
  void end_channel(std::size_t channel, Error error);
  void give_up(Error error);

  Channels channels_;
  std::vector<std::vector<Announcement>> landing_;  // of announcements, by channel and bucket
  bool failed_ = false;

 private:
  TellLost lost_;
  std::vector<std::uint64_t> posted_;  // receives, by channel
  std::vector<bool> ended_;            // by channel
};

}  // namespace motley::ps
