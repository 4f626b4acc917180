// The rack's gradient of a segment is the weighted mean of its workers', and its weight is theirs together, so that the
// servers between the racks find the mean of all.
//
// One buffer holds a segment's rack gradient and then its new weights. It is written again only when all workers have
// pushed the segment's next round, which they do when they have these weights; and weights come from the owner only
// after it has got the gradient. So both are sent straight from where they stand.
#include "motley/ps/dense/rack_job.h"

#include <algorithm>
#include <cstring>

#include "motley/base/os/signals.h"
#include "motley/net/admission.h"

namespace motley::ps {

namespace {

constexpr int kMaxMessages = 64;         // taken of one server before others
constexpr std::size_t kMaxQueued = 64;   // frames of the state on one uplink
constexpr double kListenSeconds = 0.05;  // between two looks at whether to give up

// The next message, which is to be of this type.
Result<net::Message> receive_from(net::Connection& control, std::uint16_t type, const std::string& server,
                                  const std::string& what, const Deadline& deadline,
                                  const std::atomic<bool>& cancelled) {
  for (;;) {
    auto message = control.receive(Deadline::after(kListenSeconds), what);
    if (message && message->header.type == type) return message;
    if (message && message->header.type == kServerFailed) {
      MOTLEY_ASSIGN(const Error error, decode_server_failed(message->payload));
      return fail(error.within(server));
    }
    if (message) {
      return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x}", server, message->header.type);
    }
    if (message.error().code != ErrorCode::kTimeout) {
      return fail(ErrorCode::kServerLost, "the {} was lost while racks met: {}", server, message.error().message);
    }
    if (cancelled) return fail(ErrorCode::kInterrupted, "the job has ended");
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: timeout after {:.3g} s of waiting for {}", server, deadline.allowed(),
                  what);
    }
  }
}

}  // namespace

RackJob::RackJob(ServerJoin join, net::Claim claim, const net::Secret& token, bool payload_checksum,
                 const net::Encryption& encryption, std::function<void()> wake)
    : join_(std::move(join)),
      rack_(join_.racks.list_racks()[static_cast<std::size_t>(claim.identity.rank)]),
      ranks_(join_.racks.list_ranks(rack_)) {
  const auto end = [this, wake = std::move(wake)](Result<Uplinks> connected) {
    connecting_ = std::move(connected);
    over_ = true;
    wake();
  };
  thread_ = start_thread_or([this, claim = std::move(claim), token, payload_checksum, encryption,
                             end] { end(connect(claim, token, payload_checksum, encryption)); },
                            [&](const Error& error) { end(fail(error)); });
}

// The servers of a job's racks meet: each is a worker of a further job, between the racks, which all of them serve; one
// whose rack has no ranks only serves it. Blocks until all have joined, or the plan's seconds have passed; the error
// names who was waited for.
Result<Uplinks> RackJob::connect(net::Claim claim, const net::Secret& token, bool payload_checksum,
                                 const net::Encryption& encryption) const {
  const Deadline deadline = Deadline::after(join_.racks.seconds);
  const auto open = [&](int rack, std::uint32_t purpose) -> Result<std::unique_ptr<net::Connection>> {
    MOTLEY_ASSIGN(const auto endpoint, net::parse_endpoint(join_.racks.servers[rack]));
    claim.identity.purpose = purpose;
    auto connection = net::connect_to_host(endpoint, token, claim, deadline, payload_checksum && rack != rack_,
                                           encryption, [&] { return cancelled_.load(); });
    if (!connection) return fail(connection.error().within(server_name(join_.racks, rack)));
    return connection;
  };
  const int racks = join_.racks.racks();
  Uplinks uplinks;
  for (int rack = 0; rack < racks; ++rack) {
    MOTLEY_ASSIGN(auto control, open(rack, kServerControl));
    MOTLEY_ASSIGN(const auto message, receive_from(*control, kServerInfo, server_name(join_.racks, rack), "what it is",
                                                   deadline, cancelled_));
    MOTLEY_ASSIGN(const ServerInfo info, decode_server_info(message.payload));
    uplinks.cores = rack == 0 ? info.cores : std::min(uplinks.cores, info.cores);
    uplinks.controls.push_back(std::move(control));
  }
  ServerJoin own = join_;
  own.size = static_cast<int>(join_.racks.list_racks().size());
  own.bins = racks * uplinks.cores;
  own.cores = uplinks.cores;
  own.region = {};
  own.racks.between_servers = true;
  for (int rack = 0; rack < racks; ++rack) {
    own.first_bin = rack * uplinks.cores;
    MOTLEY_TRY(uplinks.controls[rack]->send(kServerJoin, 0, encode(own), deadline, "joining",
                                            [&] { return cancelled_.load(); }));
  }
  for (int rack = 0; rack < racks; ++rack) {
    MOTLEY_ASSIGN(const auto message,
                  receive_from(*uplinks.controls[rack], kServerJoined, server_name(join_.racks, rack),
                               "all racks' servers to join", deadline, cancelled_));
    MOTLEY_ASSIGN(const ServerJoined joined, decode_server_joined(message.payload));
    uplinks.have_state.push_back(joined.has_state);
  }
  for (int core = 0; core < uplinks.cores; ++core) {
    Channels& channels = uplinks.channels.emplace_back();
    for (int rack = 0; rack < racks; ++rack) {
      MOTLEY_ASSIGN(auto channel, open(rack, kServerChannel + static_cast<std::uint32_t>(core)));
      channels.push_back(std::move(channel));
    }
  }
  return uplinks;
}

