#include "motley/train/step/bucketed_gradient_sync.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "motley/base/os/injected_fault.h"
#include "motley/kernels/finite.h"
#include "motley/train/step/tensor_file.h"

namespace motley::train {
namespace {

// A parameter's values in a bucket of a server's flat arrays, laid out as its gradient is.
torch::Tensor view(const nn::GradientBuckets::Place& place, const float* bucket) {
  const torch::Tensor& parameter = place.parameter.tensor;
  return torch::from_blob(const_cast<float*>(bucket) + place.offset, parameter.sizes(),
                          at::infer_dense_strides(parameter.sizes(), parameter.strides()), torch::kFloat32);
}

// The fields of the optimizer's state, in the order of the servers' arrays.
std::vector<std::string> name_state(int arrays) {
  if (arrays == 0) return {};
  if (arrays == 1) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

bool all_finite(std::span<const std::byte> values, at::ScalarType type) {
  if (type == at::kDouble) {
    return kernels::all_finite({reinterpret_cast<const double*>(values.data()), values.size() / sizeof(double)});
  }
  return kernels::all_finite({reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float)});
}

}  // namespace

BucketedGradientSync::BucketedGradientSync(const RankContext& context, collective::Group& peers,
                                           const LocalNetwork& network, BatchTensors& tensors, Parts parts,
                                           Options options)
    : context_(context),
      peers_(peers),
      network_(network),
      tensors_(tensors),
      parts_(std::move(parts)),
      server_(parts_.method.server_optimizer),
      options_(options) {
  if (nn::has_batch_norm(*network_.stage)) batch_norm_.emplace(*network_.stage);
}

// What servers start with: the network's weights, and these fields of the state of Parts::optimizer.
Result<ps::ServerState> BucketedGradientSync::collect_state(const std::vector<std::string>& fields) const {
  std::unordered_map<std::string, torch::Tensor> state;
  for (const nn::NamedTensor& tensor : parts_.optimizer->state()) state.emplace(tensor.name, tensor.tensor);
  std::vector<std::vector<float>> zeros;
  for (const std::size_t elements : parts_.buckets->bucket_elements()) zeros.emplace_back(elements);
  ps::ServerState start{.weights = zeros, .optimizer = std::vector(fields.size(), zeros)};
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "handing the weights to the server", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : parts_.buckets->places()) {
      const std::string& name = place.parameter.name;
      const auto bucket = static_cast<std::size_t>(place.bucket);
      view(place, start.weights[bucket].data()).copy_(place.parameter.tensor);
      for (std::size_t field = 0; field < fields.size(); ++field) {
        if (const auto found = state.find(name + "." + fields[field]); found != state.end()) {
          view(place, start.optimizer[field][bucket].data()).copy_(found->second);
        }
      }
      if (const auto found = state.find(name + ".step"); found != state.end()) {
        start.updates = static_cast<std::uint64_t>(found->second.item<std::int64_t>());
      }
    }
  }));
  return start;
}

Status BucketedGradientSync::serve_weights(const nn::OptimizerSpec& spec, const Deadline& deadline) {
  if (server_ == nullptr) {
    return {};
  }
  std::vector<std::string> fields = name_state(spec.name != "sgd" ? 2 : spec.momentum != 0 ? 1 : 0);
  MOTLEY_ASSIGN(const ps::ServerState start, collect_state(fields));
  MOTLEY_TRY(server_->load(start, deadline));
  served_state_ = std::move(fields);
  if (keeps_weights()) return {};
  return nn::catch_torch(ErrorCode::kInternal, "binding the weights to the exchange's memory", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : parts_.buckets->places()) {
      torch::Tensor parameter = place.parameter.tensor;
      if (parameter.device().is_cpu()) parameter.set_data(view(place, server_->weights(place.bucket).data()));
    }
  });
}

// After the reducer's wait for the bucket: what it brought goes to the network's device.
Status BucketedGradientSync::fetch(int bucket) const {
  if (!served_state_) {
    return parts_.buckets->fetch(bucket);
  }
  return keeps_weights() ? Status() : copy_weights(bucket);
}

