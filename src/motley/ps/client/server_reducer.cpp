// Joining, and the two ways in which gradients reach a server.
#include "motley/ps/client/server_reducer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/collective/waiting.h"
#include "motley/net/acceptor.h"
#include "motley/net/host.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

constexpr double kControlCheckSeconds = 0.02;
constexpr std::size_t kUnansweredBytes = 4 << 20;  // of a rank's pushes, as long as answers come
constexpr double kAnswersStopSeconds = 0.02;       // without any: somebody is late, so that pushing ahead gains
constexpr std::size_t kFramesAhead = 2;            // of each channel, on average
constexpr std::size_t kUnsentBytes = 128 << 10;    // in a channel's socket: what waits there is in nobody's order
constexpr double kAnswerSeconds = 1;               // for a server to say whom it waits for
constexpr double kShareOfDeadline = 0.9;           // for servers to meet, so that they can still say whom they wait for
constexpr double kLastWordSeconds = 0.5;           // for a server to say why it closes a channel

collective::WireForm make_wire_form(const ServerOptions& options) {
  return {options.wire, options.wire == collective::WireType::kTopK ? options.top_k : 0};
}

}  // namespace

Result<std::unique_ptr<ServerReducer>> ServerReducer::create(net::Session& session, const ServerOptions& options) {
  if (options.servers.empty()) {
    return fail(ErrorCode::kInvalidInput, "the exchange 'parameter-server' needs the address of a server");
  }
  return std::unique_ptr<ServerReducer>(new ServerReducer(session, options));
}

ServerReducer::ServerReducer(net::Session& session, const ServerOptions& options)
    : session_(session),
      options_(options),
      rank_(session.membership().rank),
      size_(session.membership().size()),
      wire_(make_wire_form(options)),
      answer_(wire_.answer(size_, options.update)) {}

ServerReducer::~ServerReducer() {
  for (Server& server : servers_) {
    if (server.control && !failed_) {
      server.control->post_owned(kServerLeave, 0, {});
      static_cast<void>(server.control->progress());
    }
  }
}

Status ServerReducer::prepare(const collective::Layout& layout, const Deadline& deadline) {
  MOTLEY_INVARIANT(servers_.empty(), "prepare was called twice");
  if (layout.type != collective::DataType::kFloat32) {
    return fail(
        ErrorCode::kInvalidInput,
        "a parameter server works on float32 weights; these are float64: gradient_sync.method ring or shared-memory "
        "is accepted");
  }
  if (is_async() && !updates_weights()) {
    return fail(
        ErrorCode::kInvalidInput,
        "ranks may be at different steps only where the parameter server takes the optimizer's step; this job's "
        "servers only add up");
  }
  if ((is_async() || !options_.rank_racks.empty()) && wire_.lossy()) {
    return fail(
        ErrorCode::kInvalidInput,
        "gradient_sync.comm_dtype: {} needs all ranks at the same step, and no servers of racks in between; accepted: "
        "float32, bfloat16 and float16",
        to_string(wire_));
  }
  if (wire_.type == collective::WireType::kTopK &&
      !(wire_.density > 0 && wire_.density <= collective::kLargestDensity)) {
    return fail(ErrorCode::kInvalidInput, "gradient_sync.top_k: {}; accepted: above 0, at most {}", wire_.density,
                collective::kLargestDensity);
  }
  MOTLEY_INVARIANT(wire_.type != collective::WireType::kAuto, "nobody has chosen the type on the wire");
  bucket_elements_.assign(layout.bucket_elements.begin(), layout.bucket_elements.end());
  const std::vector<std::size_t> offsets = ServerRegion::value_offsets(bucket_elements_);
  for (std::size_t bucket = 0; bucket < bucket_elements_.size(); ++bucket) {
    buckets_.push_back({.elements = bucket_elements_[bucket], .offset = offsets[bucket]});
  }
  MOTLEY_TRY(choose_servers());
  MOTLEY_TRY(connect_control(deadline));
  int bins = 0;
  for (Server& server : servers_) {
    server.first_bin = bins;
    bins += server.cores;
    if (!options_.server_speeds.empty() && racks_.empty()) {
      const double speed = options_.server_speeds[static_cast<std::size_t>(&server - servers_.data())];
      bin_speeds_.insert(bin_speeds_.end(), static_cast<std::size_t>(server.cores), speed / server.cores);
    }
  }
  cut(bins);
  MOTLEY_TRY(join(deadline));
  MOTLEY_TRY(connect_channels(deadline));
  return driver_.begin(may_spin_, options_.background_progress && !own_);
}