RackJob::~RackJob() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void RackJob::leave() {
  for (const auto& control : uplinks_.controls) {
    control->post_owned(kServerLeave, 0, {});
    static_cast<void>(control->progress());
  }
}

std::vector<int> RackJob::racks_without_state() const {
  std::vector<int> racks;
  for (int rack = 0; rack < join_.racks.racks(); ++rack) {
    if (!uplinks_.have_state[rack]) racks.push_back(rack);
  }
  return racks;
}

std::size_t RackJob::bytes_needed(const ServerJoin& join, int rack) {
  const std::size_t elements = collective::value_offsets(join.bucket_elements, sizeof(float)).back() / sizeof(float);
  return (join.racks.list_ranks(rack).size() + 1) * elements * kernels::byte_size(join.wire.format());
}

Result<bool> RackJob::connected() {
  if (ready_ || !over_) return false;
  if (!*connecting_) return fail(connecting_->error());
  uplinks_ = std::move(**connecting_);
  model_ = DividedModel(join_.bucket_elements);
  model_.divide(join_.chunk_bytes, bins(), {});
  const std::size_t bytes = model_.bytes() / sizeof(float) * kernels::byte_size(join_.wire.format());
  for (std::size_t worker = 0; worker < ranks_.size(); ++worker) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, "gradients"));
    pushes_.push_back(std::move(pages));
  }
  MOTLEY_ASSIGN(values_, Pages::allocate(bytes, "weights on the wire"));
  received_ = std::vector<std::atomic<std::uint64_t>>(cores() * ranks_.size());
  saving_.resize(uplinks_.controls.size());
  ready_ = true;
  return true;
}

std::vector<ReceivedFrom> RackJob::received() const {
  std::vector<ReceivedFrom> counts;
  for (std::size_t worker = 0; worker < ranks_.size(); ++worker) {
    counts.push_back({.rank = static_cast<std::uint32_t>(ranks_[worker])});
    for (std::size_t at = worker; at < received_.size(); at += ranks_.size()) counts.back().frames += received_[at];
  }
  return counts;
}

bool RackJob::congested() const {
  return std::ranges::any_of(uplinks_.controls,
                             [](const auto& control) { return control->pending_sends() > kMaxQueued; });
}

std::size_t RackJob::owed(int rank) const {
  auto count = std::ranges::count(asking_, rank);
  for (const std::deque<int>& waiting : saving_) count += std::ranges::count(waiting, rank);
  return static_cast<std::size_t>(count);
}

