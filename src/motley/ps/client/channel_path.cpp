// Gradients and weights over TCP, a channel to each core of the servers. Frames of a bucket on each channel: an
// announcement, then the segments of that channel's core. The answer has the same form; that of an asynchronous job
// ends with the rounds that are in the weights, instead of beginning with an announcement. Frames of a server that
// shares memory with this rank are empty: it reads gradients and writes weights where they are.
#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <set>

#include "motley/base/os/injected_fault.h"
#include "motley/base/os/memory.h"
#include "motley/collective/waiting.h"
#include "motley/ps/client/server_path.h"

namespace motley::ps {
namespace {

constexpr double kControlCheckSeconds = 0.02;
constexpr std::size_t kUnansweredBytes = 4 << 20;  // of a rank's pushes, as long as answers come
constexpr double kAnswersStopSeconds = 0.02;       // without any: somebody is late, so that pushing ahead gains
constexpr std::size_t kFramesAhead = 2;            // of each channel, on average
constexpr std::size_t kUnsentBytes = 128 << 10;    // in a channel's socket: what waits there is in nobody's order
constexpr double kLastWordSeconds = 0.5;           // for a server to say why it closes a channel

// A rank's gradients and weights, and what stands on the wire between it and its servers: pushes in the job's form, and
// the answers to them. Where the form is not float32, every segment has a frame of its own on either side; what a lossy
// push leaves out is kept and added to the next one (error feedback). The servers multiply a gradient by its weight, so
// what was left out of one of weight v is v / w of what it is in one of weight w.
class WireFrames {
 public:
  // What `joined` has must outlive this. Where servers only add up, their answers take the gradients' place.
  static Result<WireFrames> create(const Joined& joined, const ServerOptions& options,
                                   const std::vector<ControlConnections::Server>& servers, int ranks) {
    const DividedModel& model = joined.model;
    WireFrames frames(model, options, ranks);
    if (joined.gradients) {
      frames.values_ = joined.gradients->data();
      for (const Segment& segment : model.segments()) {
        const auto owner = std::ranges::find_if(servers, [&](const auto& server) { return server.owns(segment); });
        frames.in_region_.push_back(owner != servers.end() && owner->in_region);
      }
    } else {
      MOTLEY_ASSIGN(frames.pages_, Pages::allocate(model.weights_at() + model.bytes(), "gradients and weights"));
      frames.values_ = frames.pages_.data();
    }
    if (!frames.native()) {
      MOTLEY_ASSIGN(frames.pushes_.pages, Pages::allocate(frames.pushes_.offsets.back(), "gradients on the wire"));
      MOTLEY_ASSIGN(frames.answers_.pages, Pages::allocate(frames.answers_.offsets.back(), "weights on the wire"));
    }
    if (frames.lossy()) {
      MOTLEY_ASSIGN(frames.left_out_, Pages::allocate(model.bytes(), "what pushes left out"));
    }
    return frames;
  }

  std::byte* gradients() const { return values_; }
  std::byte* weights() const { return values_ + model_->weights_at(); }

  // The memory of segment `index`'s frames.
  std::span<std::byte> push(std::size_t index) const { return frame(pushes_, gradients(), index); }
  std::span<std::byte> answer(std::size_t index) const { return frame(answers_, answered(), index); }

  // A bucket's gradients of this weight stand ready.
  void begin(int bucket, double weight) {
    Ready& ready = ready_[bucket];
    if (ready.now > 0) ready.left_out = ready.now;
    ready.now = weight;
  }

  // Fills the frame of a push.
  void write_push(std::size_t index) {
    const Segment& it = segment(index);
    const Ready& ready = ready_[it.bucket];
    if (native() || ready.now == 0) return;  // of no weight: whatever stands there is not used
    std::byte* frame = push(index).data();
    const std::size_t offset = model_->offset(it);
    const std::span gradient(reinterpret_cast<const float*>(gradients() + offset), it.count);
    if (!lossy()) return kernels::write_format(pushes_.form.format(), gradient, frame);
    const std::span left_out(left_out_.as<float>(offset), it.count);
    const auto factor = static_cast<float>(ready.left_out / ready.now);
    for (std::size_t e = 0; e < it.count; ++e) left_out[e] = gradient[e] + factor * left_out[e];
    pushes_.form.compress(left_out, frame);
  }

  // Applies an answer that stands in its frame. Answers to lossy pushes are differences, or gradients that take the
  // place of what was there. kCorrupt names an index outside.
  Status read_answer(std::size_t index) {
    if (native()) return {};
    const Segment& it = segment(index);
    const std::byte* frame = answer(index).data();
    const std::span to(reinterpret_cast<float*>(answered() + model_->offset(it)), it.count);
    if (!lossy()) {
      kernels::read_format(answers_.form.format(), frame, to);
      return {};
    }
    if (adds_up_only_) std::ranges::fill(to, 0.0F);
    if (answers_.form.add(frame, 1, to)) return {};
    return fail(ErrorCode::kCorrupt, "segment {} came with an index beyond its {} values", index, it.count);
  }

 private:
  WireFrames(const DividedModel& model, const ServerOptions& options, int ranks)
      : model_(&model),
        adds_up_only_(options.update.rule == kernels::UpdateRule::kSum),
        pushes_(options.wire_form(), model),
        answers_(pushes_.form.answer(ranks, options.update), model),
        ready_(model.buckets().size()) {}

  struct Frames {  // of all segments, one way
    Frames(const collective::WireForm& form, const DividedModel& model)
        : form(form), offsets(model.frame_offsets(form)) {}
    collective::WireForm form;
    std::vector<std::size_t> offsets;  // by segment
    Pages pages;
  };