// All servers, or that of this rank's rack.
Status ServerReducer::choose_servers() {
  MOTLEY_INVARIANT(options_.server_speeds.empty() || options_.server_speeds.size() == options_.servers.size(),
                   "{} speeds are given for {} servers", options_.server_speeds.size(), options_.servers.size());
  addresses_ = options_.servers;
  if (options_.rank_racks.empty() || options_.servers.size() < 2) return {};
  if (is_async()) {
    return fail(ErrorCode::kInvalidInput,
                "a server in each rack adds up what its ranks push together; ranks at different steps need servers "
                "without racks");
  }
  std::vector<std::string> names;
  for (const ServerAddress& address : options_.servers) names.push_back(net::to_string(address.endpoint));
  MOTLEY_ASSIGN(racks_, make_rack_plan(names, options_.rank_racks, size_));
  addresses_ = {options_.servers[static_cast<std::size_t>(options_.rank_racks[static_cast<std::size_t>(rank_)])]};
  return {};
}

void ServerReducer::cut(int bins) {
  const std::vector<std::size_t> elements(bucket_elements_.begin(), bucket_elements_.end());
  map_ = make_chunk_map(elements, sizeof(float), options_.chunk_bytes, bins, bin_speeds_);
  for (Bucket& bucket : buckets_) bucket.first = bucket.last = 0;
  for (std::size_t index = 0; index < map_.segments.size(); ++index) {
    Bucket& bucket = buckets_[static_cast<std::size_t>(map_.segments[index].bucket)];
    if (bucket.last == 0) bucket.first = index;
    bucket.last = index + 1;
  }
}

net::Claim ServerReducer::claim(std::uint32_t purpose) const {
  const net::SessionOptions& own = session_.options();
  net::Claim claim;
  claim.identity.job = own.job + options_.job_suffix;
  claim.identity.tenant = own.tenant;
  claim.identity.rank = rank_;
  claim.identity.session = session_.membership().session;
  claim.identity.epoch = session_.membership().epoch;
  claim.identity.purpose = purpose;
  claim.fingerprint = own.fingerprint;
  return claim;
}

Status ServerReducer::connect_control(const Deadline& deadline) {
  const net::SessionOptions& own = session_.options();
  for (const ServerAddress& address : addresses_) {
    Server server;
    server.name = fmt::format("server at {}", net::to_string(address.endpoint));
    MOTLEY_ASSIGN(server.control, net::connect_to_host(address.endpoint, address.token, claim(kServerControl), deadline,
                                                       own.payload_checksum, [&] { return !session_.health(); }));
    servers_.push_back(std::move(server));
    MOTLEY_ASSIGN(const auto message, receive_from(servers_.back(), kServerInfo, deadline, "what it is"));
    MOTLEY_ASSIGN(const ServerInfo info, decode_server_info(message.payload));
    servers_.back().cores = info.cores;
    servers_.back().host_id = info.host_id;
  }
  return {};
}

// The next message of this type; a server's word that the job has failed is an error.
Result<net::Message> ServerReducer::receive_from(Server& server, std::uint16_t type, const Deadline& deadline,
                                                 const char* what) {
  for (;;) {
    auto message = server.control->try_receive();
    if (!message) return fail(message.error().within(server.name));
    if (*message && (*message)->header.type == kServerFailed) {
      MOTLEY_ASSIGN(const Error error, decode_server_failed((*message)->payload));
      verdict_ = error.within(server.name);
      return fail(*verdict_);
    }
    if (*message && (*message)->header.type == type) return std::move(**message);
    if (*message) {
      return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x}", server.name, (*message)->header.type);
    }
    MOTLEY_TRY(server.control->progress());
    if (const Status health = session_.health(); !health) return fail(health.error());
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: waited {:.3g} s for {}", server.name, deadline.allowed(), what);
    }
    net::wait_for(server.control->descriptor(), 1, std::min(50, deadline.remaining_milliseconds()));
  }
}