Result<bool> RackJob::take(int rank, const net::Message& message) {
  const auto say = [&](std::size_t rack, std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload) {
    uplinks_.controls[rack]->post_owned(type, tag, std::move(payload));
    static_cast<void>(uplinks_.controls[rack]->progress());  // receive() returns an error
  };
  const std::uint64_t tag = message.header.tag;
  const std::size_t segment = StatePart::of(tag).segment;
  const bool known_part = segment < model_.segments().size();
  const std::size_t owner = known_part ? model_.segments()[segment].bin / cores() : 0;
  const bool has_loaded = std::ranges::find(loaded_, rank) != loaded_.end();
  switch (message.header.type) {
    case kServerLoad:
      if (rank != 0 || !known_part || has_loaded) return false;
      if (!uplinks_.have_state[owner]) say(owner, kServerLoad, tag, message.payload);
      return true;
    case kServerLoaded:
      if (has_loaded) return false;
      loaded_.push_back(rank);
      if (rank == 0 || ranks_.front() != 0) updates_ = tag;
      if (loaded_.size() < ranks_.size()) return true;
      for (const int rack : racks_without_state()) say(rack, kServerLoaded, updates_, {});
      return true;
    case kServerSave:
      if (!known_part) return false;
      saving_[owner].push_back(rank);
      say(owner, kServerSave, tag, {});
      return true;
    case kServerMissing:
      if (asking_.empty()) {
        counts_.clear();
        servers_counted_ = 0;
        for (std::size_t rack = 0; rack < uplinks_.controls.size(); ++rack) say(rack, kServerReceived, 0, {});
      }
      asking_.push_back(rank);
      return true;
    default:
      return false;
  }
}

Result<std::vector<RackJob::Answer>> RackJob::receive() {
  std::vector<Answer> answers;
  for (std::size_t rack = 0; rack < uplinks_.controls.size(); ++rack) {
    net::Connection& control = *uplinks_.controls[rack];
    for (int taken = 0; taken < kMaxMessages; ++taken) {  // others are served, too
      auto message = control.try_receive();
      const auto moved = message ? control.progress() : Result<bool>(true);
      if (!message || !moved) {
        return fail(ErrorCode::kServerLost, "the {} was lost: it has ended, or a link is down",
                    server_name(join_.racks, rack));
      }
      if (!*message) break;
      MOTLEY_ASSIGN(const bool known, answer(rack, **message, answers));
      if (!known) {
        return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x} and {} bytes",
                    server_name(join_.racks, rack), (*message)->header.type, (*message)->payload.size());
      }
    }
  }
  return answers;
}

Result<bool> RackJob::answer(std::size_t rack, net::Message& message, std::vector<Answer>& answers) {
  const int servers = join_.racks.racks();
  switch (message.header.type) {
    case kServerFailed: {
      MOTLEY_ASSIGN(const Error error, decode_server_failed(message.payload));
      return fail(error.within(server_name(join_.racks, rack)));
    }
    case kServerLoaded:
      if (++servers_loaded_ == racks_without_state().size()) answers.push_back({.rank = -1, .type = kServerLoaded});
      return true;
    case kServerSave: {
      auto& waiting = saving_[rack];
      if (waiting.empty()) return false;
      answers.push_back({waiting.front(), kServerSave, message.header.tag, std::move(message.payload)});
      waiting.pop_front();
      return true;
    }
    case kServerReceived: {
      if (asking_.empty() || message.payload.size() % sizeof(ReceivedFrom) != 0) return false;
      const std::size_t before = counts_.size();
      counts_.resize(before + message.payload.size() / sizeof(ReceivedFrom));
      std::memcpy(counts_.data() + before, message.payload.data(), message.payload.size());
      if (++servers_counted_ < servers) return true;
      std::uint64_t most = 0;
      for (const auto& count : counts_) most = std::max(most, count.frames);
      std::vector<int> missing;
      for (const auto& count : counts_) {
        if (count.frames < most) missing.push_back(static_cast<int>(count.rank));
      }
      for (const int rank : asking_) answers.push_back({rank, kServerMissing, 0, copy_bytes(missing)});
      asking_.clear();
      return true;
    }
    default:
      return false;
  }
}

