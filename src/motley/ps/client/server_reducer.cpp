#include "motley/ps/client/server_reducer.h"

#include <cstring>

#include "motley/ps/client/channel_path.h"
#include "motley/ps/client/memory_path.h"
#include "motley/ps/client/state_transfer.h"

namespace motley::ps {

Result<std::unique_ptr<ServerReducer>> ServerReducer::create(net::Session& session, const ServerOptions& options) {
  if (options.servers.empty()) {
    return fail(ErrorCode::kInvalidInput, "the exchange 'parameter-server' needs the address of a server");
  }
  return std::unique_ptr<ServerReducer>(new ServerReducer(session, options));
}

ServerReducer::ServerReducer(net::Session& session, const ServerOptions& options)
    : session_(session), options_(options), staleness_(options.staleness), controls_(session, options.job_suffix) {}

ServerReducer::~ServerReducer() {
  controls_.leave();
}

Status ServerReducer::prepare(const collective::Layout& layout, const Deadline& deadline) {
  MOTLEY_INVARIANT(!path_, "prepare was called twice");
  MOTLEY_ASSIGN(joined_, join_servers(session_, options_, layout, controls_, deadline));
  MOTLEY_ASSIGN(auto channels, controls_.open_channels(deadline));
  buckets_.resize(layout.bucket_elements.size());
  in_memory_ = joined_.memory.gradients != nullptr;
  if (in_memory_) {
    path_ = std::make_unique<MemoryPath>(session_, options_, controls_, joined_, std::move(channels));
  } else {
    MOTLEY_ASSIGN(path_, ChannelPath::create(session_, options_, controls_, joined_, std::move(channels)));
  }
  return {};
}

std::span<std::byte> ServerReducer::buffer(int bucket) {
  const DividedModel::Bucket& it = joined_.model.bucket(bucket);
  return {path_->gradients() + it.offset, it.elements * sizeof(float)};
}

std::span<const float> ServerReducer::weights(int bucket) {
  const DividedModel::Bucket& it = joined_.model.bucket(bucket);
  return {reinterpret_cast<const float*>(path_->weights() + it.offset), it.elements};
}

Status ServerReducer::start(std::uint64_t step, int index, double weight) {
  MOTLEY_INVARIANT(index == next_bucket_, "bucket {} was started where bucket {} comes next", index, next_bucket_);
  MOTLEY_INVARIANT(weight >= 0, "the weight {} of bucket {} is negative or not a number", weight, index);
  Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  MOTLEY_INVARIANT(!bucket.under_way, "bucket {} was started again before it was waited for", index);
  next_bucket_ = (next_bucket_ + 1) % static_cast<int>(buckets_.size());
  bucket.under_way = true;
  bucket.weight = weight;
  ++bucket.round.number;
  bucket.round.announcement = {step, staleness_.push_weight(weight), learning_rate_, staleness_.ahead()};
  return path_->start(index, bucket.round);
}

Result<collective::Outcome> ServerReducer::wait(int index, const Deadline& deadline) {
  Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
  const auto answer = path_->wait(index, deadline);
  if (!answer) {
    controls_.set_failed();
    return fail(answer.error());
  }
  bucket.under_way = false;
  collective::Outcome outcome{.total_weight = is_async() ? bucket.weight : answer->total_weight,
                              .version = bucket.round.announcement.step};
  Staleness::describe(bucket.round.number, answer->rounds, outcome);
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
  return send_state(controls_, joined_.model, state, session_.membership().rank == 0, deadline);
}

Result<ServerState> ServerReducer::save(const Deadline& deadline) {
  MOTLEY_ASSIGN(ServerState state,
                fetch_state(controls_, joined_.model, kernels::state_arrays(options_.update.rule), deadline));
  state.updates = loaded_updates_ + buckets_.front().round.number;
  return state;
}

void ServerReducer::abort(const Error& error) {
  controls_.set_failed();
  if (path_) path_->abort(error);
  session_.abort(error);
}

}  // namespace motley::ps