Status ServerReducer::join(const Deadline& deadline) {
  const net::Membership& membership = session_.membership();
  const std::string& host = membership.members[static_cast<std::size_t>(rank_)].host_id;
  ServerJoin join = {.size = size_,
                     .bins = static_cast<int>(map_.load.size()),
                     .chunk_bytes = options_.chunk_bytes,
                     .is_async = is_async(),
                     .wire = wire_,
                     .update = options_.update,
                     .bucket_elements = bucket_elements_,
                     .bin_speeds = bin_speeds_,
                     .host_id = host};
  const bool in_memory = options_.servers_share_memory && servers_.size() == 1 && racks_.empty() &&
                         servers_[0].host_id == host && membership.on_one_host();
  const std::size_t bytes = ServerRegion::value_offsets(bucket_elements_).back();
  if (in_memory) {
    join.region = fmt::format("{:x}-{}-pushes-r{}", membership.session, membership.epoch, rank_);
    MOTLEY_ASSIGN(own_, net::Region::create(join.region, std::max<std::size_t>(bytes, 64)));
  }
  for (Server& server : servers_) {
    join.first_bin = server.first_bin;
    join.racks = racks_;
    join.racks.seconds = kShareOfDeadline * deadline.remaining();
    MOTLEY_TRY(server.control->send(kServerJoin, 0, encode(join), deadline, "joining"));
  }
  for (Server& server : servers_) {
    MOTLEY_ASSIGN(const auto message, receive_from(server, kServerJoined, deadline, "all ranks to join"));
    MOTLEY_ASSIGN(const ServerJoined joined, decode_server_joined(message.payload));
    may_spin_ = joined.may_spin;
    if (!racks_.empty()) {
      if (joined.cores < 1 || joined.cores > server.cores) {
        return fail(ErrorCode::kCorrupt, "{}: it uses {} of its {} cores", server.name, joined.cores, server.cores);
      }
      server.cores = joined.cores;
      cut(joined.bins);
      for (Segment& segment : map_.segments) segment.bin %= joined.cores;
    }
    if (!in_memory) continue;
    if (joined.region_bytes != ServerRegion::bytes(bucket_elements_, server.cores, size_, is_async())) {
      return fail(ErrorCode::kCorrupt, "{}: its region has {} bytes", server.name, joined.region_bytes);
    }
    MOTLEY_ASSIGN(shared_, net::Region::map(joined.region, joined.region_bytes));
    region_ = ServerRegion(shared_->data(), bucket_elements_, server.cores, size_, is_async());
    own_->unlink();
    if (wire_.type != collective::WireType::kNative && rank_ == 0) {
      spdlog::info(
          "gradient_sync.comm_dtype: {} is not used: the server and all ranks share memory, where nothing is sent",
          to_string(wire_));
    }
  }
  if (!in_memory) {
    MOTLEY_ASSIGN(gradients_, Pages::allocate(bytes, "gradients"));
    MOTLEY_ASSIGN(weights_, Pages::allocate(bytes, "weights"));
    if (wire_.type != collective::WireType::kNative) {
      outgoing_at_ = frame_offsets(map_, wire_);
      incoming_at_ = frame_offsets(map_, answer_);
      MOTLEY_ASSIGN(outgoing_, Pages::allocate(outgoing_at_.back(), "gradients on the wire"));
      MOTLEY_ASSIGN(incoming_, Pages::allocate(incoming_at_.back(), "weights on the wire"));
    }
    if (wire_.lossy()) {
      MOTLEY_ASSIGN(left_out_, Pages::allocate(bytes, "what pushes left out"));
    }
  }
  return {};
}

Status ServerReducer::connect_channels(const Deadline& deadline) {
  const net::SessionOptions& own = session_.options();
  for (std::size_t index = 0; index < servers_.size(); ++index) {
    for (int core = 0; core < servers_[index].cores; ++core) {
      Channel channel;
      MOTLEY_ASSIGN(channel.connection,
                    net::connect_to_host(addresses_[index].endpoint, addresses_[index].token,
                                         claim(kServerChannel + static_cast<std::uint32_t>(core)), deadline,
                                         own.payload_checksum, [&] { return !session_.health(); }));
      channel.connection->keep_unsent_below(kUnsentBytes);
      channel.answers.resize(buckets_.size());
      channel.rounds.assign(buckets_.size(),
                            std::vector<std::uint32_t>(is_async() ? static_cast<std::size_t>(size_) : 0));
      channels_.push_back(std::move(channel));
    }
  }
  return {};
}