// From where servers left them to parameters that are no views of that.
Status BucketedGradientSync::copy_weights(int bucket) const {
  return nn::catch_torch(ErrorCode::kInternal, "copying weights to the network", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : parts_.buckets->places()) {
      torch::Tensor parameter = place.parameter.tensor;
      if (place.bucket == bucket && (keeps_weights() || !parameter.device().is_cpu())) {
        parameter.copy_(view(place, server_->weights(bucket).data()));
      }
    }
  });
}

// The first parameter in a bucket's values that is not finite, counted from 1; 0: there is none.
std::size_t BucketedGradientSync::find_not_finite(int bucket, std::span<const std::byte> values) const {
  if (network_.is_synthetic || all_finite(values, parts_.buckets->dtype())) return 0;
  const auto& places = parts_.buckets->places();
  for (std::size_t number = 0; number < places.size(); ++number) {
    const auto& [parameter, own_bucket, offset] = places[number];
    const std::size_t width = parameter.tensor.element_size();
    if (own_bucket != bucket) continue;
    if (!all_finite(values.subspan(static_cast<std::size_t>(offset) * width,
                                   static_cast<std::size_t>(parameter.tensor.numel()) * width),
                    parts_.buckets->dtype())) {
      return number + 1;
    }
  }
  return 0;
}

// The same of what is reduced: gradients, or weights that servers sent. All replicas have the same, so each looks at
// its share.
std::size_t BucketedGradientSync::check_reduced(int bucket) const {
  const auto values = served_state_ ? std::as_bytes(server_->weights(bucket))
                                    : std::span<const std::byte>(parts_.method.reducer->buffer(bucket));
  const std::size_t width = at::elementSize(parts_.buckets->dtype());
  const std::size_t elements = values.size() / width;
  const auto replicas = static_cast<std::size_t>(options_.replicas);
  const auto replica = static_cast<std::size_t>(options_.replica);
  const std::size_t begin = elements * replica / replicas * width;
  const std::size_t end = elements * (replica + 1) / replicas * width;
  const bool is_finite =
      network_.is_synthetic || all_finite(values.subspan(begin, end - begin), parts_.buckets->dtype());
  return is_finite ? 0 : find_not_finite(bucket, values);
}

std::string BucketedGradientSync::parameter_name(std::size_t number) const {
  return parts_.buckets->places().at(number - 1).parameter.name;
}

void BucketedGradientSync::begin(const Step& step) {
  own_not_finite_ = 0;
  if (server_ != nullptr) {
    server_->begin_step(step.window.size(), step.synchronises);
  }
  tensors_.begin_step();
  if (!network_.is_synthetic) {
    parts_.buckets->zero();
  }
  if (batch_norm_) {
    batch_norm_->begin_step();
  }
}

void BucketedGradientSync::arm(const Step& step, double weight, std::function<void(int bucket)> on_bucket) {
  if (server_ != nullptr) server_->set_learning_rate(step.learning_rate);
  parts_.buckets->arm(
      [this, number = static_cast<std::uint64_t>(step.number), weight, on_bucket = std::move(on_bucket)](int bucket) {
        on_bucket(bucket);
        // While it is still in the cache; one of no weight is not used.
        if (weight > 0 && own_not_finite_ == 0) {
          own_not_finite_ = find_not_finite(bucket, parts_.method.reducer->buffer(bucket));
        }
        return parts_.method.reducer->start(number, bucket, weight);
      });
}

Status BucketedGradientSync::wait(const Step& step, double seconds, Report& report) {
  MOTLEY_TRY(tensors_.finish_step(report));
  context_.set_phase(step.number, "gradient synchronisation");
  const Deadline deadline = Deadline::after(seconds);
  report.own_not_finite = static_cast<double>(own_not_finite_);
  MOTLEY_TRY(wait_for_buckets(deadline, report));
  if (clips_at_servers()) MOTLEY_TRY(clip_at_servers(step, deadline, report));
  if (parts_.tied) {
    MOTLEY_TRY(parts_.tied->add_up(static_cast<std::uint64_t>(step.number), deadline));
  }
  if (batch_norm_) {
    batch_norm_sums_ = batch_norm_->contribution(report.samples);
    MOTLEY_TRY(peers_.all_reduce_sum(batch_norm_sums_, deadline));
  }
  return clips() ? measure_norm(deadline) : Status();
}

