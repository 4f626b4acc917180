// The rack's gradient of a segment is the weighted mean of its workers', and its weight is theirs together, so that the
// servers between the racks find the mean of all.
//
// One buffer holds a segment's rack gradient and then its new weights. It is written again only when all workers have
// pushed the segment's next round, which they do when they have these weights; and weights come from the owner only
// after it has got the gradient. So both are sent straight from where they stand.
#include "motley/ps/rack_job.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "motley/collective/mean.h"

namespace motley::ps {

using collective::Announcement;
using collective::Segment;
using collective::ServerRegion;

namespace {

constexpr std::size_t kMostQueued = 64;  // frames of the state on one uplink

}  // namespace

RackJob::RackJob(collective::ServerJoin join, net::Claim claim, const net::Secret& token, bool payload_checksum,
                 std::function<void()> wake)
    : join_(std::move(join)), rack_(claim.identity.rank), ranks_(join_.racks.ranks_of(rack_)) {
  thread_ = std::thread([this, claim = std::move(claim), token, payload_checksum, wake = std::move(wake)] {
    meeting_ = meet_racks(join_, claim, token, payload_checksum, cancelled_);
    over_ = true;
    wake();
  });
}

RackJob::~RackJob() {
  cancelled_ = true;
  thread_.join();
  for (const auto& control : uplinks_.controls) {
    if (!control) continue;
    control->post_owned(collective::kServerLeave, 0, {});
    static_cast<void>(control->progress());
  }
}

std::size_t RackJob::bytes_needed(const collective::ServerJoin& join, int rack) {
  const std::size_t elements = ServerRegion::value_offsets(join.bucket_elements).back() / sizeof(float);
  return (join.racks.ranks_of(rack).size() + 1) * elements * kernels::bytes_of(join.wire.format());
}

Result<bool> RackJob::met() {
  if (ready_ || !over_) return false;
  if (!*meeting_) return fail(meeting_->error());
  uplinks_ = std::move(**meeting_);
  const std::vector<std::size_t> elements(join_.bucket_elements.begin(), join_.bucket_elements.end());
  map_ = collective::make_chunk_map(elements, sizeof(float), join_.chunk_bytes, bins());
  offsets_ = ServerRegion::value_offsets(join_.bucket_elements);
  const std::size_t bytes = offsets_.back() / sizeof(float) * kernels::bytes_of(join_.wire.format());
  for (std::size_t worker = 0; worker < ranks_.size(); ++worker) {
    MOTLEY_ASSIGN(Pages pages, Pages::allocate(bytes, "gradients"));
    pushes_.push_back(std::move(pages));
  }
  MOTLEY_ASSIGN(values_, Pages::allocate(bytes, "weights on the wire"));
  received_ = std::vector<std::atomic<std::uint64_t>>(static_cast<std::size_t>(cores()) * ranks_.size());
  saving_.resize(uplinks_.controls.size());
  ready_ = true;
  return true;
}

std::size_t RackJob::element_of(const Segment& segment) const {
  return offsets_[static_cast<std::size_t>(segment.bucket)] / sizeof(float) + segment.begin;
}

std::vector<collective::ReceivedFrom> RackJob::received() const {
  std::vector<collective::ReceivedFrom> counts;
  for (std::size_t worker = 0; worker < ranks_.size(); ++worker) {
    counts.push_back({.rank = static_cast<std::uint32_t>(ranks_[worker])});
    for (std::size_t at = worker; at < received_.size(); at += ranks_.size()) counts.back().frames += received_[at];
  }
  return counts;
}

bool RackJob::congested() const {
  return std::ranges::any_of(uplinks_.controls,
                             [](const auto& control) { return control->pending_sends() > kMostQueued; });
}

Result<bool> RackJob::take(int rank, const net::Message& message) {
  const auto say = [&](std::size_t rack, std::uint16_t type, std::uint64_t tag, std::vector<std::byte> payload) {
    uplinks_.controls[rack]->post_owned(type, tag, std::move(payload));
    static_cast<void>(uplinks_.controls[rack]->progress());  // an error is heard of by hear()
  };
  const auto say_all = [&](std::uint16_t type, std::uint64_t tag) {
    for (std::size_t rack = 0; rack < uplinks_.controls.size(); ++rack) say(rack, type, tag, {});
  };
  const std::uint64_t tag = message.header.tag;
  const std::size_t segment = collective::StatePart::of(tag).segment;
  const bool known_part = segment < map_.segments.size();
  const std::size_t owner = known_part ? static_cast<std::size_t>(map_.segments[segment].bin / cores()) : 0;
  const bool has_loaded = std::ranges::find(loaded_, rank) != loaded_.end();
  switch (message.header.type) {
    case collective::kServerLoad:
      if (rank != 0 || !known_part || has_loaded) return false;
      say(owner, collective::kServerLoad, tag, message.payload);
      return true;
    case collective::kServerLoaded:
      if (has_loaded) return false;
      loaded_.push_back(rank);
      if (rank == 0 || rack_ != 0) updates_ = tag;
      if (loaded_.size() == ranks_.size()) say_all(collective::kServerLoaded, updates_);
      return true;
    case collective::kServerSave:
      if (!known_part) return false;
      saving_[owner].push_back(rank);
      say(owner, collective::kServerSave, tag, {});
      return true;
    case collective::kServerMissing:
      if (asking_.empty()) {
        counts_.clear();
        servers_counted_ = 0;
        say_all(collective::kServerReceived, 0);
      }
      asking_.push_back(rank);
      return true;
    default:
      return false;
  }
}

Result<std::vector<RackJob::Answer>> RackJob::hear() {
  std::vector<Answer> answers;
  for (int rack = 0; rack < static_cast<int>(uplinks_.controls.size()); ++rack) {
    net::TcpConnection& control = *uplinks_.controls[static_cast<std::size_t>(rack)];
    for (;;) {
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

Result<bool> RackJob::answer(int rack, net::Message& message, std::vector<Answer>& answers) {
  const int servers = join_.racks.racks();
  switch (message.header.type) {
    case collective::kServerFailed: {
      MOTLEY_ASSIGN(const Error error, collective::decode_server_failed(message.payload));
      return fail(error.within(server_name(join_.racks, rack)));
    }
    case collective::kServerLoaded:
      if (++servers_loaded_ == servers) answers.push_back({.rank = -1, .type = collective::kServerLoaded});
      return true;
    case collective::kServerSave: {
      auto& waiting = saving_[static_cast<std::size_t>(rack)];
      if (waiting.empty()) return false;
      answers.push_back({waiting.front(), collective::kServerSave, message.header.tag, std::move(message.payload)});
      waiting.pop_front();
      return true;
    }
    case collective::kServerReceived: {
      if (asking_.empty() || message.payload.size() % sizeof(collective::ReceivedFrom) != 0) return false;
      const std::size_t before = counts_.size();
      counts_.resize(before + message.payload.size() / sizeof(collective::ReceivedFrom));
      std::memcpy(counts_.data() + before, message.payload.data(), message.payload.size());
      if (++servers_counted_ < servers) return true;
      std::uint64_t most = 0;
      for (const auto& count : counts_) most = std::max(most, count.frames);
      std::vector<int> missing;
      for (const auto& count : counts_) {
        if (count.frames < most) missing.push_back(static_cast<int>(count.rank));
      }
      const auto bytes = std::as_bytes(std::span(missing));
      for (const int rank : asking_) {
        answers.push_back({rank, collective::kServerMissing, 0, {bytes.begin(), bytes.end()}});
      }
      asking_.clear();
      return true;
    }
    default:
      return false;
  }
}

RackShare::RackShare(std::shared_ptr<RackJob> job, int core, Uplinks::Lanes lanes, std::function<void(Error)> lost)
    : job_(std::move(job)), core_(core), lanes_(std::move(lanes)), lost_(std::move(lost)) {
  std::ranges::move(job_->uplinks_.lanes[static_cast<std::size_t>(core)], std::back_inserter(lanes_));
  std::set<std::size_t> racks;  // of the bucket
  std::size_t announcement = 0;
  const std::vector<Segment>& segments = job_->map_.segments;
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const Segment& segment = segments[index];
    if (segment.bin % job_->cores() != core_) continue;
    const auto owner = static_cast<std::size_t>(segment.bin / job_->cores());
    if (items_.empty() || items_.back().bucket != segment.bucket) {
      racks.clear();
      announcement = items_.size();
      items_.push_back({.bucket = segment.bucket});
    }
    if (racks.insert(owner).second) items_[announcement].racks.push_back(owner);
    items_.push_back({segment.bucket, &segment, index, {owner}});
  }
  posted_.assign(lanes_.size(), 0);
  taken_.assign(lanes_.size(), 0);
  ended_.assign(lanes_.size(), false);
  announced_.assign(lanes_.size(), std::vector<Announcement>(job_->join_.bucket_elements.size()));
  if (job_->join_.wire.type != collective::WireType::kNative) {
    scratch_.resize(std::max<std::size_t>(job_->join_.chunk_bytes / sizeof(float), 16));
  }
  for (const Item& item : items_) {
    post_up(item, up_.round);
    post_down(item, down_.round);
  }
}

// A segment's place in values_.
std::span<std::byte> RackShare::values(const Item& item) const {
  const std::size_t width = kernels::bytes_of(job_->join_.wire.format());
  return {job_->values_.data() + job_->element_of(*item.segment) * width, item.segment->count * width};
}

// Expects the item's frames of this round from all workers.
void RackShare::post_up(const Item& item, std::uint32_t round) {
  const std::size_t width = kernels::bytes_of(job_->join_.wire.format());
  for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) {
    const auto bucket = static_cast<std::size_t>(item.bucket);
    if (item.segment == nullptr) {
      lanes_[worker]->post_receive(collective::kServerAnnounce, collective::lane_tag(round, bucket),
                                   std::as_writable_bytes(std::span(&announced_[worker][bucket], 1)));
    } else {
      std::byte* slot = job_->pushes_[worker].data() + job_->element_of(*item.segment) * width;
      lanes_[worker]->post_receive(collective::kServerPush, collective::lane_tag(round, item.index),
                                   {slot, item.segment->count * width});
    }
    ++posted_[worker];
  }
}

// And what its owners answer.
void RackShare::post_down(const Item& item, std::uint32_t round) {
  for (const std::size_t rack : item.racks) {
    const std::size_t lane = uplink(rack);
    const auto bucket = static_cast<std::size_t>(item.bucket);
    if (item.segment == nullptr) {
      lanes_[lane]->post_receive(collective::kServerAnnounce, collective::lane_tag(round, bucket),
                                 std::as_writable_bytes(std::span(&announced_[lane][bucket], 1)));
    } else {
      lanes_[lane]->post_receive(collective::kServerWeights, collective::lane_tag(round, item.index), values(item));
    }
    ++posted_[lane];
  }
}

bool RackShare::may_go_up() const {
  if (items_.empty() || failed_) return false;
  const std::size_t workers = job_->ranks_.size();
  bool all = true;
  for (std::size_t worker = 0; worker < workers; ++worker) {
    const std::uint64_t count = received(worker);
    job_->received_[static_cast<std::size_t>(core_) * workers + worker].store(count, std::memory_order_relaxed);
    all = all && count > taken_[worker];
  }
  return all;
}

bool RackShare::may_go_down() const {
  return !items_.empty() && !failed_ && std::ranges::all_of(items_[down_.next].racks, [&](std::size_t rack) {
    return received(uplink(rack)) > taken_[uplink(rack)];
  });
}

void RackShare::step(Stage& stage) const {
  if (++stage.next < items_.size()) return;
  stage.next = 0;
  ++stage.round;
}

bool RackShare::advance() {
  const bool up = may_go_up();
  if (up) {
    const Item& item = items_[up_.next];
    if (item.segment != nullptr) {
      sum(item);
    } else if (!begin_bucket(item)) {
      return false;
    }
    for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) ++taken_[worker];
    post_up(item, up_.round + 1);
    step(up_);
  }
  const bool down = may_go_down();
  if (down) {
    const Item& item = items_[down_.next];
    fan_out(item);
    for (const std::size_t rack : item.racks) ++taken_[uplink(rack)];
    post_down(item, down_.round + 1);
    step(down_);
  }
  if (up || down) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) progress(static_cast<int>(lane));
  }
  return up || down;
}

