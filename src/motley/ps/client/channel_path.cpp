// Gradients and weights over TCP, a channel to each core of the servers. Frames of a bucket on each channel: an
// announcement, then the segments of that channel's core. The answer has the same form; that of an asynchronous job
// ends with the rounds that are in the weights, instead of beginning with an announcement.
#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <set>

#include "motley/collective/channel_driver.h"
#include "motley/ps/client/server_path.h"
#include "motley/ps/client/wire_frames.h"

namespace motley::ps {
namespace {

constexpr double kControlCheckSeconds = 0.02;
constexpr std::size_t kUnansweredBytes = 4 << 20;  // of a rank's pushes, as long as answers come
constexpr double kAnswersStopSeconds = 0.02;       // without any: somebody is late, so that pushing ahead gains
constexpr std::size_t kFramesAhead = 2;            // of each channel, on average
constexpr std::size_t kUnsentBytes = 128 << 10;    // in a channel's socket: what waits there is in nobody's order
constexpr double kLastWordSeconds = 0.5;           // for a server to say why it closes a channel

class ChannelPath final : public ServerPath, private collective::Channels {
 public:
  // What is referred to must outlive the path.
  static Result<std::unique_ptr<ChannelPath>> create(net::Session& session, const ServerOptions& options,
                                                     ControlConnections& controls, const Joined& joined,
                                                     std::vector<std::unique_ptr<net::Connection>> channels) {
    const DividedModel& model = joined.model;
    const collective::WireForm form = options.wire_form();
    MOTLEY_ASSIGN(Pages gradients, Pages::allocate(model.bytes(), "gradients"));
    MOTLEY_ASSIGN(Pages weights, Pages::allocate(model.bytes(), "weights"));
    const bool adds_up_only = options.update.rule == kernels::UpdateRule::kSum;
    MOTLEY_ASSIGN(auto frames, WireFrames::create(model, form, form.answer(session.membership().size(), options.update),
                                                  gradients.data(), adds_up_only ? gradients.data() : weights.data()));
    std::unique_ptr<ChannelPath> path(new ChannelPath(session, options, controls, model, std::move(frames),
                                                      std::move(gradients), std::move(weights)));
    for (auto& connection : channels) {
      connection->keep_unsent_below(kUnsentBytes);
      Channel& channel = path->channels_.emplace_back();
      channel.connection = std::move(connection);
      channel.answers.resize(model.buckets().size());
      channel.rounds.assign(model.buckets().size(), std::vector<std::uint32_t>(path->is_async_ ? path->size_ : 0));
    }
    MOTLEY_TRY(path->driver_.begin(joined.may_spin, options.background_progress));
    return path;
  }

  std::byte* gradients() const override { return gradients_.data(); }
  std::byte* weights() const override { return weights_.data(); }
  std::byte* own_weights() const override { return weights_.data(); }

  Status start(int index, const Round& round) override {
    Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
    const auto lock = driver_.lock();
    MOTLEY_TRY(driver_.status());
    frames_.begin(index, round.announcement.weight);
    bucket.step = round.announcement.step;
    bucket.to_come = 0;
    bucket.rounds.assign(is_async_ ? size_ : 0, round.number);
    const std::uint64_t bucket_tag = channel_tag(round.number, static_cast<std::size_t>(index));
    std::set<int> announced;
    for (std::size_t at = model_.bucket(index).first; at < model_.bucket(index).last; ++at) {
      const int bin = model_.segments()[at].bin;
      Channel& channel = channels_[static_cast<std::size_t>(bin)];
      if (announced.insert(bin).second) {
        outbox_.push_back({bin, bucket_tag, kAnnouncement, round.announcement});
        if (!is_async_) expect_announcement(channel, index, bucket_tag);
      }
      const std::uint64_t tag = channel_tag(round.number, at);
      outbox_.push_back({bin, tag, at, {}});
      channel.connection->post_receive(kServerWeights, tag, frames_.answer(at));
      channel.expected.push_back({index, at});
      ++bucket.to_come;
    }
    if (is_async_) {
      for (const int bin : announced) expect_announcement(channels_[static_cast<std::size_t>(bin)], index, bucket_tag);
    }
    post_in_order();
    driver_.started(bucket.patience);
    return {};
  }

  Result<Answer> wait(int index, const Deadline& deadline) override {
    Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
    auto lock = driver_.lock();
    MOTLEY_TRY(driver_.wait(lock, bucket.patience, deadline,
                            {.done = [&] { return bucket.to_come == 0; },
                             .ranks = [&] { return controls_.ask_for_missing(); },
                             .operation = [&] { return fmt::format("step {}, bucket {}", bucket.step, index); }}));
    return Answer{bucket.total_weight, bucket.rounds};
  }

  void abort(const Error& error) override {
    const auto lock = driver_.lock();
    driver_.break_with(error);
  }