// A core's part of a rack's job. An item of a round (a bucket's announcement, or a segment) goes up when it has come
// from all workers, and down when it has come back; both in the order of items.
class RackShardTask final : public AggregationTask {
 public:
  RackShardTask(std::shared_ptr<RackJob> job, int core, Channels channels, TellLost lost)
      : AggregationTask(append_uplinks(*job, core, std::move(channels)), job->join_.bucket_elements.size(),
                        std::move(lost)),
        job_(std::move(job)),
        core_(core),
        chunk_(std::max<std::size_t>(job_->join_.chunk_bytes / sizeof(float), 16)),
        taken_(job_->join_.racks.servers.size()) {
    std::size_t announcement = 0;  // of the bucket
    std::size_t longest = 0;
    const std::vector<Segment>& segments = job_->model_.segments();
    for (std::size_t index = 0; index < segments.size(); ++index) {
      const Segment& segment = segments[index];
      if (segment.bin % job_->cores() != core_) continue;
      const std::size_t owner = segment.bin / job_->cores();
      const auto bucket = static_cast<std::size_t>(segment.bucket);
      if (items_.empty() || items_.back().bucket != bucket) {
        announcement = items_.size();
        items_.push_back({.bucket = bucket});
      }
      std::vector<std::size_t>& racks = items_[announcement].racks;
      if (std::ranges::find(racks, owner) == racks.end()) racks.push_back(owner);
      items_.push_back({bucket, &segment, index, {owner}});
      longest = std::max(longest, segment.count);
    }
    if (job_->join_.wire.type != collective::WireType::kNative) scratch_.resize(std::min(chunk_, longest));
    for (const Item& item : items_) {
      post_up(item, 1);
      post_down(item, 1);
    }
  }

  bool advance() override {
    const bool up = may_go_up();
    if (up) {
      const Item& item = item_at(up_);
      if (item.segment != nullptr) {
        sum(item);
      } else if (!begin_bucket(item)) {
        return false;
      }
      post_up(item, to_round(up_) + 1);
      ++up_;
    }
    const bool down = may_go_down();
    if (down) {
      const Item& item = item_at(down_);
      fan_out(item);
      for (const std::size_t rack : item.racks) ++taken_[rack];
      post_down(item, to_round(down_) + 1);
      ++down_;
    }
    if (up || down) {
      for (std::size_t channel = 0; channel < channels_.size(); ++channel) progress(channel);
    }
    return up || down;
  }

  void progress(std::size_t channel) override {
    if (ended(channel)) return;
    const auto moved = transfer(channel);
    if (moved) return;
    const std::size_t workers = job_->ranks_.size();
    if (channel < workers) {
      const int rank = job_->ranks_[channel];
      end_channel(channel, {moved.error().code, fmt::format("rank {}: {}", rank, moved.error().message), rank});
    } else {
      end_channel(channel, {ErrorCode::kServerLost,
                            fmt::format("the {} was lost: {}", server_name(job_->join_.racks, channel - workers),
                                        moved.error().message),
                            -1});
    }
  }

  bool fall_asleep() override { return !may_go_up() && !may_go_down(); }

 private:
  struct Item {
    std::size_t bucket = 0;
    const Segment* segment = nullptr;  // null: the announcement
    std::size_t index = 0;             // of the segment
    std::vector<std::size_t> racks;    // whose servers own it, or parts of the bucket on this core
  };
  static Channels append_uplinks(RackJob& job, int core, Channels workers) {
    std::ranges::move(job.uplinks_.channels[core], std::back_inserter(workers));
    return workers;
  }
  std::size_t uplink(std::size_t rack) const { return job_->ranks_.size() + rack; }
  const Item& item_at(std::uint64_t number) const { return items_[number % items_.size()]; }
  std::uint32_t to_round(std::uint64_t number) const { return static_cast<std::uint32_t>(number / items_.size()) + 1; }

  kernels::WireFormat format() const { return job_->join_.wire.format(); }

  // A segment's place in a worker's pushes, or in values_.
  std::span<std::byte> place(const Pages& pages, const Item& item) const {
    const std::size_t width = kernels::byte_size(format());
    return {pages.data() + job_->model_.element_index(*item.segment) * width, item.segment->count * width};
  }
  std::span<std::byte> values(const Item& item) const { return place(job_->values_, item); }