  bool native() const { return pushes_.form.type == collective::WireType::kNative; }
  bool lossy() const { return pushes_.form.lossy(); }
  const Segment& segment(std::size_t index) const { return model_->segments()[index]; }
  std::byte* answered() const { return adds_up_only_ ? gradients() : weights(); }  // where answers go
  std::span<std::byte> frame(const Frames& frames, std::byte* values, std::size_t index) const {
    if (!in_region_.empty() && in_region_[index]) return {};
    const Segment& it = segment(index);
    return {native() ? values + model_->offset(it) : frames.pages.data() + frames.offsets[index],
            frames.form.frame_bytes(it.count)};
  }

  struct Ready {          // a bucket's gradient
    double now = 0;       // the weight of the one that stands ready
    double left_out = 1;  // of the one that left_out_ belongs to
  };

  const DividedModel* model_;
  bool adds_up_only_;
  Frames pushes_;
  Frames answers_;
  std::vector<Ready> ready_;
  Pages pages_;
  std::byte* values_ = nullptr;  // all gradients, then all weights: in the pages, or in this rank's region
  std::vector<bool> in_region_;  // by segment, whether its server reads and writes them there; empty: none
  Pages left_out_;               // of lossy pushes so far, in float32
};

class ChannelPath final : public ServerPath, private collective::Channels {
 public:
  ChannelPath(net::Session& session, const ServerOptions& options, ControlConnections& controls,
              const DividedModel& model, WireFrames frames, ps::Channels channels)
      : ServerPath(session, options, controls, model),
        frames_(std::move(frames)),
        buckets_(model.buckets().size()),
        driver_(session, *this) {
    for (auto& connection : channels) {
      connection->keep_unsent_below(kUnsentBytes);
      driver_.add(*connection);
      Channel& channel = channels_.emplace_back();
      channel.connection = std::move(connection);
      channel.answers.resize(buckets_.size());
      channel.rounds.assign(buckets_.size(), std::vector<std::uint32_t>(is_async_ ? size_ : 0));
    }
  }

  // Once, first. `may_spin`: every thread has a core.
  Status begin(bool may_spin, bool with_helper) { return driver_.begin(may_spin, with_helper); }

  std::byte* gradients() const override { return frames_.gradients(); }
  std::byte* weights() const override { return frames_.weights(); }

  Status start(int index, const Round& round) override {
    Bucket& bucket = buckets_[index];
    const auto lock = driver_.lock();
    MOTLEY_TRY(driver_.status());
    frames_.begin(index, round.announcement.weight);
    bucket.step = round.announcement.step;
    bucket.to_come = 0;
    bucket.rounds.assign(is_async_ ? size_ : 0, round.number);
    const std::uint64_t bucket_tag = channel_tag(round.number, index);
    std::set<int> announced;
    for (std::size_t at = model_.buckets()[index].first; at < model_.buckets()[index].last; ++at) {
      const int bin = model_.segments()[at].bin;
      if (announced.insert(bin).second) {
        outbox_.push_back({bin, bucket_tag, kAnnouncement, round.announcement});
        if (!is_async_) expect_announcement(channels_[bin], index, bucket_tag);
      }
      const std::uint64_t tag = channel_tag(round.number, at);
      outbox_.push_back({bin, tag, at, {}});
      channels_[bin].connection->post_receive(kServerWeights, tag, frames_.answer(at));
      channels_[bin].expected.push_back({index, at});
      ++bucket.to_come;
    }
    if (is_async_) {
      for (const int bin : announced) expect_announcement(channels_[bin], index, bucket_tag);
    }
    post_in_order();
    driver_.started(bucket.patience);
    return {};
  }

  Result<Answer> wait(int index, const Deadline& deadline) override {
    Bucket& bucket = buckets_[index];
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

  std::uint64_t bytes_sent() const override { return driver_.bytes_sent(); }

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

  void expect_announcement(Channel& channel, int bucket, std::uint64_t tag) {
    channel.connection->post_receive(kServerAnnounce, tag,
                                     is_async_ ? std::as_writable_bytes(std::span(channel.rounds[bucket]))
                                               : std::as_writable_bytes(std::span(&channel.answers[bucket], 1)));
    channel.expected.push_back({bucket, kAnnouncement});
    ++buckets_[bucket].to_come;
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
      Channel& channel = channels_[next.channel];
      if (next.announcement) {
        channel.connection->post_owned(kServerAnnounce, next.tag, copy_bytes(std::span(&*next.announcement, 1)));
      } else {
        inject_fault(session_.job_rank(session_.membership().rank), "pushing");
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
      Bucket& bucket = buckets_[index];
      --bucket.to_come;
      if (segment != kAnnouncement) {
        unanswered_bytes_ -= frames_.push(segment).size();
        MOTLEY_TRY(frames_.read_answer(segment));
      } else if (is_async_) {
        for (std::size_t rank = 0; rank < size_; ++rank) {
          bucket.rounds[rank] = std::min(bucket.rounds[rank], channel.rounds[index][rank]);
        }
      } else {
        bucket.total_weight = channel.answers[index].weight;
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
                                                      Channels channels) {
  MOTLEY_ASSIGN(WireFrames frames,
                WireFrames::create(joined, options, controls.servers(), session.membership().size()));
  auto path =
      std::make_unique<ChannelPath>(session, options, controls, joined.model, std::move(frames), std::move(channels));
  MOTLEY_TRY(path->begin(joined.may_spin, options.background_progress));
  return path;
}

}  // namespace motley::ps