std::size_t ServerReducer::byte_at(const Segment& segment, std::size_t width) const {
  return (buckets_[static_cast<std::size_t>(segment.bucket)].offset / sizeof(float) + segment.begin) * width;
}

std::span<std::byte> ServerReducer::buffer(int bucket) {
  const Bucket& it = buckets_[static_cast<std::size_t>(bucket)];
  return {(own_ ? own_->data() : gradients_.data()) + it.offset, it.elements * sizeof(float)};
}

std::span<const float> ServerReducer::weights(int bucket) {
  const Bucket& it = buckets_[static_cast<std::size_t>(bucket)];
  const std::byte* values = !own_ ? weights_.data() : is_async() ? region_.rank_values(rank_) : region_.values();
  return {reinterpret_cast<const float*>(values + it.offset), it.elements};
}

void ServerReducer::begin_step(double total_weight, bool together) {
  MOTLEY_INVARIANT(total_weight > 0, "the weights of a step add up to {}", total_weight);
  step_weight_ = total_weight;
  ahead_ = together ? 0 : options_.staleness.value_or(0);
}

Announcement ServerReducer::announcement(const Bucket& bucket, double weight) const {
  return {bucket.step, is_async() ? weight / step_weight_ : weight, learning_rate_, bucket.ahead};
}

Status ServerReducer::start(std::uint64_t step, int index, double weight) {
  MOTLEY_INVARIANT(index == next_bucket_, "bucket {} was started where bucket {} comes next", index, next_bucket_);
  MOTLEY_INVARIANT(weight >= 0, "the weight {} of bucket {} is negative or not a number", weight, index);
  Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  MOTLEY_INVARIANT(!bucket.under_way, "bucket {} was started again before it was waited for", index);
  next_bucket_ = (next_bucket_ + 1) % static_cast<int>(buckets_.size());
  bucket.under_way = true;
  bucket.step = step;
  bucket.ahead = ahead_;
  ++bucket.round;
  if (is_async()) bucket.total_weight = weight;
  return own_ ? start_in_memory(index, weight) : start_over_channels(index, weight);
}

Result<collective::Outcome> ServerReducer::wait(int index, const Deadline& deadline) {
  Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
  if (own_) {
    const auto at = static_cast<std::size_t>(index);
    const auto wait_for_bucket = [&](std::size_t which) {
      const Bucket& awaited = buckets_[which];
      SharedCounter& done = is_async() ? region_.answered(which, rank_) : region_.bucket(which).updated;
      const auto segments = static_cast<std::uint32_t>(awaited.last - awaited.first);
      return wait_until_reached(done, awaited.round * segments, may_spin_,
                                [&] { return check_wait_in_memory(static_cast<int>(which), deadline); });
    };
    // Where ranks share processors with the server, one that wakes for every bucket takes time from the next ones,
    // which it needs as well: it sleeps until the last that it has started.
    Status waited;
    if (!may_spin_ && !is_async()) {
      const auto buckets = static_cast<int>(buckets_.size());
      waited = wait_for_bucket(static_cast<std::size_t>((next_bucket_ + buckets - 1) % buckets));
    }
    if (waited) waited = wait_for_bucket(at);
    if (!waited) {
      failed_ = true;
      return fail(waited.error());
    }
    if (!is_async()) {
      bucket.total_weight = 0;
      for (int rank = 0; rank < size_; ++rank) {
        bucket.total_weight += region_.announced(at, rank).by_round[bucket.round % 2].weight;
      }
    }
    if (!updates_weights()) {
      std::memcpy(buffer(index).data(), weights(index).data(), buffer(index).size());
    }
  } else {
    auto lock = driver_.lock();
    const auto operation = [&] { return fmt::format("step {}, bucket {}", bucket.step, index); };
    if (const Status waited = driver_.wait(lock, bucket.patience, deadline,
                                           {.done = [&] { return bucket.to_come == 0; },
                                            .ranks = [&] { return ask_for_missing(); },
                                            .operation = operation});
        !waited) {
      failed_ = true;
      return fail(waited.error());
    }
  }
  bucket.under_way = false;
  return outcome(index);
}

