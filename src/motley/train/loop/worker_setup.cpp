// Data, network, exchange and state: what a rank needs before its first step, and anew where the run moves to another
// plan.
#include "motley/train/loop/worker_state.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/model/profile.h"
#include "motley/net/partial_session.h"
#include "motley/nn/network_part.h"
#include "motley/nn/networks.h"
#include "motley/nn/tensor_file.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/checkpoint/saved_state.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/sync/make_reducer.h"
#include "motley/train/sync/measure_methods.h"
#include "motley/train/sync/wire_choice.h"

namespace motley::train {

namespace {

constexpr std::uint16_t kAloneNumber = 0xffff;  // of a session of this rank alone; stages count from 1

// The tensors of these names; of an optimizer's state ("<name>.<field>") those of these parameters.
nn::NamedTensors select_tensors(const nn::NamedTensors& wanted, const nn::NamedTensors& all, bool of_optimizer) {
  std::unordered_set<std::string> names;
  for (const nn::NamedTensor& tensor : wanted) {
    names.insert(tensor.name);
  }
  nn::NamedTensors found;
  for (const nn::NamedTensor& tensor : all) {
    if (names.contains(of_optimizer ? tensor.name.substr(0, tensor.name.rfind('.')) : tensor.name)) {
      found.push_back(tensor);
    }
  }
  return found;
}

}  // namespace

Status Worker::join_stage() {
  const int stage = layout_->find_stage(role_.rank);
  // No two parts of a run's session have one number; a plan has no more stages than there are ranks.
  const int number = 1 + plans_ * role_.size + stage;
  if (number >= kAloneNumber - plans_) {
    return fail(ErrorCode::kUnavailable, "the run has followed {} plans, more than it can tell apart", plans_);
  }
  stage_session_ = net::make_partial_session(*session_, layout_->list_ranks(stage), static_cast<std::uint16_t>(number));
  MOTLEY_ASSIGN(stage_group_, collective::make_group(*stage_session_));
  return {};
}

// Rank 0 asks the data server what its data is and tells all; the others need it only where they read samples.
Result<std::unique_ptr<data::Dataset>> Worker::open_at_server(data::Set set) {
  const net::SessionOptions& options = session_->options();
  const net::Membership& membership = session_->membership();
  MOTLEY_ASSIGN(data::DataServerAccess access, data_server_access(job_, set));
  access.claim.identity.rank = role_.rank;
  access.claim.identity.session = membership.session;
  access.claim.identity.epoch = membership.epoch;
  access.claim.fingerprint = options.fingerprint;
  access.payload_checksum = options.payload_checksum;
  access.cancelled = [this] { return !session_->health(); };
  std::unique_ptr<data::RemoteDataset> dataset;
  std::string text;
  if (writes()) {
    MOTLEY_ASSIGN(dataset, data::RemoteDataset::open(access));
    const std::vector<std::byte> bytes = encode(dataset->description());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  MOTLEY_ASSIGN(text, broadcast_text(*group_, std::move(text), 0, Deadline::after(2 * job_.deadline.join)));
  if (!dataset) {
    MOTLEY_ASSIGN(data::Description description, data::decode_description(std::as_bytes(std::span(text))));
    dataset = std::make_unique<data::RemoteDataset>(std::move(access), std::move(description));
  }
  return dataset;
}

Status Worker::open_data() {
  session_->set_phase(0, "opening the data");
  if (!job_.data.server.empty()) {
    MOTLEY_ASSIGN(train_data_, open_at_server(data::Set::kTraining));
    if (has_test_data(job_)) {
      MOTLEY_ASSIGN(test_data_, open_at_server(data::Set::kTest));
    }
  } else {
    MOTLEY_ASSIGN(train_data_, open_training_data(job_));
    if (has_test_data(job_)) {
      MOTLEY_ASSIGN(test_data_, open_test_data(job_, *train_data_));
    }
  }
  for (const auto* data : {train_data_.get(), test_data_.get()}) {
    if (writes() && data != nullptr && data->skipped().lines > 0) {
      spdlog::warn("{} malformed lines of the {} data were skipped; the first one: {}", data->skipped().lines,
                   data == train_data_.get() ? "training" : "test", data->skipped().first);
    }
  }
  loader_ = std::make_unique<data::Loader>(*train_data_, 1 + static_cast<std::size_t>(job_.data.prefetch));
  const double steps_an_epoch =
      std::ceil(static_cast<double>(train_data_->size()) / static_cast<double>(job_.training.global_batch_size));
  steps_ = job_.training.steps > 0 ? job_.training.steps
                                   : static_cast<std::int64_t>(std::ceil(job_.training.epochs * steps_an_epoch));
  return {};
}

// The whole network, or the layers that the plan gives this rank, connected to those before and after them.
Result<std::unique_ptr<nn::Stage>> Worker::make_stage() {
  MOTLEY_ASSIGN(nn::NetworkSpec network, make_network_spec(job_, *train_data_));
  if (is_synthetic(job_)) {
    network.layers = static_cast<std::int64_t>(layout_->plan().layers.size());
  }
  const auto seed = static_cast<std::uint64_t>(job_.seed);
  nn::StageOptions options;
  options.device = device_;
  options.dtype = dtype_;
  options.autocast = job_.precision == "bfloat16";
  if (!layout_ || layout_->is_first(role_.rank)) {
    lookups_ = nn::lookup_layout(network);
  }
  const bool moves_rows = lookups_ && lookups_->served;
  options.input_gradients = moves_rows;
  if (!layout_) {
    return nn::make_stage(network, seed, options);
  }
  const planning::Stage& planned = layout_->stage(role_.rank);
  options.recompute = planned.recompute;
  options.input_gradients = moves_rows || !layout_->is_first(role_.rank);
  MOTLEY_ASSIGN(auto whole, nn::make_network(network, seed));
  auto part = nn::take_part(std::move(whole), layout_->plan().layers, planned.first_layer, planned.last_layer);
  if (!part) {
    return fail(part.error().within(job_.execution.plan));
  }
  MOTLEY_ASSIGN(auto stage, nn::Stage::create(std::move(part->network), options));
  MOTLEY_ASSIGN(pipeline_, Pipeline::create(*session_, *layout_, *stage, part->input_shape, part->output_shape,
                                            job_.gradient_sync.overlap, Deadline::after(job_.deadline.join)));
  shared_ = std::move(part->shared);
  const auto tied = tied_parameters(*layout_, shared_);
  if (!tied) {
    return fail(tied.error().within(job_.execution.plan));
  }
  MOTLEY_ASSIGN(tied_, TiedGradients::create(*session_, *layout_, *tied, stage->parameters(),
                                             Deadline::after(job_.deadline.join)));
  return stage;
}

Status Worker::build_model() {
  session_->set_phase(0, "building the network");
  MOTLEY_ASSIGN(loss_, nn::parse_loss(job_.training.loss));
  metric_ = nn::default_metrics(loss_).front();
  MOTLEY_ASSIGN(dtype_, nn::parse_dtype(job_.model.dtype));
  const std::string device = find_device(job_, cluster_, role_.rank, role_.local_rank);
  MOTLEY_ASSIGN(device_, nn::parse_device(device));

  MOTLEY_ASSIGN(stage_, make_stage());
  MOTLEY_ASSIGN(optimizer_, nn::Optimizer::create(parts_.optimizer, stage_->parameters()));
  MOTLEY_ASSIGN(buckets_, nn::GradientBuckets::create(stage_->parameters(),
                                                      static_cast<std::size_t>(job_.gradient_sync.bucket_size),
                                                      job_.gradient_sync.overlap));
  if (nn::has_batch_norm(*stage_)) {
    batch_norm_.emplace(*stage_);
    if (parts_.gradient_sync.staleness) {
      return fail(ErrorCode::kInvalidInput,
                  "model.norm: the network has BatchNorm, whose statistics all workers combine in every step; accepted "
                  "with gradient_sync.consistency {}: networks without it (model.norm: group or none)",
                  job_.gradient_sync.consistency);
    }
  }

  ps::ServerOptions gradient_sync = parts_.gradient_sync;
  collective::Layout layout;
  layout.type = dtype_ == torch::kFloat64 ? collective::DataType::kFloat64 : collective::DataType::kFloat32;
  layout.bucket_elements = buckets_->bucket_elements();
  const Deadline deadline = Deadline::after(job_.deadline.join);
  if (gradient_sync.method == collective::Method::kAuto && !job_.gradient_sync.servers.empty()) {
    MOTLEY_ASSIGN(gradient_sync.servers, read_servers(job_));
    MOTLEY_ASSIGN(const MethodChoice choice, measure_and_choose(*session_, *group_, gradient_sync, layout, deadline));
    gradient_sync.method = choice.method;
    if (writes()) {
      spdlog::info("gradient_sync.method auto: {}", choice.explanation());
    }
  }
  if (gradient_sync.method == collective::Method::kParameterServer) {
    const auto elements = buckets_->bucket_elements();
    const double count = static_cast<double>(std::accumulate(elements.begin(), elements.end(), std::size_t{0}));
    const double bytes = count * (gradient_sync.wire == collective::WireType::kNative ? 4 : 2);
    MOTLEY_ASSIGN(service_, place_servers(job_, *session_, *group_, *secret_, bytes, gradient_sync));
  }
  if (layout_) {
    if (layout_->stage(role_.rank).gradient_sync != planning::GradientSync::kParameterServer) {
      gradient_sync.method = gradient_sync.method == collective::Method::kParameterServer ? collective::Method::kAuto
                                                                                          : gradient_sync.method;
    }
    gradient_sync.job_suffix = fmt::format("/stage-{}", layout_->find_stage(role_.rank));
  }
  if (gradient_sync.wire == collective::WireType::kTopK && writes() &&
      (job_.optimizer.name != "sgd" || job_.optimizer.momentum > 0)) {
    spdlog::warn(
        "gradient_sync.comm_dtype: top-k sends small gradients late and all at once, which momentum and Adam take for "
        "something "
        "that lasts: best with optimizer.name sgd and optimizer.momentum 0, else with a larger gradient_sync.top_k");
  }
  if (gradient_sync.wire == collective::WireType::kAuto) {
    MOTLEY_ASSIGN(gradient_sync.wire, choose_wire(*session_, *group_, gradient_sync, layout, deadline));
  }
  if (layout.bucket_elements.empty()) {  // a stage of layers that train nothing
    gradient_sync.method = collective::Method::kAuto;
    stage_alone_ =
        net::make_partial_session(*session_, {role_.rank}, static_cast<std::uint16_t>(kAloneNumber - plans_));
  }
  MOTLEY_ASSIGN(auto method, train::make_reducer(stage_alone_ ? *stage_alone_ : peers(), gradient_sync));
  reducer_ = std::move(method.reducer);
  server_optimizer_ = method.server_optimizer;
  MOTLEY_TRY(reducer_->prepare(layout, Deadline::after(job_.deadline.join)));
  std::vector<std::span<std::byte>> memory;
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    memory.push_back(reducer_->buffer(bucket));
  }
  MOTLEY_TRY(buckets_->bind(memory));

  if (layout_ && !job_.execution.emulation.empty()) {
    MOTLEY_ASSIGN(stage_timing_,
                  EmulatedStageTiming::read(job_.execution.emulation, layout_->plan(), layout_->stage(role_.rank),
                                            layout_->device_type(role_.rank)));
    timing_.emplace(SteadyClock::instance(), buckets_->count(), 0.0);  // of backward alone
    if (is_synthetic(job_)) {
      timing_->set_bucket_positions(bucket_positions());
    }
  } else {
    timing_.emplace(SteadyClock::instance(), buckets_->count());
  }
  if (timeline_) {
    return {};
  }
  TimelineOptions timeline;
  timeline.first_steps = job_.timeline.steps / 2;
  timeline.every = job_.timeline.steps == 0 ? steps_ + 1 : std::max<std::int64_t>(1, 2 * steps_ / job_.timeline.steps);
  timeline_.emplace(role_.rank, description(role_.rank).name, timeline);
  return {};
}

// The share of backward after which each bucket is complete, by the profile: once its first layer is done.
std::vector<double> Worker::bucket_positions() const {
  std::vector<double> positions(static_cast<std::size_t>(buckets_->count()), 0.0);
  const auto batch = static_cast<std::uint32_t>(job_.training.global_batch_size);
  const double rows = layout_->samples(role_.rank, {0, batch}) / static_cast<double>(layout_->plan().micro_batches);
  for (const nn::GradientBuckets::Place& place : buckets_->places()) {
    double& position = positions[static_cast<std::size_t>(place.bucket)];
    const std::string layer = place.parameter.name.substr(0, place.parameter.name.rfind('.'));
    position = std::max(position, stage_timing_->share_of_backward(layer, rows));
  }
  return positions;
}

Result<std::string> broadcast_text(collective::Group& group, std::string text, int root, const Deadline& deadline) {
  auto size = static_cast<std::uint64_t>(text.size());
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&size, 1)), root, deadline));
  text.resize(size);
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root, deadline));
  return text;
}

