// What of a rank depends on the plan: layers, gradient synchronisation, split, and who computes a step with them. Ranks
// agree on the way: all make the same collective calls in this order.
#include <algorithm>
#include <numeric>

#include "motley/base/log.h"
#include "motley/net/derived_session.h"
#include "motley/nn/networks.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/sync/choose_method.h"
#include "motley/train/worker/job_parts.h"
#include "motley/train/worker/rank_worker.h"

namespace motley::train {
namespace {

constexpr std::uint16_t kAloneNumber = 0xffff;    // of a session of this rank alone; stages count from 1
constexpr std::uint16_t kElasticStages = 0x8000;  // where numbers from 1 are those of epochs, stages count from here

// What a rank's device is called. Where the job leaves it open, a plan's types of device may be named as devices are.
std::string device_name(const Job& job, const cluster::Cluster& cluster, int rank) {
  const cluster::Worker& worker = cluster.workers[static_cast<std::size_t>(rank)];
  const cluster::DeviceType* type = cluster.device_type(worker.device);
  const bool from_file = !job.execution.cluster.empty() && type != nullptr && !is_synthetic(job);
  std::string name = from_file ? cluster::to_string(type->kind) : job.execution.device;
  if (name == "auto" && (!job.execution.elastic.empty() || is_synthetic(job))) name = "cpu";
  if (name == "auto" && cluster::names_device(worker.device)) name = worker.device;
  return name;
}

// Ranks of one host that name only the kind of accelerator get one each.
Result<torch::Device> find_device(const Job& job, const cluster::Cluster& cluster, const Role& role,
                                  const net::Membership& ranks) {
  const std::string name = device_name(job, cluster, role.rank);
  MOTLEY_ASSIGN(torch::Device device, nn::parse_device(name));
  if (device.is_cpu() || name.find(':') != std::string::npos) return device;
  int place = role.local_rank;
  if (job.execution.elastic.empty()) {  // whose ranks are all there, each under its number
    const auto host = [&](int rank) { return ranks.members[static_cast<std::size_t>(rank)].host_id; };
    place = 0;
    for (int other = 0; other < role.rank; ++other) {
      place += host(other) == host(role.rank) && device_name(job, cluster, other) == name ? 1 : 0;
    }
  }
  device.set_index(static_cast<torch::DeviceIndex>(place % nn::count_devices(device.type())));
  return device;
}

}  // namespace

Status RankWorker::build() {
  replica_ = std::make_unique<Replica>();
  if (layout_) {
    MOTLEY_TRY(join_stage());
  }
  context_->set_phase(0, "building the network");
  data_.reader().start(
      layout_ ? data::Parts{layout_->is_first(role_.rank), layout_->is_last(role_.rank)} : data::Parts(),
      !layout_ || layout_->is_first(role_.rank));
  MOTLEY_ASSIGN(auto tied, build_network());
  MOTLEY_TRY(build_sync(std::move(tied)));
  MOTLEY_ASSIGN(auto emulation, emulate_stage());
  if (emulation) {
    replica_->sync->emulate_update(emulation->stage.update_seconds);
  }
  MOTLEY_TRY(build_plan());
  build_runners(std::move(emulation));
  replica_->state.emplace(NetworkState::Parts{*context_, job_, peers(), replica_->network, *replica_->tensors,
                                              *replica_->sync, layout_.get()});
  return {};
}

Status RankWorker::join_stage() {
  const int stage = layout_->find_stage(role_.rank);
  // No two parts of a run's session have one number; a plan has no more stages than there are ranks.
  const int number = elastic_ ? kElasticStages + stage : 1 + plans_ * role_.size + stage;
  if (number >= kAloneNumber - plans_) {
    return fail(ErrorCode::kUnavailable, "the run has followed {} plans, more than it can tell apart", plans_);
  }
  replica_->stage_session =
      net::make_partial_session(*session_, layout_->list_ranks(stage), static_cast<std::uint16_t>(number));
  MOTLEY_ASSIGN(replica_->stage_group, collective::make_group(*replica_->stage_session));
  return {};
}

// The whole network, or the layers that the plan gives this rank.
Result<std::unique_ptr<TiedGradients>> RankWorker::build_network() {
  LocalNetwork& local = replica_->network;
  MOTLEY_ASSIGN(local.loss, nn::parse_loss(job_.training.loss));
  local.metric = nn::default_metrics(local.loss).front();
  MOTLEY_ASSIGN(local.dtype, nn::parse_dtype(job_.model.dtype));
  MOTLEY_ASSIGN(local.device, find_device(job_, cluster_, role_, session_->membership()));
  local.seed = static_cast<std::uint64_t>(job_.seed);
  local.is_synthetic = is_synthetic(job_);
  MOTLEY_ASSIGN(nn::NetworkSpec spec, make_network_spec(job_, data_.train()));
  if (local.is_synthetic) {
    spec.layers = static_cast<std::int64_t>(layout_->plan().layers.size());
  }
  if (!layout_ || layout_->is_first(role_.rank)) {
    local.lookups = nn::lookup_layout(spec);
  }
  nn::StageOptions options;
  options.device = local.device;
  options.dtype = local.dtype;
  options.autocast = job_.precision == "bfloat16";
  options.input_gradients = local.lookups && local.lookups->served;
  std::unique_ptr<TiedGradients> tied;
  if (layout_) {
    MOTLEY_ASSIGN(tied, build_stage(spec, options));
  } else {
    MOTLEY_ASSIGN(local.stage, nn::make_stage(spec, local.seed, options));
  }
  replica_->tensors.emplace(*context_, local, data_.reader());
  return tied;
}

// The layers of this rank's stage, connected to those before and after them.
Result<std::unique_ptr<TiedGradients>> RankWorker::build_stage(const nn::NetworkSpec& spec, nn::StageOptions options) {
  LocalNetwork& local = replica_->network;
  const planning::Stage& planned = layout_->stage(role_.rank);
  options.recompute = planned.recompute;
  options.input_gradients = options.input_gradients || !layout_->is_first(role_.rank);
  MOTLEY_ASSIGN(auto whole, nn::make_network(spec, local.seed));
  auto part = nn::take_part(std::move(whole), layout_->plan().layers, planned.first_layer, planned.last_layer);
  if (!part) {
    return fail(part.error().within(job_.execution.plan));
  }
  MOTLEY_ASSIGN(local.stage, nn::Stage::create(std::move(part->network), options));
  MOTLEY_ASSIGN(replica_->pipeline,
                Pipeline::create(*session_, *layout_, *local.stage, part->input_shape, part->output_shape,
                                 job_.gradient_sync.overlap, Deadline::after(job_.deadline.join)));
  local.shared = std::move(part->shared);
  const auto tied = tied_parameters(*layout_, local.shared);
  if (!tied) {
    return fail(tied.error().within(job_.execution.plan));
  }
  return TiedGradients::create(*session_, *layout_, *tied, local.stage->parameters(),
                               Deadline::after(job_.deadline.join));
}

Status RankWorker::build_sync(std::unique_ptr<TiedGradients> tied) {
  const LocalNetwork& local = replica_->network;
  BucketedGradientSync::Parts parts;
  parts.tied = std::move(tied);
  MOTLEY_ASSIGN(parts.optimizer, nn::Optimizer::create(make_optimizer_spec(job_), local.stage->parameters()));
  MOTLEY_ASSIGN(parts.buckets, nn::GradientBuckets::create(
                                   local.stage->parameters(), static_cast<std::size_t>(job_.gradient_sync.bucket_size),
                                   {.overlaps = job_.gradient_sync.overlap, .keeps_own = elastic_.has_value()}));
  if (nn::has_batch_norm(*local.stage) && sync_options_.staleness) {
    return fail(ErrorCode::kInvalidInput,
                "model.norm: the network has BatchNorm, whose statistics all workers combine in every step; accepted "
                "with gradient_sync.consistency {}: networks without it (model.norm: group or none)",
                job_.gradient_sync.consistency);
  }
  collective::Layout layout;
  layout.type = local.dtype == torch::kFloat64 ? collective::DataType::kFloat64 : collective::DataType::kFloat32;
  layout.bucket_elements = parts.buckets->bucket_elements();
  MOTLEY_ASSIGN(ps::ServerOptions options, choose_sync(layout));
  if (layout.bucket_elements.empty()) {  // a stage of layers that train nothing
    options.method = collective::Method::kAuto;
    replica_->alone =
        net::make_partial_session(*session_, {role_.rank}, static_cast<std::uint16_t>(kAloneNumber - plans_));
  }
  if (elastic_) elastic_->use(options);
  MOTLEY_ASSIGN(const bool clips_at_servers, may_clip_at_servers(options));
  if (clips_at_servers) {
    options.update = make_update_options(job_.optimizer);
    options.reversible = true;
  }
  const bool is_served =
      options.method == collective::Method::kParameterServer && options.update.rule != kernels::UpdateRule::kSum;
  if (role_.is_newcomer && !layout_) options.method = collective::Method::kAuto;  // until it has entered
  MOTLEY_ASSIGN(parts.method, train::make_reducer(replica_->alone ? *replica_->alone : peers(), options));
  if (elastic_) {
    auto replaceable = std::make_unique<collective::ReplaceableReducer>(std::move(parts.method.reducer));
    parts.replaceable = replaceable.get();
    parts.method.reducer = std::move(replaceable);
  }
  collective::GradientReducer& reducer = *parts.method.reducer;
  MOTLEY_TRY(reducer.prepare(layout, Deadline::after(job_.deadline.join)));
  if (clips_at_servers && !parts.method.server_optimizer->is_reversible()) {
    return fail(ErrorCode::kUnavailable,
                "max_grad_norm: {}: the server {} is on this host, but does not share memory with its ranks",
                job_.max_grad_norm, net::to_string(options.servers.front().endpoint));
  }
  MOTLEY_TRY(parts.buckets->bind(collective::list_buffers(reducer, parts.buckets->count())));
  replica_->sync =
      std::make_unique<BucketedGradientSync>(*context_, peer_group(), local, *replica_->tensors, std::move(parts),
                                             BucketedGradientSync::Options{.max_grad_norm = job_.max_grad_norm,
                                                                           .replicas = peers().membership().size(),
                                                                           .replica = peers().membership().rank,
                                                                           .is_planned = layout_ != nullptr,
                                                                           .is_served = is_served});
  return {};
}

// Whether servers may take the step before the norm of the gradient is known, and again where that was too large: they
// are on the host of all ranks, keep what was there before, and no rank computes with their memory while they do, as
// all weights are copies on accelerators. Collective.
Result<bool> RankWorker::may_clip_at_servers(const ps::ServerOptions& options) {
  const LocalNetwork& local = replica_->network;
  const bool is_plain = !layout_ && !elastic_ && !options.staleness && options.rank_racks.empty() &&
                        options.wire == collective::WireType::kNative && local.dtype == torch::kFloat32;
  if (job_.max_grad_norm == 0 || options.method != collective::Method::kParameterServer || !is_plain) return false;
  const bool is_local = session_->membership().on_one_host() && options.servers.size() == 1 &&
                        net::is_loopback(options.servers.front().endpoint.host).value_or(false);
  double others[] = {is_local && !local.device.is_cpu() ? 0.0 : 1.0};
  MOTLEY_TRY(group_->all_reduce_sum(others, Deadline::after(job_.deadline.join)));
  if (others[0] == 0 && writes()) {
    spdlog::info(
        "max_grad_norm: the server takes each step at once, and again with the gradient scaled where its norm is "
        "too large");
  }
  return others[0] == 0;
}

// How this rank's gradients are synchronised; what is measured for that, and servers that are started, concern all
// ranks.
Result<ps::ServerOptions> RankWorker::choose_sync(const collective::Layout& layout) {
  ps::ServerOptions options = sync_options_;
  const Deadline deadline = Deadline::after(job_.deadline.join);
  if (options.method == collective::Method::kAuto && !job_.gradient_sync.servers.empty()) {
    MOTLEY_ASSIGN(options.servers, read_servers(job_));
    MOTLEY_ASSIGN(const MethodChoice choice, measure_and_choose(beginners(), *group_, options, layout, deadline));
    options.method = choice.method;
    if (writes()) {
      spdlog::info("gradient_sync.method auto: {}", choice.explanation());
    }
  }
  if (elastic_) {
    options.elastic = ps::ElasticJob{.session = session_->membership().session, .kept_seconds = job_.deadline.join};
    const std::string& replication = job_.gradient_sync.replication;
    if (replication != "auto") options.elastic->replicates = replication == "on";
  }
  if (options.method == collective::Method::kParameterServer && role_.is_newcomer) {
    MOTLEY_ASSIGN(options.servers, list_servers(job_));
  } else if (options.method == collective::Method::kParameterServer) {
    const auto& elements = layout.bucket_elements;
    const double count = static_cast<double>(std::accumulate(elements.begin(), elements.end(), std::size_t{0}));
    const double bytes = count * (options.wire == collective::WireType::kNative ? 4 : 2);
    MOTLEY_ASSIGN(service_, place_servers(job_, beginners(), *group_, *secret_, bytes, options));
  }
  if (layout_) {
    if (layout_->stage(role_.rank).gradient_sync != planning::GradientSync::kParameterServer &&
        options.method == collective::Method::kParameterServer) {
      options.method = collective::Method::kAuto;
    }
    options.job_suffix = fmt::format("/stage-{}", layout_->find_stage(role_.rank));
  }
  if (options.wire == collective::WireType::kTopK && writes() &&
      (job_.optimizer.name != "sgd" || job_.optimizer.momentum > 0)) {
    spdlog::warn(
        "gradient_sync.comm_dtype: top-k sends small gradients late and all at once, which momentum and Adam take for "
        "something that lasts: best with optimizer.name sgd and optimizer.momentum 0, else with a larger "
        "gradient_sync.top_k");
  }
  if (options.wire == collective::WireType::kAuto && role_.is_newcomer) {
    options.wire = collective::WireType::kNative;  // until it takes the others'
  }
  if (options.wire == collective::WireType::kAuto) {
    MOTLEY_ASSIGN(options.wire, choose_wire(beginners(), *group_, options, layout, deadline));
  }
  return options;
}

// How long this rank's stage takes on the device that it is emulated at, as it is split at the plan's beginning.
Result<std::optional<PipelineRunner::Emulation>> RankWorker::emulate_stage() const {
  if (!layout_ || job_.execution.emulation.empty()) {
    return std::nullopt;
  }
  MOTLEY_ASSIGN(EmulatedStageTiming stage,
                EmulatedStageTiming::read(job_.execution.emulation, layout_->plan(), layout_->stage(role_.rank),
                                          layout_->device_type(role_.rank)));
  const nn::GradientBuckets& buckets = replica_->sync->buckets();
  EmulatedTiming timing(SteadyClock::instance(), buckets.count(), 0.0);  // of backward alone
  if (is_synthetic(job_)) {
    // The share of backward after which each bucket is complete, by the profile: once its first layer is done.
    std::vector<double> positions(static_cast<std::size_t>(buckets.count()), 0.0);
    const auto batch = static_cast<std::uint32_t>(job_.training.global_batch_size);
    const double rows = layout_->samples(role_.rank, {0, batch}) / static_cast<double>(layout_->plan().micro_batches);
    for (const nn::GradientBuckets::Place& place : buckets.places()) {
      double& position = positions[static_cast<std::size_t>(place.bucket)];
      const std::string layer = place.parameter.name.substr(0, place.parameter.name.rfind('.'));
      position = std::max(position, stage.share_of_backward(layer, rows));
    }
    timing.set_bucket_positions(std::move(positions));
  }
  return PipelineRunner::Emulation{std::move(stage), std::move(timing)};
}

Status RankWorker::build_plan() {
  // Of a planned job's ranks some have layers that normalise and some have none: what all must agree on depends on
  // none.
  const bool has_batch_norm = !layout_ && replica_->sync->has_batch_norm();
  MOTLEY_ASSIGN(data::BatchSplitOptions split, make_split_options(job_, cluster_, has_batch_norm));
  if (!layout_) {  // a step has no more than all of the data
    std::uint32_t least = 0;
    for (const data::WorkerLimits& limit : split.limits) least += limit.minimum;
    split.batch = std::min(split.batch, std::max(least, data_.train().size()));
  }
  const data::LedgerState fresh{static_cast<std::uint64_t>(job_.seed), 0, 0, data_.train().size()};
  const std::string& mode = job_.batch_split.mode;
  BatchPlanOptions options{mode == "replay" ? 0 : job_.baseline.every, job_.baseline.steps, mode};
  auto plan = BatchPlan::create(std::move(options), split, fresh, layout_.get());
  if (!plan) {
    return fail(layout_ ? plan.error().within(job_.execution.plan) : plan.error());
  }
  replica_->plan.emplace(std::move(*plan));
  const bool begins_with_some = !role_.is_newcomer && static_cast<int>(context_->present.size()) < role_.size;
  return begins_with_some && !layout_ ? replica_->plan->keep_to(0, context_->present) : Status();
}

void RankWorker::build_runners(std::optional<PipelineRunner::Emulation> emulation) {
  Replica& made = *replica_;
  const RunnerParts parts{*context_, made.network, *made.tensors, data_.reader(), *made.plan, *made.sync};
  std::optional<TestEvaluation::Stages> stages;
  if (layout_) {
    stages.emplace(*layout_, *made.pipeline);
    made.runner = std::make_unique<PipelineRunner>(parts, *layout_, *made.pipeline, std::move(emulation));
  } else {
    made.computation.emplace(
        parts,
        BatchComputation::Options{.micro_batches = job_.training.gradient_accumulation_steps,
                                  .emulation = description(role_.rank).emulation,
                                  .min_micro_batch = made.sync->has_batch_norm() ? kLeastNormalised : 1},
        made.sync->buckets().count());
    made.runner = std::make_unique<DataParallelRunner>(parts, *made.computation);
    made.work_queue = std::make_unique<WorkQueueRunner>(parts, *made.computation);
  }
  std::int64_t most = job_.training.global_batch_size;  // at a time: no more than a micro-batch of this worker may have
  if (!layout_) {
    const std::int64_t parts = job_.training.gradient_accumulation_steps;
    most = (std::min<std::int64_t>(most, description(role_.rank).max_samples.value_or(most)) + parts - 1) / parts;
  }
  made.evaluator.emplace(*context_, made.network, *made.tensors, data_.test(), static_cast<std::uint32_t>(most),
                         stages);
}

}  // namespace motley::train