collective::Outcome ServerReducer::outcome(int index) const {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  collective::Outcome outcome{.total_weight = bucket.total_weight, .version = bucket.step};
  if (!is_async()) return outcome;
  const std::span<const std::uint32_t> rounds =
      own_ ? region_.rounds(static_cast<std::size_t>(index), rank_) : std::span(bucket.rounds);
  for (int rank = 0; rank < size_; ++rank) {
    const auto behind = static_cast<std::int32_t>(bucket.round - rounds[static_cast<std::size_t>(rank)]);
    outcome.staleness = std::max(outcome.staleness, behind);
    if (behind > 0) outcome.missing_ranks.push_back(rank);
  }
  return outcome;
}

Status ServerReducer::start_in_memory(int index, double weight) {
  const auto at = static_cast<std::size_t>(index);
  const Bucket& bucket = buckets_[at];
  ServerRegion::Announced& announced = region_.announced(at, rank_);
  announced.by_round[bucket.round % 2] = announcement(bucket, weight);
  announced.time = monotonic_seconds();
  // Either the core sees this before it falls asleep, or it is seen asleep here.
  announced.round.store(bucket.round, std::memory_order_seq_cst);
  if (is_async() || region_.bucket(at).arrived.add(bucket.round * static_cast<std::uint32_t>(size_))) {
    for (std::size_t core = 0; core < channels_.size(); ++core) {
      if (region_.core(static_cast<int>(core)).asleep.load(std::memory_order_seq_cst) != 0) {
        channels_[core].connection->post_owned(kServerWakeup, 0, {});
        MOTLEY_TRY(channels_[core].connection->progress());
      }
    }
  }
  return {};
}

Status ServerReducer::check_wait_in_memory(int index, const Deadline& deadline) {
  MOTLEY_TRY(check_servers());
  const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  const std::string operation = fmt::format("step {}, bucket {}", bucket.step, index);
  const std::uint32_t needed = bucket.round - std::min(bucket.ahead, bucket.round);
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const std::uint32_t round = region_.announced(static_cast<std::size_t>(index), rank).round.load();
    if (static_cast<std::int32_t>(round - needed) < 0) missing.push_back(rank);
  }
  if (missing.empty() && deadline.passed()) {
    return fail(ErrorCode::kTimeout, "{}: waited {:.3g} s for {} to update the weights", operation, deadline.allowed(),
                servers_[0].name);
  }
  return collective::check_wait(session_, deadline, operation, [&] { return missing; });
}

// What servers have to say on the control connections, which is nothing as long as all goes well.
Status ServerReducer::check_servers() {
  const std::lock_guard lock(control_mutex_);
  for (Server& server : servers_) {
    if (verdict_) break;
    const auto message = server.control->try_receive();
    if (!message) {
      verdict_ = Error{ErrorCode::kServerLost,
                       fmt::format("the {} was lost: it has ended, or a link is down", server.name), -1};
    } else if (*message && (*message)->header.type == kServerFailed) {
      const auto error = decode_server_failed((*message)->payload);
      verdict_ = (error ? *error : error.error()).within(server.name);
    }
  }
  if (verdict_) return fail(*verdict_);
  return {};
}

// The ranks that the servers wait for, if they answer.
std::vector<int> ServerReducer::ask_for_missing() {
  const std::lock_guard lock(control_mutex_);
  const Deadline deadline = Deadline::after(kAnswerSeconds);
  std::set<int> missing;
  for (Server& server : servers_) {
    if (!server.control->send(kServerMissing, 0, {}, deadline, "a question")) continue;
    const auto answer = receive_from(server, kServerMissing, deadline, "whom it waits for");
    for (std::size_t at = 0; answer && at + sizeof(int) <= answer->payload.size(); at += sizeof(int)) {
      int rank = -1;
      std::memcpy(&rank, answer->payload.data() + at, sizeof(int));
      if (rank >= 0 && rank < size_) missing.insert(rank);
    }
  }
  return {missing.begin(), missing.end()};
}