  // Expects the item's frames of this round from all workers.
  void post_up(const Item& item, std::uint32_t round) {
    for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) {
      if (item.segment == nullptr) {
        expect_announcement(worker, item.bucket, round);
      } else {
        expect(worker, kServerPush, channel_tag(round, item.index), place(job_->pushes_[worker], item));
      }
    }
  }

  // And what its owners answer.
  void post_down(const Item& item, std::uint32_t round) {
    for (const std::size_t rack : item.racks) {
      if (item.segment == nullptr) {
        expect_announcement(uplink(rack), item.bucket, round);
      } else {
        expect(uplink(rack), kServerWeights, channel_tag(round, item.index), values(item));
      }
    }
  }

  bool may_go_up() const {
    if (items_.empty() || failed_) return false;
    const std::size_t workers = job_->ranks_.size();
    bool all = true;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      const std::uint64_t count = arrived(worker);
      job_->received_[core_ * workers + worker].store(count, std::memory_order_relaxed);
      all = all && count > up_;
    }
    return all;
  }

  bool may_go_down() const {
    return !items_.empty() && !failed_ && std::ranges::all_of(item_at(down_).racks, [&](std::size_t rack) {
      return arrived(uplink(rack)) > taken_[rack];
    });
  }

  // All workers have announced the bucket: what coefficients their gradients get, and what the rack announces.
  bool begin_bucket(const Item& item) {
    std::vector<Announcement> announced;
    for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker)
      announced.push_back(landing_[worker][item.bucket]);
    const auto mean = weigh(item.bucket, announced, job_->ranks_);
    if (!mean) return false;
    workers_.assign(mean->ranks.begin(), mean->ranks.end());
    coefficients_.assign(mean->coefficients.begin(), mean->coefficients.end());
    scale_ = static_cast<float>(mean->scale);
    const Announcement rack = {announced[0].step, mean->total_weight, announced[0].learning_rate};
    for (const std::size_t owner : item.racks) {
      channels_[uplink(owner)]->post_owned(kServerAnnounce, channel_tag(to_round(up_), item.bucket),
                                           copy_bytes(std::span(&rack, 1)));
    }
    return true;
  }

  void sum(const Item& item) {
    const std::size_t width = kernels::byte_size(format());
    const std::span<std::byte> mean = values(item);
    const bool narrow = format() != kernels::WireFormat::kFloat32;
    std::vector<kernels::WireInput> inputs(workers_.size());
    for (std::size_t begin = 0; begin < item.segment->count; begin += chunk_) {
      for (std::size_t i = 0; i < workers_.size(); ++i) {
        inputs[i] = {place(job_->pushes_[workers_[i]], item).data() + begin * width, format()};
      }
      std::byte* into = mean.data() + begin * width;
      kernels::fused_update(inputs, coefficients_, scale_, {.rule = kernels::UpdateRule::kSum},
                            narrow ? scratch_.data() : reinterpret_cast<float*>(into), nullptr, narrow ? into : nullptr,
                            format(), std::min(chunk_, item.segment->count - begin));
    }
    channels_[uplink(item.racks[0])]->post_send(kServerPush, channel_tag(to_round(up_), item.index), mean);
  }

  // What has come back goes to all workers of the rack.
  void fan_out(const Item& item) {
    for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) {
      if (item.segment == nullptr) {
        channels_[worker]->post_owned(kServerAnnounce, channel_tag(to_round(down_), item.bucket),
                                      copy_bytes(std::span(&landing_[uplink(item.racks[0])][item.bucket], 1)));
      } else {
        channels_[worker]->post_send(kServerWeights, channel_tag(to_round(down_), item.index), values(item));
      }
    }
  }

  const std::shared_ptr<RackJob> job_;
  const int core_;
  const std::size_t chunk_;  // elements that are summed at a time
  std::vector<Item> items_;
  std::uint64_t up_ = 0;              // items that have gone up, over all rounds
  std::uint64_t down_ = 0;            // and down
  std::vector<std::uint64_t> taken_;  // of what has arrived from the racks' servers

  std::vector<std::size_t> workers_;  // that bring something for the bucket under way
  std::vector<float> coefficients_;
  float scale_ = 0;
  std::vector<float> scratch_;  // a chunk's sum, where the wire is narrower
};

std::unique_ptr<AggregationTask> make_rack_task(std::shared_ptr<RackJob> job, int core, Channels channels,
                                                TellLost lost) {
  return std::make_unique<RackShardTask>(std::move(job), core, std::move(channels), std::move(lost));
}

}  // namespace motley::ps
