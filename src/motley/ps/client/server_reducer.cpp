#include "motley/ps/client/server_reducer.h"

#include <algorithm>
#include <cstring>

#include "motley/base/guard.h"

namespace motley::ps {
namespace {

// visit(server, part, its values) for each piece of the state's arrays, the weights and then the optimizer's, and each
// server that owns it, or also those that keep it for another one.
template <class State, class Visit>
Status each_piece(ControlConnections& controls, const DividedModel& model, State& state, bool with_keepers,
                  Visit visit) {
  for (std::size_t number = 0; number <= state.optimizer.size(); ++number) {
    auto& array = number == 0 ? state.weights : state.optimizer[number - 1];
    for (std::size_t at = 0; at < model.segments().size(); ++at) {
      const Segment& segment = model.segments()[at];
      const auto all = std::span(array[segment.bucket]).subspan(segment.begin, segment.count);
      for (ControlConnections::Server& server : controls.servers()) {
        if (!(with_keepers ? server.holds(segment) : server.owns(segment))) continue;
        for (std::uint32_t piece = 0; piece * kPieceElements < segment.count; ++piece) {
          const std::size_t begin = piece * kPieceElements;
          const StatePart part = {static_cast<std::uint8_t>(number), static_cast<std::uint32_t>(at), piece};
          MOTLEY_TRY(visit(server, part, all.subspan(begin, std::min(kPieceElements, segment.count - begin))));
        }
      }
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ServerReducer>> ServerReducer::create(net::Session& session, const ServerOptions& options) {
  if (options.servers.empty()) {
    return fail(ErrorCode::kInvalidInput, "the exchange 'parameter-server' needs the address of a server");
  }
  return std::unique_ptr<ServerReducer>(new ServerReducer(session, options));
}

Status ServerReducer::prepare(const collective::Layout& layout, const Deadline& deadline) {
  MOTLEY_INVARIANT(!path_, "prepare was called twice");
  MOTLEY_ASSIGN(joined_, join_servers(session_, options_, layout, controls_, deadline));
  MOTLEY_TRY(find_replaced());
  MOTLEY_ASSIGN(auto channels, controls_.open_channels(deadline));
  buckets_.resize(layout.bucket_elements.size());
  if (in_memory()) {
    path_ = make_memory_path(session_, options_, controls_, joined_, std::move(channels));
  } else {
    MOTLEY_ASSIGN(path_, make_channel_path(session_, options_, controls_, joined_, std::move(channels)));
  }
  has_state_ = std::ranges::all_of(controls_.servers(), [](const auto& server) { return server.has_state; });
  return {};
}

// A server that was lost may have another process in its place before any rank has seen that. Where the next one has
// kept its state, it is lost all the same.
Status ServerReducer::find_replaced() {
  auto& servers = controls_.servers();
  const auto is_empty = [](const auto& server) { return !server.has_state; };
  const bool is_kept = servers.front().kept.count > 0 && std::ranges::count_if(servers, is_empty) == 1;
  if (!is_kept || !MOTLEY_KEEPS("server-replaced-is-lost")) return {};
  ControlConnections::Server& lost = *std::ranges::find_if(servers, is_empty);
  lost.is_lost = true;
  return fail(ErrorCode::kServerLost, "the {} was lost: another process is in its place", lost.name);
}

std::span<std::byte> ServerReducer::buffer(int bucket) {
  const DividedModel::Bucket& it = joined_.model.buckets()[bucket];
  return {path_->gradients() + it.offset, it.elements * sizeof(float)};
}

std::span<const float> ServerReducer::weights(int bucket) {
  const DividedModel::Bucket& it = joined_.model.buckets()[bucket];
  const std::byte* const all = is_reversible() ? joined_.region.values_after(update_) : path_->weights();
  return {reinterpret_cast<const float*>(all + it.offset), it.elements};
}

std::span<std::byte> ServerReducer::weight_memory() const {
  if (!is_reversible()) return {path_->weights(), joined_.model.bytes()};
  std::byte* const begin = joined_.region.values_after(0);
  return {begin, joined_.region.values_after(1) + joined_.model.bytes()};
}

double ServerReducer::squares(int bucket) const {
  const DividedModel::Bucket& it = joined_.model.buckets()[bucket];
  double sum = 0;
  for (std::size_t segment = it.first; segment < it.last; ++segment) sum += joined_.region.squares(segment);
  return sum;
}

void ServerReducer::begin_step(double total_weight, bool together) {
  MOTLEY_INVARIANT(total_weight > 0, "the weights of a step add up to {}", total_weight);
  step_weight_ = total_weight;
  ahead_ = together ? 0 : options_.staleness.value_or(0);
}

Status ServerReducer::start(std::uint64_t step, int index, double weight) {
  MOTLEY_INVARIANT(index == next_bucket_, "bucket {} was started where bucket {} comes next", index, next_bucket_);
  MOTLEY_INVARIANT(weight >= 0, "the weight {} of bucket {} is negative or not a number", weight, index);
  Bucket& bucket = buckets_[index];
  MOTLEY_INVARIANT(!bucket.under_way, "bucket {} was started again before it was waited for", index);
  if (index == 0 && is_reversible()) {
    if (!redo_factor_) ++update_;
    factor_ = redo_factor_.value_or(1);
    redo_factor_.reset();
  }
  next_bucket_ = (next_bucket_ + 1) % static_cast<int>(buckets_.size());
  bucket.under_way = true;
  bucket.weight = weight;
  ++bucket.round.number;
  bucket.round.announcement = {step,   is_async() ? weight / step_weight_ : weight, learning_rate_, ahead_, factor_,
                               update_};
  return path_->start(index, bucket.round);
}

Result<collective::Outcome> ServerReducer::wait(int index, const Deadline& deadline) {
  Bucket& bucket = buckets_[index];
  MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
  const auto answer = path_->wait(index, deadline);
  if (!answer) {
    const bool knows_nobody_late = answer.error().code == ErrorCode::kTimeout && answer.error().rank < 0;
    const Status servers = knows_nobody_late ? controls_.ask_whether_there() : Status();
    controls_.set_failed();
    if (!servers) return fail(servers.error());
    if (!knows_nobody_late || in_memory()) return fail(answer.error());
    std::vector<std::string> names;
    for (const auto& server : controls_.servers()) names.push_back(server.name);
    return fail(ErrorCode::kTimeout,
                "step {}, bucket {}: timeout after {:.3g} s of waiting for {} to update the weights; {}",
                bucket.round.announcement.step, index, deadline.allowed(), fmt::join(names, " and "),
                controls_.silent_servers().empty() ? "no rank is late"
                                                   : fmt::format("whether a rank is late was not said by the {}",
                                                                 fmt::join(controls_.silent_servers(), " and the ")));
  }
  bucket.under_way = false;
  collective::Outcome outcome{.total_weight = is_async() ? bucket.weight : answer->total_weight,
                              .version = bucket.round.announcement.step};
  for (std::size_t rank = 0; rank < answer->rounds.size(); ++rank) {
    const auto behind = static_cast<std::int32_t>(bucket.round.number - answer->rounds[rank]);
    outcome.staleness = std::max(outcome.staleness, behind);
    if (behind > 0) outcome.missing_ranks.push_back(static_cast<int>(rank));
  }
  return outcome;
}

Status ServerReducer::load(const ServerState& state, const Deadline& deadline) {
  loaded_updates_ = state.updates;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const DividedModel::Bucket& it = joined_.model.buckets()[bucket];
    MOTLEY_INVARIANT(state.weights.size() == buckets_.size() && state.weights[bucket].size() == it.elements,
                     "the state has other buckets than the layout");
    if (std::byte* own = path_->own_weights()) {
      std::memcpy(own + it.offset, state.weights[bucket].data(), it.elements * sizeof(float));
    }
  }
  // In pieces over the control connections, from rank 0.
  const auto lock = controls_.lock();
  if (session_.membership().rank == 0) {
    MOTLEY_TRY(each_piece(
        controls_, joined_.model, state, true, [&](auto& server, const StatePart& part, std::span<const float> values) {
          if (server.has_state) return Status();
          return controls_.send(server, kServerLoad, part.tag(), std::as_bytes(values), deadline, "the weights");
        }));
  }
  for (auto& server : controls_.servers()) {
    if (server.has_state) continue;
    MOTLEY_TRY(controls_.send(server, kServerLoaded, state.updates, {}, deadline, "the end of the weights"));
  }
  for (auto& server : controls_.servers()) {
    if (server.has_state) continue;
    MOTLEY_TRY(controls_.receive_from(server, kServerLoaded, deadline, "all ranks to have loaded"));
  }
  has_state_ = true;
  return {};
}

bool ServerReducer::has_replicas() const {
  return std::ranges::any_of(controls_.servers(), [](const auto& server) { return server.kept.count > 0; });
}

std::optional<int> ServerReducer::lost_server() {
  if (controls_.unreachable()) return controls_.unreachable();
  if (!has_replicas()) return std::nullopt;
  const auto& servers = controls_.servers();
  const auto is_lost = [](const auto& server) { return server.is_lost; };
  // Whoever was broken off by a rank that came or went has not seen what has become of the servers.
  if (std::ranges::none_of(servers, is_lost)) static_cast<void>(controls_.ask_whether_there());
  const auto lost = std::ranges::find_if(servers, is_lost);
  return lost == servers.end() ? std::nullopt : std::optional(static_cast<int>(lost->number));
}

std::vector<int> ServerReducer::server_cores() const {
  std::vector<int> cores;
  for (const auto& server : controls_.servers()) cores.push_back(server.cores);
  return cores;
}

std::vector<std::string> ServerReducer::list_servers_without_state() const {
  return updates_weights() ? joined_.without_state : std::vector<std::string>();
}

Result<ServerState> ServerReducer::save(const Deadline& deadline) {
  if (!MOTLEY_GUARD("server-state-whole", has_state_)) {
    return fail(ErrorCode::kUnavailable, "the servers have not got the state yet");
  }
  if (options_.elastic &&
      std::ranges::any_of(buckets_, [&](const Bucket& bucket) { return bucket.round.number != committed_; })) {
    return fail(ErrorCode::kUnavailable, "a step is under way, which the servers may have done in part");
  }
  const auto lock = controls_.lock();
  ServerState state{.updates = loaded_updates_ + (is_reversible() ? update_ : buckets_.front().round.number)};
  for (const std::uint64_t elements : joined_.model.bucket_elements()) state.weights.emplace_back(elements);
  state.optimizer.assign(kernels::state_arrays(options_.update.rule), state.weights);
  MOTLEY_TRY(each_piece(
      controls_, joined_.model, state, false,
      [&](auto& server, const StatePart& part, std::span<float> values) -> Status {
        MOTLEY_TRY(controls_.send(server, kServerSave, part.tag(), {}, deadline, "the state"));
        MOTLEY_ASSIGN(const auto message, controls_.receive_from(server, kServerSave, deadline, "the state"));
        if (message.header.tag != part.tag() || message.payload.size() != values.size_bytes()) {
          return fail(ErrorCode::kCorrupt, "{}: another part of the state than was asked for", server.name);
        }
        std::memcpy(values.data(), message.payload.data(), values.size_bytes());
        return {};
      }));
  return state;
}

void ServerReducer::abort(const Error& error) {
  controls_.set_failed();
  if (path_) path_->abort(error);
  session_.abort(error);
}

}  // namespace motley::ps