// Frames of a bucket on each channel: an announcement, then the segments of that channel's core. The answer has the
// same form; that of an asynchronous job ends with the rounds that are in the weights, instead of beginning with an
// announcement.
Status ServerReducer::start_over_channels(int index, double weight) {
  Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  const auto lock = driver_.lock();
  MOTLEY_TRY(driver_.status());
  const Announcement own = announcement(bucket, weight);
  const auto bytes = std::as_bytes(std::span(&own, 1));
  const std::uint64_t own_tag = channel_tag(bucket.round, static_cast<std::size_t>(index));
  const auto expect_answer = [&](Channel& channel) {
    const auto at = static_cast<std::size_t>(index);
    channel.connection->post_receive(kServerAnnounce, own_tag,
                                     is_async() ? std::as_writable_bytes(std::span(channel.rounds[at]))
                                                : std::as_writable_bytes(std::span(&channel.answers[at], 1)));
    channel.expected.push_back({index, nullptr});
    ++bucket.to_come;
  };
  if (bucket.weight > 0) bucket.left_weight = bucket.weight;
  bucket.weight = weight;
  bucket.to_come = 0;
  bucket.rounds.assign(is_async() ? static_cast<std::size_t>(size_) : 0, bucket.round);
  std::set<int> announced;
  for (std::size_t at = bucket.first; at < bucket.last; ++at) {
    const Segment& segment = map_.segments[at];
    Channel& channel = channels_[static_cast<std::size_t>(segment.bin)];
    if (announced.insert(segment.bin).second) {
      outbox_.push_back({segment.bin, kServerAnnounce, own_tag, {}, {bytes.begin(), bytes.end()}, nullptr});
      if (!is_async()) expect_answer(channel);
    }
    const std::uint64_t tag = channel_tag(bucket.round, at);
    std::byte* values = gradients_.data() + byte_at(segment, sizeof(float));
    std::byte* landing = updates_weights() ? weights_.data() + byte_at(segment, sizeof(float)) : values;
    const std::byte* outgoing = values;
    if (wire_.type != collective::WireType::kNative) {
      outgoing = outgoing_.data() + outgoing_at_[at];
      landing = incoming_.data() + incoming_at_[at];
    }
    outbox_.push_back({segment.bin, kServerPush, tag, {outgoing, wire_.frame_bytes(segment.count)}, {}, &segment});
    channel.connection->post_receive(kServerWeights, tag, {landing, answer_.frame_bytes(segment.count)});
    channel.expected.push_back({index, &segment});
    ++bucket.to_come;
  }
  if (is_async()) {
    for (const int bin : announced) expect_answer(channels_[static_cast<std::size_t>(bin)]);
  }
  post_in_order();
  driver_.started(bucket.patience);
  return {};
}

// All ranks send in the same order over all channels, and none of the channels runs far ahead: a segment can be updated
// when the last rank's has come, so that channels which each go at their own pace would keep servers waiting with much
// received and little complete. What is to be converted is converted here, while the frames before it are on their way.
void ServerReducer::post_in_order() {
  const std::size_t most = kFramesAhead * channels_.size();
  while (!outbox_.empty()) {
    std::uint64_t oldest = frames_posted_;
    for (Channel& channel : channels_) {
      while (channel.sending.size() > channel.connection->pending_sends()) channel.sending.pop_front();
      if (!channel.sending.empty()) oldest = std::min(oldest, channel.sending.front());
    }
    if (frames_posted_ - oldest >= most) return;
    Outgoing& next = outbox_.front();
    if (unanswered_bytes_ > kUnansweredBytes && monotonic_seconds() < answered_ + kAnswersStopSeconds) return;
    Channel& channel = channels_[static_cast<std::size_t>(next.channel)];
    if (next.segment != nullptr && wire_.type != collective::WireType::kNative) write_push(*next.segment);
    if (next.segment != nullptr) unanswered_bytes_ += wire_.frame_bytes(next.segment->count);
    if (next.owned.empty()) {
      channel.connection->post_send(next.type, next.tag, next.payload);
    } else {
      channel.connection->post_owned(next.type, next.tag, std::move(next.owned));
    }
    channel.sending.push_back(frames_posted_++);
    outbox_.pop_front();
  }
}