// A state that does not fit the job: says which of the run's keys have changed since it was written.
Status Worker::explain(Status loaded, bool resume) const {
  if (loaded || !resume || !std::filesystem::exists(run_.job_file())) {
    return loaded;
  }
  MOTLEY_ASSIGN(const Job before, read_job(run_.job_file()));
  const std::string changed = changed_keys(before, job_, {"model.", "optimizer.", "data.", "loss"});
  if (changed.empty()) {
    return loaded;
  }
  return fail(ErrorCode::kInvalidInput, "--resume: the checkpoint does not fit the job, which has changed: {} ({})",
              changed, loaded.error().message);
}

// The rows that the samples look up, where servers have them.
Status Worker::open_table(const ServedTable::Start& start, const Deadline& deadline) {
  if (!lookups_ || !lookups_->served) {
    return {};
  }
  if (start.step > 0 && start.written_by == 0) {
    return fail(
        ErrorCode::kInvalidInput,
        "embedding.placement: server; the checkpoint to go on from was written without rows on servers; accepted: "
        "worker");
  }
  MOTLEY_ASSIGN(auto servers, read_servers(job_));
  MOTLEY_ASSIGN(table_, ServedTable::open(job_, *lookups_, std::move(servers), peers(), start, deadline));
  return {};
}