Status BucketedGradientSync::wait_for_buckets(const Deadline& deadline, Report& report) {
  for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) {
    MOTLEY_ASSIGN(const collective::Outcome outcome, parts_.method.reducer->wait(bucket, deadline));
    report.staleness = std::max<double>(report.staleness, outcome.staleness);
    if (report.reduced_not_finite == 0) report.reduced_not_finite = static_cast<double>(check_reduced(bucket));
    MOTLEY_TRY(fetch(bucket));
    inject_fault(context_.rank, "between buckets");
  }
  return {};
}

// The servers have taken the step bucket by bucket, before the norm of the whole gradient was known: where that is too
// large, they take it again from what was there before, with the gradients, which still stand where they stood, scaled.
// Such a job is not planned, so that a rank's gradient weighs as much as its samples.
Status BucketedGradientSync::clip_at_servers(const Step& step, const Deadline& deadline, Report& report) {
  double squares = 0;
  for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) squares += server_->squares(bucket);
  const double norm = std::sqrt(squares);
  // The same on all ranks, unlike what each has seen of its share of the weights.
  if (norm <= options_.max_grad_norm || !std::isfinite(norm)) return {};
  report.reduced_not_finite = 0;  // of weights that count for nothing
  server_->take_back(options_.max_grad_norm / norm);
  for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) {
    MOTLEY_TRY(parts_.method.reducer->start(static_cast<std::uint64_t>(step.number), bucket, report.samples));
  }
  return wait_for_buckets(deadline, report);
}

Status BucketedGradientSync::go_on(net::Session& session, const ps::ServerOptions& options, const Deadline& deadline) {
  parts_.buckets->restore();
  MOTLEY_ASSIGN(auto method, train::make_reducer(session, options));
  if (server_ != nullptr) server_->hand_over();
  server_ = method.server_optimizer;
  if (server_ != nullptr) served_state_ = name_state(kernels::state_arrays(options.update.rule));
  MOTLEY_TRY(parts_.replaceable->replace(std::move(method.reducer), deadline));
  options_.replicas = session.membership().size();
  options_.replica = session.membership().rank;
  return parts_.buckets->bind(collective::list_buffers(*parts_.replaceable, parts_.buckets->count()));
}

Status BucketedGradientSync::restore_servers(const std::string& optimizer, const Deadline& deadline) {
  if (!optimizer.empty()) {
    MOTLEY_ASSIGN(const TensorFile file, decode_tensors(optimizer));
    if (!file.tensors.empty()) MOTLEY_TRY(parts_.optimizer->load_state(file.tensors));
  }
  MOTLEY_ASSIGN(ps::ServerState state, collect_state(*served_state_));
  state.updates = server_->updates();
  return server_->load(state, deadline);
}

Status BucketedGradientSync::update(const Step& step) {
  context_.set_phase(step.number, "optimizer");
  // Not before all have the step: where a rank is lost, they are summed anew.
  if (batch_norm_ && !postponed_updates_) batch_norm_->finish_step(batch_norm_sums_);
  if (served_state_ && keeps_weights()) {
    for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) MOTLEY_TRY(copy_weights(bucket));
    server_->commit();
    return {};
  }
  if (served_state_ || network_.is_synthetic) {
    return {};
  }
  if (postponed_updates_) {
    PostponedUpdate& update = postponed_updates_->emplace_back(step.learning_rate, norm_, batch_norm_sums_);
    for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) {
      const std::span<const std::byte> reduced = parts_.replaceable->buffer(bucket);
      update.gradients.emplace_back(reduced.begin(), reduced.end());
    }
    return {};
  }
  const double end = monotonic_seconds() + update_seconds_;
  MOTLEY_TRY(take_step(step.learning_rate, norm_));
  if (update_seconds_ > 0) {
    SteadyClock::instance().sleep_until(end);
  }
  return {};
}