// A lossy frame's sender keeps what it leaves out. The server multiplies a gradient by its weight, so what was left out
// of one of weight v is v / w of what it is in one of weight w.
void ServerReducer::write_push(const Segment& segment) {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(segment.bucket)];
  if (bucket.weight == 0) return;  // whatever stands there is not used
  std::byte* frame = outgoing_.data() + outgoing_at_[static_cast<std::size_t>(&segment - map_.segments.data())];
  const std::size_t at = byte_at(segment, sizeof(float));
  const std::span<const float> gradient(gradients_.as<float>(at), segment.count);
  if (wire_.lossy()) {
    const std::span left_out(left_out_.as<float>(at), segment.count);
    const auto factor = static_cast<float>(bucket.left_weight / bucket.weight);
    for (std::size_t e = 0; e < segment.count; ++e) left_out[e] = gradient[e] + factor * left_out[e];
    wire_.compress(left_out, frame);
  } else if (wire_.type == collective::WireType::kBfloat16) {
    kernels::round_to_bfloat16(gradient, reinterpret_cast<std::uint16_t*>(frame));
  } else {
    kernels::round_to_float16(gradient, reinterpret_cast<std::uint16_t*>(frame));
  }
}

Status ServerReducer::take(const Expected& expected) {
  Bucket& bucket = buckets_[static_cast<std::size_t>(expected.bucket)];
  --bucket.to_come;
  if (expected.segment == nullptr || wire_.type == collective::WireType::kNative) return {};
  const Segment& segment = *expected.segment;
  const auto index = static_cast<std::size_t>(expected.segment - map_.segments.data());
  const std::byte* frame = incoming_.data() + incoming_at_[index];
  const std::span to((updates_weights() ? weights_ : gradients_).as<float>(byte_at(segment, sizeof(float))),
                     segment.count);
  if (wire_.lossy()) {  // how weights have changed; or a gradient, which takes the old one's place
    if (!updates_weights()) std::ranges::fill(to, 0.0F);
    if (!answer_.add(frame, 1, to)) {
      return fail(ErrorCode::kCorrupt, "segment {} came with an index beyond its {} values", index, segment.count);
    }
    return {};
  }
  const std::span halves(reinterpret_cast<const std::uint16_t*>(frame), segment.count);
  wire_.type == collective::WireType::kBfloat16 ? kernels::widen_bfloat16(halves, to.data())
                                                : kernels::widen_float16(halves, to.data());
  return {};
}

Result<bool> ServerReducer::advance() {
  bool moved = false;
  post_in_order();
  for (Channel& channel : channels_) {
    if (channel.expected.empty() && !channel.connection->wants_to_write()) continue;
    const auto channel_moved = channel.connection->progress();
    if (!channel_moved) {
      // The server closes channels after it has said why on the control connection.
      for (const Deadline last = Deadline::after(kLastWordSeconds); !last.passed();) {
        MOTLEY_TRY(check_servers());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return fail(Error{ErrorCode::kServerLost, channel_moved.error().message, -1});
    }
    moved = moved || *channel_moved;
    while (channel.expected.size() > channel.connection->pending_receives()) {
      const Expected expected = channel.expected.front();
      channel.expected.pop_front();
      if (expected.segment != nullptr) unanswered_bytes_ -= wire_.frame_bytes(expected.segment->count);
      answered_ = monotonic_seconds();
      if (expected.segment == nullptr) {
        const auto at = static_cast<std::size_t>(expected.bucket);
        Bucket& bucket = buckets_[at];
        if (!is_async()) bucket.total_weight = channel.answers[at].weight;
        for (std::size_t rank = 0; rank < bucket.rounds.size(); ++rank) {
          bucket.rounds[rank] = std::min(bucket.rounds[rank], channel.rounds[at][rank]);
        }
      }
      MOTLEY_TRY(take(expected));
    }
  }
  if (!moved && monotonic_seconds() > controls_checked_ + kControlCheckSeconds) {
    controls_checked_ = monotonic_seconds();
    MOTLEY_TRY(check_servers());
  }
  return moved;
}

bool ServerReducer::idle() const {
  return outbox_.empty() && std::ranges::all_of(channels_, [](const Channel& channel) {
           return channel.expected.empty() && !channel.connection->wants_to_write();
         });
}

void ServerReducer::list_descriptors(std::vector<pollfd>& descriptors) const {
  for (const Channel& channel : channels_) {
    const int events = (channel.expected.empty() ? 0 : POLLIN) | (channel.connection->wants_to_write() ? POLLOUT : 0);
    if (events != 0) descriptors.push_back({channel.connection->descriptor(), static_cast<short>(events), 0});
  }
}

Status ServerReducer::load(const ServerState& state, const Deadline& deadline) {
  loaded_updates_ = state.updates;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    MOTLEY_INVARIANT(
        state.weights.size() == buckets_.size() && state.weights[bucket].size() == buckets_[bucket].elements,
        "the state has other buckets than the layout");
    if (!own_ || is_async()) {
      std::memcpy((own_ ? region_.rank_values(rank_) : weights_.data()) + buckets_[bucket].offset,
                  state.weights[bucket].data(), buckets_[bucket].elements * sizeof(float));
    }
  }
  for (Server& server : servers_) {
    const auto send_array = [&](std::uint8_t array, const std::vector<std::vector<float>>& values) -> Status {
      for (std::size_t at = 0; at < map_.segments.size(); ++at) {
        const Segment& segment = map_.segments[at];
        if (segment.bin < server.first_bin || segment.bin >= server.first_bin + server.cores) continue;
        const std::span<const float> all =
            std::span(values[static_cast<std::size_t>(segment.bucket)]).subspan(segment.begin, segment.count);
        for (std::uint32_t piece = 0; piece * kPieceElements < segment.count; ++piece) {
          const std::size_t begin = piece * kPieceElements;
          const auto part = all.subspan(begin, std::min(kPieceElements, segment.count - begin));
          MOTLEY_TRY(server.control->send(kServerLoad, StatePart{array, static_cast<std::uint32_t>(at), piece}.tag(),
                                          std::as_bytes(part), deadline, "the weights"));
        }
      }
      return {};
    };
    if (rank_ == 0) {
      MOTLEY_TRY(send_array(0, state.weights));
      for (std::size_t array = 0; array < state.optimizer.size(); ++array) {
        MOTLEY_TRY(send_array(static_cast<std::uint8_t>(array + 1), state.optimizer[array]));
      }
    }
    MOTLEY_TRY(server.control->send(kServerLoaded, state.updates, {}, deadline, "the end of the weights"));
  }
  for (Server& server : servers_) {
    MOTLEY_TRY(receive_from(server, kServerLoaded, deadline, "all ranks to have loaded"));
  }
  return {};
}