// Every rank starts from rank 0's state: the newest checkpoint, or the initial weights.
Status Worker::start_state(bool resume) {
  session_->set_phase(0, "reading the state to start from");
  Checkpoint start;
  if (writes()) {
    if (resume) {
      MOTLEY_ASSIGN(LoadedCheckpoint loaded, read_newest_checkpoint(run_.checkpoint_folder()));
      for (const std::string& warning : loaded.warnings) {
        spdlog::warn("{}", warning);
      }
      start = std::move(loaded.checkpoint);
    } else {
      if (!layout_) {  // else every stage has its own, which follow from the seed
        MOTLEY_ASSIGN(start.files["weights.safetensors"], nn::encode_tensors(stage_->state()));
      }
      start.files["state.json"] = "";
    }
  }
  return start_from(std::move(start), resume);
}

// `start` is rank 0's; it has no weights where every stage makes its own.
Status Worker::start_from(Checkpoint start, bool resume) {
  const Deadline deadline = Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step);
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "state.json", "audit.bin"}) {
    MOTLEY_ASSIGN(start.files[name], broadcast_text(*group_, std::move(start.files[name]), 0, deadline));
  }
  if (!start.files["weights.safetensors"].empty()) {
    MOTLEY_ASSIGN(nn::TensorFile weights, nn::decode_tensors(start.files["weights.safetensors"]));
    if (layout_) {
      weights.tensors = select_tensors(stage_->state(), weights.tensors, false);
    }
    MOTLEY_TRY(explain(stage_->load_state(weights.tensors), resume));
  }

  // Of a planned job's ranks some have layers that normalise and some have none: what all must agree on depends on
  // none.
  const bool has_batch_norm = !layout_ && batch_norm_.has_value();
  MOTLEY_ASSIGN(data::BatchSplitOptions partition, make_split_options(job_, cluster_, has_batch_norm));
  if (layout_) {
    auto shares = StageSplit::create(*layout_, partition);
    if (!shares) return fail(shares.error().within(job_.execution.plan));
    stage_split_ = std::move(*shares);
  } else {
    MOTLEY_ASSIGN(splitter_, data::BatchSplitter::create(std::move(partition)));
  }
  data::LedgerState ledger{static_cast<std::uint64_t>(job_.seed), 0, 0, train_data_->size()};
  counts_.emplace(train_data_->size(), 0);
  ServedTable::Start table;
  if (!start.files["state.json"].empty()) {
    MOTLEY_ASSIGN(const SavedState saved, parse_state(start.files["state.json"]));
    if (saved.ledger.size != train_data_->size()) {
      return fail(ErrorCode::kInvalidInput, "the checkpoint was written for {} training samples, the data has {} now",
                  saved.ledger.size, train_data_->size());
    }
    ledger = saved.ledger;
    step_ = saved.step;
    evaluated_step_ = saved.evaluated_step;
    next_evaluation_ = saved.next_evaluation;
    not_used_once_ = saved.not_used_once;
    saved_step_ = step_;
    table = {saved.step, saved.table_servers};
    MOTLEY_ASSIGN(nn::TensorFile state, nn::decode_tensors(start.files["optimizer.safetensors"]));
    if (layout_) {
      state.tensors = select_tensors(stage_->parameters(), state.tensors, true);
    }
    MOTLEY_TRY(explain(optimizer_->load_state(state.tensors), resume));
    bool restored = false;
    if (stage_split_ && !saved.stage_split.empty()) {
      MOTLEY_ASSIGN(restored, stage_split_->restore(saved.stage_split));
    } else if (splitter_ && !saved.partition.empty()) {
      MOTLEY_ASSIGN(restored, splitter_->restore(saved.partition));
    }
    if (!restored && writes() && plans_ == 0) {
      spdlog::info("the plan, the workers or the batch have changed: shares start afresh");
    }
    if (writes()) {  // the counts of all ranks so far; the others count from zero
      MOTLEY_ASSIGN(counts_, data::UseCounts::parse(start.files["audit.bin"]));
    } else {
      counts_->start(ledger.epoch);
    }
  }
  MOTLEY_TRY(open_table(table, deadline));
  if (server_optimizer_ != nullptr) {
    MOTLEY_ASSIGN(served_, ServedWeights::begin(*server_optimizer_, *buckets_, *optimizer_,
                                                parts_.gradient_sync.update.rule, deadline));
  }
  MOTLEY_ASSIGN(ledger_, data::Ledger::open(ledger));
  if (next_evaluation_ == 0) {
    next_evaluation_ = job_.evaluate.every_epochs;
  }
  return {};
}