Status BucketedGradientSync::take_step(double learning_rate, double norm) {
  if (clips() && norm > options_.max_grad_norm) {
    MOTLEY_TRY(nn::scale_gradients(network_.stage->parameters(), options_.max_grad_norm / norm));
  }
  return parts_.optimizer->step(learning_rate);
}

bool BucketedGradientSync::postpone_updates() {
  postponed_updates_.reset();
  if (is_served()) return false;
  postponed_updates_.emplace();
  return true;
}

std::uint64_t BucketedGradientSync::postponed_bytes() const {
  std::uint64_t bytes = 0;
  if (!postponed_updates_ || postponed_updates_->empty()) return bytes;
  for (const auto& bucket : postponed_updates_->front().gradients) bytes += bucket.size();
  return bytes * postponed_updates_->size();
}

Result<bool> BucketedGradientSync::catch_up() {
  if (postponed_updates_ && !postponed_updates_->empty()) {
    MOTLEY_TRY(take_postponed_step(postponed_updates_->front()));
    postponed_updates_->pop_front();
  }
  const bool has_more = postponed_updates_ && !postponed_updates_->empty();
  if (!has_more) postponed_updates_.reset();
  return has_more;
}

Status BucketedGradientSync::take_postponed_step(PostponedUpdate& update) {
  if (batch_norm_) {
    batch_norm_->begin_step();
    batch_norm_->finish_step(update.batch_norm_sums);
  }
  // Between steps the reducer's memory is this rank's.
  for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) {
    std::ranges::copy(update.gradients[static_cast<std::size_t>(bucket)], parts_.replaceable->buffer(bucket).begin());
    MOTLEY_TRY(parts_.buckets->fetch(bucket));
  }
  MOTLEY_TRY(take_step(update.learning_rate, update.norm));
  parts_.buckets->zero();
  return {};
}

// Of the whole network's gradient each stage has a part, and each of its ranks the same one. The norm is bitwise the
// same everywhere.
Status BucketedGradientSync::measure_norm(const Deadline& deadline) {
  MOTLEY_ASSIGN(norm_, nn::gradient_norm(without_copies(network_.stage->parameters())));
  if (!options_.is_planned) return {};
  double squares[] = {norm_ * norm_ / options_.replicas};
  MOTLEY_TRY(context_.group.all_reduce_sum(squares, deadline));
  norm_ = std::sqrt(squares[0]);
  return {};
}

Result<nn::NamedTensors> BucketedGradientSync::optimizer_state(const Deadline& deadline) const {
  if (!served_state_ && is_served() && keeps_weights()) {  // a newcomer's own is not the job's
    return fail(ErrorCode::kUnavailable, "the servers have not been joined yet");
  }
  if (!served_state_) {
    return parts_.optimizer->state();
  }
  MOTLEY_ASSIGN(const ps::ServerState state, server_->save(deadline));
  nn::NamedTensors tensors;
  if (state.updates == 0) {
    return tensors;
  }
  const std::vector<std::string>& fields = *served_state_;
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "reading the optimizer's state", [&] {
    for (const auto& place : parts_.buckets->places()) {
      for (std::size_t field = 0; field < fields.size(); ++field) {
        const float* values = state.optimizer[field][static_cast<std::size_t>(place.bucket)].data();
        tensors.push_back({place.parameter.name + "." + fields[field], view(place, values).clone()});
      }
      if (fields.size() == 2) {
        tensors.push_back(
            {place.parameter.name + ".step", torch::tensor(static_cast<std::int64_t>(state.updates), torch::kInt64)});
      }
    }
  }));
  return tensors;
}

nn::NamedTensors BucketedGradientSync::without_copies(nn::NamedTensors tensors) const {
  return parts_.tied ? parts_.tied->without_copies(std::move(tensors)) : tensors;
}

}  // namespace motley::train