  std::uint64_t bytes_sent() const override {
    std::uint64_t bytes = 0;
    for (const Channel& channel : channels_) bytes += channel.connection->bytes_sent();
    return bytes;
  }

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
    std::unique_ptr<net::Connection> connection;
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
              const DividedModel& model, WireFrames frames, Pages gradients, Pages weights)
      : controls_(controls),
        model_(model),
        size_(static_cast<std::size_t>(session.membership().size())),
        is_async_(options.staleness.has_value()),
        adds_up_only_(options.update.rule == kernels::UpdateRule::kSum),
        gradients_(std::move(gradients)),
        weights_(std::move(weights)),
        frames_(std::move(frames)),
        buckets_(model.buckets().size()),
        driver_(session, *this) {}

  void expect_announcement(Channel& channel, int bucket, std::uint64_t tag) {
    const auto at = static_cast<std::size_t>(bucket);
    channel.connection->post_receive(kServerAnnounce, tag,
                                     is_async_ ? std::as_writable_bytes(std::span(channel.rounds[at]))
                                               : std::as_writable_bytes(std::span(&channel.answers[at], 1)));
    channel.expected.push_back({bucket, kAnnouncement});
    ++buckets_[at].to_come;
  }

  // All ranks send in the same order over all channels, and none of the channels runs far ahead: a segment can be
  // updated when the last rank's has come, so that channels which each go at their own pace would keep servers waiting
  // with much received and little complete. What is to be converted is converted here, while the frames before it are
  // on their way.
  void post_in_order() {
    const std::size_t most = kFramesAhead * channels_.size();
    while (!outbox_.empty()) {
      std::uint64_t oldest = frames_posted_;
      for (Channel& channel : channels_) {
        while (channel.sending.size() > channel.connection->pending_sends()) channel.sending.pop_front();
        if (!channel.sending.empty()) oldest = std::min(oldest, channel.sending.front());
      }
      if (frames_posted_ - oldest >= most) return;
      if (unanswered_bytes_ > kUnansweredBytes && monotonic_seconds() < answered_ + kAnswersStopSeconds) return;
      const Outgoing& next = outbox_.front();
      Channel& channel = channels_[static_cast<std::size_t>(next.channel)];
      if (next.announcement) {
        channel.connection->post_owned(kServerAnnounce, next.tag, copy_bytes(std::span(&*next.announcement, 1)));
      } else {
        frames_.write_push(next.segment);
        const auto frame = frames_.push(next.segment);
        unanswered_bytes_ += frame.size();
        channel.connection->post_send(kServerPush, next.tag, frame);
      }
      channel.sending.push_back(frames_posted_++);
      outbox_.pop_front();
    }
  }

  Result<bool> advance() override {
    bool moved = false;
    post_in_order();
    for (Channel& channel : channels_) {
      if (channel.expected.empty() && !channel.connection->wants_to_write()) continue;
      const auto channel_moved = channel.connection->progress();
      if (!channel_moved) return fail(find_cause(channel_moved.error()));
      moved = moved || *channel_moved;
      MOTLEY_TRY(take_answers(channel));
    }
    if (!moved && monotonic_seconds() > controls_checked_ + kControlCheckSeconds) {
      controls_checked_ = monotonic_seconds();
      MOTLEY_TRY(controls_.check());
    }
    return moved;
  }

  Status take_answers(Channel& channel) {
    while (channel.expected.size() > channel.connection->pending_receives()) {
      const auto [index, segment] = channel.expected.front();
      channel.expected.pop_front();
      answered_ = monotonic_seconds();
      const auto at = static_cast<std::size_t>(index);
      Bucket& bucket = buckets_[at];
      --bucket.to_come;
      if (segment != kAnnouncement) {
        unanswered_bytes_ -= frames_.push(segment).size();
        MOTLEY_TRY(frames_.read_answer(segment, adds_up_only_));
      } else if (is_async_) {
        for (std::size_t rank = 0; rank < size_; ++rank) {
          bucket.rounds[rank] = std::min(bucket.rounds[rank], channel.rounds[at][rank]);
        }
      } else {
        bucket.total_weight = channel.answers[at].weight;
      }
    }
    return {};
  }

  // The server closes channels after it has said why on the control connection.
  Error find_cause(const Error& closed) {
    for (const Deadline last = Deadline::after(kLastWordSeconds); !last.passed();) {
      if (const Status said = controls_.check(); !said) return said.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {ErrorCode::kServerLost, closed.message, -1};
  }

  bool idle() const override {
    return outbox_.empty() && std::ranges::all_of(channels_, [](const Channel& channel) {
             return channel.expected.empty() && !channel.connection->wants_to_write();
           });
  }

  void list_descriptors(std::vector<pollfd>& descriptors) const override {
    for (const Channel& channel : channels_) {
      const int events = (channel.expected.empty() ? 0 : POLLIN) | (channel.connection->wants_to_write() ? POLLOUT : 0);
      if (events != 0) descriptors.push_back({channel.connection->descriptor(), static_cast<short>(events), 0});
    }
  }

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

}  // namespace

Result<std::unique_ptr<ServerPath>> make_channel_path(net::Session& session, const ServerOptions& options,
                                                      ControlConnections& controls, const Joined& joined,
                                                      std::vector<std::unique_ptr<net::Connection>> channels) {
  return ChannelPath::create(session, options, controls, joined, std::move(channels));
}

}  // namespace motley::ps