Status Worker::open_outputs() {
  started_ = monotonic_seconds();
  next_checkpoint_ = started_ + job_.checkpoint.every;
  if (!writes()) {
    return {};
  }
  progress_.emplace();
  moves_ = split_moves();
  MOTLEY_TRY(write_file(run_.job_file(), format_job(job_)));
  MOTLEY_TRY(run_.roll_back_metrics(step_));
  MOTLEY_ASSIGN(metrics_, JsonLines::open(run_.metrics_file()));
  MOTLEY_ASSIGN(TensorBoardWriter tensorboard, TensorBoardWriter::open(run_.folder() / "tensorboard", wall_seconds()));
  tensorboard_.emplace(std::move(tensorboard));
  std::vector<std::string> gradient_syncs;
  for (int stage = 0; layout_ && stage < layout_->stages(); ++stage) {
    gradient_syncs.emplace_back(
        planning::to_string(layout_->plan().stages[static_cast<std::size_t>(stage)].gradient_sync));
  }
  RunFacts facts;
  facts.gradient_sync = layout_ ? fmt::format("{} by stage", fmt::join(gradient_syncs, ", ")) : reducer_->name();
  facts.training_samples = train_data_->size();
  facts.plan = layout_ ? &layout_->plan() : nullptr;
  MOTLEY_TRY(write_run_file(run_, job_, cluster_, facts));
  const std::string work = fmt::format("{} training samples, {} workers, {} steps of {} samples", train_data_->size(),
                                       role_.size, steps_, job_.training.global_batch_size);
  if (layout_) {
    spdlog::info("{} by the plan '{}': {}, in {} micro-batches through {} stages ({})", job_.model.name,
                 job_.execution.plan, work, layout_->plan().micro_batches, layout_->stages(),
                 planning::to_string(layout_->plan().schedule));
  } else {
    spdlog::info("{}: {} parameters, {}, gradient synchronisation: {}", stage_->name(), stage_->parameter_count(), work,
                 reducer_->name());
  }
  for (int rank = 0; rank < role_.size; ++rank) {
    if (const auto& emulation = description(rank).emulation) {
      spdlog::info("worker {} ({}) is emulated: {} a sample", rank, description(rank).name,
                   format_seconds(emulation->seconds_per_sample));
    }
  }
  if (stage_timing_) {
    spdlog::info("all workers are emulated: each stage takes as long as '{}' says for its device type",
                 job_.execution.emulation);
    MOTLEY_TRY(event("emulation", fmt::format("by the profile '{}'", job_.execution.emulation)));
  }
  if (batch_norm_ && role_.size > 1) {
    const char* text =
        "BatchNorm normalises each worker's samples by their own statistics; running statistics are combined by "
        "samples. "
        "For results that do not depend on the shares use a network with GroupNorm (model.norm: group)";
    spdlog::warn("{}", text);
    MOTLEY_TRY(event("warning", text));
  }
  if (step_ > 0) {
    spdlog::info("resumed after step {}, epoch {}, {} of its samples used", step_, ledger_->state().epoch,
                 ledger_->state().cursor);
    MOTLEY_TRY(event("resumed", fmt::format("after step {} with {} workers", step_, role_.size)));
  }
  return {};
}