// All workers have announced the bucket: what coefficients their gradients get, and what the rack announces.
bool RackShare::begin_bucket(const Item& item) {
  const auto bucket = static_cast<std::size_t>(item.bucket);
  const Announcement& first = announced_[0][bucket];
  std::vector<double> weights;
  for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) {
    const Announcement& said = announced_[worker][bucket];
    if (said.step != first.step || said.learning_rate != first.learning_rate || !(said.weight >= 0)) {
      failed_ = true;
      lost_(Error{ErrorCode::kInvalidInput,
                  fmt::format("bucket {}: rank {} is at step {} with learning rate {} and weight {}, rank {} at step "
                              "{} with learning rate {}",
                              bucket, job_->ranks_[worker], said.step, said.learning_rate, said.weight, job_->ranks_[0],
                              first.step, first.learning_rate),
                  job_->ranks_[worker]});
      return false;
    }
    weights.push_back(said.weight);
  }
  const collective::Mean mean = collective::weighted_mean(weights);
  workers_.assign(mean.ranks.begin(), mean.ranks.end());
  coefficients_.assign(mean.coefficients.begin(), mean.coefficients.end());
  scale_ = static_cast<float>(mean.scale);
  const Announcement rack = {first.step, mean.total_weight, first.learning_rate};
  const auto bytes = std::as_bytes(std::span(&rack, 1));
  for (const std::size_t owner : item.racks) {
    lanes_[uplink(owner)]->post_owned(collective::kServerAnnounce, collective::lane_tag(up_.round, bucket),
                                      {bytes.begin(), bytes.end()});
  }
  return true;
}

