// Gradients and weights over TCP, a channel to each core of the servers. Frames of a bucket on each channel: an
// announcement, then the segments of that channel's core. The answer has the same form; that of an asynchronous job
// ends with the rounds that are in the weights, instead of beginning with an announcement.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "motley/collective/channel_driver.h"
#include "motley/ps/client/server_join.h"
#include "motley/ps/client/server_path.h"
#include "motley/ps/client/wire_frames.h"

namespace motley::ps {

class ChannelPath final : public ServerPath, private collective::Channels {
 public:
  // What is referred to must outlive the path.
  static Result<std::unique_ptr<ChannelPath>> create(net::Session& session, const ServerOptions& options,
                                                     ControlConnections& controls, const Joined& joined,
                                                     std::vector<std::unique_ptr<net::TcpConnection>> channels);

  std::byte* gradients() const override { return gradients_.data(); }
  std::byte* weights() const override { return weights_.data(); }
  std::byte* own_weights() const override { return weights_.data(); }
  Status start(int bucket, const Round& round) override;
  Result<Answer> wait(int bucket, const Deadline& deadline) override;
  void abort(const Error& error) override;
  std::uint64_t bytes_sent() const override;

 private:
  static constexpr std::size_t kAnnouncement = static_cast<std::size_t>(-1);  // in a segment's place

  struct Bucket {
    std::uint64_t step = 0;
    std::size_t to_come = 0;  // frames that have not come yet
    double total_weight = 0;
    std::vector<std::uint32_t> rounds;  // of each rank in the weights, asynchronous
    collective::ChannelDriver::Patience patience;
  };
  struct Expected {
    int bucket;
    std::size_t segment;  // whose weights are to come, or kAnnouncement: the answer to it; asynchronous: the rounds
  };
  struct Channel {
    std::unique_ptr<net::TcpConnection> connection;
    std::deque<Expected> expected;      // in order
    std::deque<std::uint64_t> sending;  // numbers of the frames that the connection has, and maybe of some before
    std::vector<Announcement> answers;  // by bucket
    std::vector<std::vector<std::uint32_t>> rounds;  // by bucket, asynchronous
  };
  struct Outgoing {
    int channel;
    std::uint64_t tag;
    std::size_t segment;                       // whose gradient it is, or
    std::optional<Announcement> announcement;  // instead
  };

  ChannelPath(net::Session& session, const ServerOptions& options, ControlConnections& controls,
              const DividedModel& model, WireFrames frames, Pages gradients, Pages weights);

  void expect_announcement(Channel& channel, int bucket, std::uint64_t tag);
  void post_in_order();
  Result<bool> advance() override;
  Status take_answers(Channel& channel);
  Error find_cause(const Error& closed);
  bool idle() const override;
  void list_descriptors(std::vector<pollfd>& descriptors) const override;

  ControlConnections& controls_;
  const DividedModel& model_;
  const std::size_t size_;
  const bool is_async_;
  const bool adds_up_only_;
  Pages gradients_;
  Pages weights_;

  // These belong to whoever holds the driver's lock.
  WireFrames frames_;
  std::vector<Bucket> buckets_;
  std::vector<Channel> channels_;     // by bin
  std::deque<Outgoing> outbox_;       // in the order of all ranks
  std::uint64_t frames_posted_ = 0;   // to connections
  std::size_t unanswered_bytes_ = 0;  // of pushes
  double answered_ = 0;               // when the last answer came
  double controls_checked_ = 0;       // when
  collective::ChannelDriver driver_;  // last: its helper ends first
};

}  // namespace motley::ps