// Rank 0 watches whether the workers are as fast as the plan's profile says. Rows and weights that servers keep stay
// where they are: such runs keep their plan, as do those whose shares are fixed.
Status Worker::watch_speeds() {
  const std::string& file = job_.execution.profile.empty() ? job_.execution.emulation : job_.execution.profile;
  const bool may_move =
      layout_ && job_.execution.replan && job_.batch_split.mode != "fixed" && role_.size > 1 && !file.empty();
  if (!writes() || !may_move || job_.gradient_sync.method == "parameter-server" || has_served_table(job_)) {
    return {};
  }
  MOTLEY_ASSIGN(const model::Profile profile, model::read_profile(file));
  cluster::Cluster devices = cluster_;
  const std::filesystem::path kept = run_.folder() / "cluster.yaml";  // what plan: auto has planned for
  if (devices.device_types.empty() && std::filesystem::exists(kept)) {
    MOTLEY_ASSIGN(devices, cluster::read_cluster(kept));
  }
  auto replanner = Replanner::create(profile, devices, *layout_);
  if (!replanner && !job_.execution.profile.empty()) {
    return fail(replanner.error().within(file));
  }
  if (!replanner) {
    spdlog::warn("the run keeps its plan whatever its workers' speeds: {}: {}", file, replanner.error().message);
    return {};
  }
  replanner_.emplace(std::move(*replanner));
  return {};
}