void RackShare::sum(const Item& item) {
  const Segment& segment = *item.segment;
  const collective::ServerJoin& join = job_->join_;
  const kernels::WireFormat format = join.wire.format();
  const std::size_t width = kernels::bytes_of(format);
  const std::size_t element = job_->element_of(segment);
  const std::span<std::byte> mean = values(item);
  const bool narrow = format != kernels::WireFormat::kFloat32;
  const std::size_t chunk = std::max<std::size_t>(join.chunk_bytes / sizeof(float), 16);
  std::vector<kernels::WireInput> inputs(workers_.size());
  for (std::size_t begin = 0; begin < segment.count; begin += chunk) {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      inputs[i] = {job_->pushes_[workers_[i]].data() + (element + begin) * width, format};
    }
    std::byte* into = mean.data() + begin * width;
    kernels::fused_update(inputs, coefficients_, scale_, {.rule = kernels::UpdateRule::kSum},
                          narrow ? scratch_.data() : reinterpret_cast<float*>(into), nullptr, narrow ? into : nullptr,
                          format, std::min(chunk, segment.count - begin));
  }
  lanes_[uplink(item.racks[0])]->post_send(collective::kServerPush, collective::lane_tag(up_.round, item.index), mean);
}

// What has come back goes to all workers of the rack.
void RackShare::fan_out(const Item& item) {
  const auto bucket = static_cast<std::size_t>(item.bucket);
  for (std::size_t worker = 0; worker < job_->ranks_.size(); ++worker) {
    if (item.segment == nullptr) {
      const auto bytes = std::as_bytes(std::span(&announced_[uplink(item.racks[0])][bucket], 1));
      lanes_[worker]->post_owned(collective::kServerAnnounce, collective::lane_tag(down_.round, bucket),
                                 {bytes.begin(), bytes.end()});
    } else {
      lanes_[worker]->post_send(collective::kServerWeights, collective::lane_tag(down_.round, item.index),
                                values(item));
    }
  }
}

// As in a DenseShare, a lane that has ended is no failure by itself.
void RackShare::progress(int lane) {
  const auto at = static_cast<std::size_t>(lane);
  if (ended_[at]) return;
  const auto moved = lanes_[at]->progress();
  if (moved) return;
  ended_[at] = true;
  if (at < job_->ranks_.size()) {
    const int rank = job_->ranks_[at];
    lost_(Error{moved.error().code, fmt::format("rank {}: {}", rank, moved.error().message), rank});
  } else {
    const int rack = lane - static_cast<int>(job_->ranks_.size());
    lost_(Error{ErrorCode::kServerLost,
                fmt::format("the {} was lost: {}", server_name(job_->join_.racks, rack), moved.error().message), -1});
  }
}

}  // namespace motley::ps