Result<ServerState> ServerReducer::save(const Deadline& deadline) {
  const std::lock_guard lock(control_mutex_);
  ServerState state;
  state.updates = loaded_updates_ + buckets_.front().round;
  const int arrays = kernels::state_arrays(options_.update.rule);
  const auto fetch = [&](std::uint8_t array, std::vector<std::vector<float>>& values) -> Status {
    for (const std::uint64_t elements : bucket_elements_) values.emplace_back(elements);
    for (Server& server : servers_) {
      for (std::size_t at = 0; at < map_.segments.size(); ++at) {
        const Segment& segment = map_.segments[at];
        if (segment.bin < server.first_bin || segment.bin >= server.first_bin + server.cores) continue;
        for (std::uint32_t piece = 0; piece * kPieceElements < segment.count; ++piece) {
          const StatePart part{array, static_cast<std::uint32_t>(at), piece};
          MOTLEY_TRY(server.control->send(kServerSave, part.tag(), {}, deadline, "the state"));
          MOTLEY_ASSIGN(const auto message, receive_from(server, kServerSave, deadline, "the state"));
          const std::size_t begin = piece * kPieceElements;
          const auto into = std::span(values[static_cast<std::size_t>(segment.bucket)])
                                .subspan(segment.begin + begin, std::min(kPieceElements, segment.count - begin));
          if (message.header.tag != part.tag() || message.payload.size() != into.size_bytes()) {
            return fail(ErrorCode::kCorrupt, "{}: another part of the state than was asked for", server.name);
          }
          std::memcpy(into.data(), message.payload.data(), into.size_bytes());
        }
      }
    }
    return {};
  };
  MOTLEY_TRY(fetch(0, state.weights));
  state.optimizer.resize(static_cast<std::size_t>(arrays));
  for (int array = 0; array < arrays; ++array) {
    MOTLEY_TRY(fetch(static_cast<std::uint8_t>(array + 1), state.optimizer[static_cast<std::size_t>(array)]));
  }
  return state;
}

std::uint64_t ServerReducer::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const Channel& channel : channels_) bytes += channel.connection->bytes_sent();
  return bytes;
}

void ServerReducer::abort(const Error& error) {
  failed_ = true;
  {
    const auto lock = driver_.lock();
    driver_.break_with(error);
  }
  session_.abort(error);
}

}  // namespace motley::ps