// Whether the plan gives every stage workers that may take its samples (min_samples, max_samples), and no tensor to
// several stages that must be in one.
bool Worker::may_follow(const Replanner::Move& move) const {
  auto partition = make_split_options(job_, cluster_, false);
  StageLayout layout(move.plan, move.ranks);
  const auto shares = partition ? StageSplit::create(layout, *partition) : fail(partition.error());
  const auto tied = tied_parameters(layout, shared_);
  if (!shares || !tied) {
    spdlog::info("the plan stays: of the best one for the workers as they are, {}",
                 (shares ? tied.error() : shares.error()).message);
  }
  return shares && tied;
}

// At the end of a step all go on by the plan that rank 0 has found, from the state as it is: what a checkpoint would
// hold goes through rank 0 to everybody, as on a resume.
Status Worker::move() {
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "moving to another plan");
  std::string text;
  if (writes()) {
    text = Json{{"plan", planning::to_json(next_move_->plan)}, {"ranks", next_move_->ranks}}.dump();
  }
  MOTLEY_ASSIGN(text, broadcast_text(*group_, std::move(text), 0, step_deadline()));
  const auto message = nlohmann::json::parse(text);
  MOTLEY_ASSIGN(planning::Plan plan,
                planning::parse_plan(message.at("plan").get<std::string>(), "the plan to move to"));
  MOTLEY_ASSIGN(Checkpoint state, gather_state());
  const std::int64_t saved_step = saved_step_;

  MOTLEY_TRY(group_->barrier(step_deadline()));  // nobody needs the old stages any more
  loader_->discard();                            // the new stage may need other parts of samples
  read_ahead_.clear();
  stage_split_.reset();
  stage_timing_.reset();
  timing_.reset();
  batch_norm_.reset();
  buckets_.reset();
  optimizer_.reset();
  tied_.reset();
  pipeline_.reset();
  stage_.reset();
  reducer_.reset();
  stage_alone_.reset();
  stage_group_.reset();
  stage_session_.reset();

  ++plans_;
  layout_.emplace(std::move(plan), message.at("ranks").get<std::vector<int>>());
  MOTLEY_TRY(join_stage());
  MOTLEY_TRY(build_model());
  MOTLEY_TRY(start_from(std::move(state), true));
  saved_step_ = saved_step;
  if (!writes()) {
    return {};
  }
  const double seconds = monotonic_seconds() - begin;
  moves_ = split_moves();
  replanner_->moved(*layout_, seconds);
  const std::string name = fmt::format("plan-after-step-{}.json", step_);
  MOTLEY_TRY(write_file(run_.folder() / name, planning::to_json(layout_->plan())));
  const std::string reason =
      fmt::format("{}; moving took {}, the new plan is {}", next_move_->reason, format_seconds(seconds), name);
  next_move_.reset();
  progress_->clear();
  spdlog::info("moved to another plan after step {}: {}", step_, reason);
  return event("moved", reason);
}

}  // namespace motley::train
