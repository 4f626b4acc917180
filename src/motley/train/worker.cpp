// A step of the loop, the same on every rank:
//
//   1. The ledger gives the window of the epoch's permutation that the step uses; the partition cuts it into shares.
//      Both are pure and fed with the same numbers, so every rank knows every rank's share without a word.
//   2. The worker loads its samples, runs forward and backward. Each bucket of gradients starts its exchange as soon as
//      backward has completed it. An emulated worker sleeps to its deadline on the way.
//   3. Wait until all buckets are reduced: sum n_i g_i / sum n_i.
//   4. One small all-gather: samples, seconds, loss, whether anyone was asked to stop. What is decided from it (shares,
//      stop, checkpoint, divergence) is decided alike everywhere.
//   5. The optimizer moves the weights; the ledger commits the window.
//
// Where a parameter server lets ranks be at different steps, 3 is a wait for weights that are new enough, and 4 takes
// place only in steps where all ranks meet, for all steps since they met last: every kMeetingSteps, and wherever there
// is something that all do together (an evaluation, a checkpoint, the end of an epoch). Until then every rank keeps to
// the same plan, which nothing but a meeting changes.
#include "motley/train/worker.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/data/dataset.h"
#include "motley/data/ledger.h"
#include "motley/data/loader.h"
#include "motley/data/partition.h"
#include "motley/exchange/exchange.h"
#include "motley/exchange/measure_methods.h"
#include "motley/exchange/wire_choice.h"
#include "motley/learn/batch_norm.h"
#include "motley/learn/click_networks.h"
#include "motley/learn/gradient_buckets.h"
#include "motley/learn/loss.h"
#include "motley/learn/metrics.h"
#include "motley/learn/network_part.h"
#include "motley/learn/networks.h"
#include "motley/learn/optimizer.h"
#include "motley/learn/runtime.h"
#include "motley/learn/schedule.h"
#include "motley/learn/stage.h"
#include "motley/learn/tensor_file.h"
#include "motley/train/checkpoint.h"
#include "motley/train/job_parts.h"
#include "motley/train/launcher.h"
#include "motley/train/pace.h"
#include "motley/train/pipeline.h"
#include "motley/train/planned_job.h"
#include "motley/train/progress.h"
#include "motley/train/saved_state.h"
#include "motley/train/served_table.h"
#include "motley/train/served_weights.h"
#include "motley/train/server_placement.h"
#include "motley/train/stage_pace.h"
#include "motley/train/stage_shares.h"
#include "motley/train/summary.h"
#include "motley/train/tensorboard.h"
#include "motley/train/timeline.h"
#include "motley/transport/partial_session.h"

namespace motley::train {
namespace {

using Json = nlohmann::ordered_json;

volatile sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

// What each rank tells all others at the end of a step; the all-gather carries these as doubles, in this order.
struct Report {
  double samples = 0;
  double load = 0;     // seconds
  double compute = 0;  // seconds of loading, forward and backward, emulated sleep included
  double waited = 0;   // seconds of these in which it waited for rows, or a planned stage for its neighbours
  double total = 0;    // seconds from the step's begin to the reduced gradient
  double cpu = 0;      // seconds of CPU time
  double target = -1;  // seconds that the emulated device takes; < 0: not emulated
  double stop = 0;
  double checkpoint = 0;
  double loss_sum = 0;
  double loss_count = 0;
  double metric_sum = 0;
  double metric_count = 0;
  double staleness = 0;  // steps that the oldest part in the new weights is behind this rank's
};
constexpr std::size_t kReportValues = sizeof(Report) / sizeof(double);
static_assert(sizeof(Report) == kReportValues * sizeof(double));

// Seconds until the last rank had computed.
double last_compute(const std::vector<Report>& reports) {
  return std::ranges::max(reports, {}, &Report::compute).compute;
}

constexpr std::size_t kReadAhead = 2;      // steps: the next one's batch is there when this one begins
constexpr std::size_t kMeetingSteps = 20;  // at most so many steps between two meetings of ranks at different steps
constexpr std::int64_t kEmulationCheckSteps = 20;  // the load is averaged over so many steps
constexpr double kLateFactor = 1.1;           // an emulated step that takes longer than this times its deadline is late
constexpr double kLateShare = 0.1;            // and so large a share of late steps is told
constexpr std::size_t kAuditChunk = 1 << 16;  // counts summed at a time
constexpr std::uint16_t kAloneNumber = 0xffff;    // of a session of this rank alone; stages count from 1
constexpr double kCheckpointDeadlineFactor = 10;  // of the step's deadline

class Worker {
 public:
  Worker(const Job& job, const RunDirectory& run, const Role& role, cluster::Cluster cluster,
         std::optional<plan::Plan> plan)
      : job_(job), run_(run), role_(role), cluster_(std::move(cluster)) {
    if (plan) layout_.emplace(std::move(*plan));
  }

  Status run(const std::filesystem::path& hosts, bool resume);

 private:
  bool writes() const { return role_.rank == 0; }
  Deadline step_deadline() const { return Deadline::after(job_.step_seconds); }
  // Those that compute the same layers as this rank, itself included.
  transport::Session& peers() const { return stage_session_ ? *stage_session_ : *session_; }
  exchange::Group& peer_group() const { return stage_group_ ? *stage_group_ : *group_; }
  // Changes of shares so far.
  std::uint64_t share_moves() const { return stage_shares_ ? stage_shares_->moves() : partition_->diagnostics().moves; }
  const cluster::Worker& description(int rank) const { return cluster_.workers[static_cast<std::size_t>(rank)]; }

  Status join(const std::filesystem::path& hosts);
  Status open_data();
  Status build_model();
  Result<std::unique_ptr<learn::Stage>> make_stage();
  Status explain(Status loaded, bool resume) const;
  Status start_state(bool resume);
  Status open_outputs();
  Status loop();
  Status step(bool& stop);
  bool meets_in(data::Range window, bool control) const;
  Deadline wait_deadline(bool meets) const;
  double epochs_done(std::uint32_t cursor) const;
  bool evaluation_is_due(double epochs) const;
  bool checkpoint_is_due() const;
  Status meet(data::Range window, bool& stop);
  Status clip_gradients();
  Status compute_share(const data::StepPlan& plan, data::Range window, Report& report);
  Status compute_pulled(const data::StepPlan& plan, data::Range window, Report& report);
  Status compute_planned(const data::StepPlan& plan, data::Range window, Report& report);
  Status see_outputs(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const;
  Status compute_batch(const data::Batch& batch, double divisor, bool last, Report& report);
  Status compute_micro_batch(const data::Batch& batch, std::int64_t first, const torch::Tensor& inputs,
                             const torch::Tensor& targets, double divisor, bool last, Report& report);
  Status open_table(const ServedTable::Start& start, const Deadline& deadline);
  Status ask_for_rows();
  Result<torch::Tensor> inputs_of(const data::Batch& batch, const data::Dataset& data);
  Result<data::Batch> load(std::span<const std::uint32_t> samples, Report& report);
  std::vector<std::uint32_t> own_samples(data::Range window, const data::StepPlan& plan) const;
  void read_ahead(data::Range window, const data::StepPlan& plan);
  Status start_exchange(double weight);
  struct StepRecord;
  Status check_reports(const std::vector<Report>& reports, const StepRecord& record);
  Status write_step(const std::vector<Report>& reports, const StepRecord& record, double step_seconds);
  Status evaluate();
  Status evaluate_own_part(learn::Evaluation& evaluation);
  Status evaluate_planned(learn::Evaluation& evaluation);
  Result<data::UseCounts> merge_counts();
  Status audit_epoch();
  Result<std::string> collect(const std::function<Result<learn::NamedTensors>()>& own);
  Status save_checkpoint();
  Status event(const std::string& kind, const std::string& text);
  Status tell_lateness();
  Status finish();

  const Job& job_;
  const RunDirectory& run_;
  const Role& role_;
  const cluster::Cluster cluster_;
  const JobParts parts_{make_parts(job_)};

  std::optional<transport::Secret> secret_;
  std::unique_ptr<server::Service> service_;  // beside this worker
  std::unique_ptr<transport::Session> session_;
  std::unique_ptr<exchange::Group> group_;
  // A planned job: who computes what, and the ranks that compute the same as this one. Else those are all ranks.
  std::optional<StageLayout> layout_;
  std::unique_ptr<transport::Session> stage_session_;
  std::unique_ptr<exchange::Group> stage_group_;
  std::unique_ptr<transport::Session> stage_alone_;  // of this rank, where there is nothing to exchange
  std::unique_ptr<exchange::Exchange> exchange_;
  std::unique_ptr<data::Dataset> train_data_;
  std::unique_ptr<data::Dataset> test_data_;
  std::unique_ptr<data::Loader> loader_;
  std::deque<std::vector<std::uint32_t>> read_ahead_;  // samples that were requested and not taken, by request
  std::unique_ptr<learn::Stage> stage_;
  std::unique_ptr<Pipeline> pipeline_;          // of a planned job
  std::optional<learn::LookupLayout> lookups_;  // where this rank's layers read what the samples look up
  std::unique_ptr<ServedTable> table_;          // and servers have it
  std::unique_ptr<learn::Optimizer> optimizer_;
  std::unique_ptr<learn::GradientBuckets> buckets_;
  std::unique_ptr<ServedWeights> served_;  // where a parameter server moves the weights
  std::optional<learn::BatchNormAverage> batch_norm_;
  std::optional<data::Ledger> ledger_;
  std::optional<data::Partition> partition_;
  std::optional<StageShares> stage_shares_;  // in the partition's place, of a planned job
  std::optional<data::UseCounts> counts_;
  std::optional<Pace> pace_;
  std::optional<StagePace> stage_pace_;  // of a planned job whose workers are emulated
  std::optional<TimelineRecorder> timeline_;

  learn::Loss loss_ = learn::Loss::kCrossEntropy;
  learn::Metric metric_ = learn::Metric::kAccuracy;
  torch::Device device_ = torch::kCPU;
  torch::Dtype dtype_ = torch::kFloat32;

  std::int64_t step_ = 0;         // the step under way; steps count from 1
  std::int64_t steps_ = 0;        // of the whole job
  std::int64_t micro_batch_ = 0;  // of this step
  std::int64_t pulled_ = 0;       // value of the shared counter at which this step's shards begin
  double weight_ = 0;             // samples that this rank brings to the exchange
  double step_begin_ = 0;
  struct StepRecord {
    std::int64_t step = 0;
    bool control = false;
    bool pulls = false;
    double learning_rate = 0;
    data::LedgerState ledger;  // before the step
    double samples = 0;        // of all ranks
    Report report;             // this rank's
  };
  std::vector<StepRecord> unreported_;  // steps since all ranks met
  double interval_begin_ = 0;           // of the first of them
  double computed_ = 0;                 // when the newest step's computation ended
  std::int64_t checked_steps_ = 0;
  std::vector<cluster::WorkerLoad> loads_;
  double checked_seconds_ = 0;
  struct Lateness {
    std::int64_t steps = 0;  // emulated ones
    std::int64_t late = 0;
    double excess = 0;  // of the late ones over their deadlines, summed shares
  };
  std::vector<Lateness> lateness_;  // a rank
  std::int64_t not_used_once_ = 0;  // over the epochs that ended
  std::int64_t evaluated_step_ = 0;
  std::int64_t saved_step_ = 0;
  double next_checkpoint_ = 0;
  double next_evaluation_ = 0;  // epochs

  // Rank 0's outputs.
  std::unique_ptr<JsonLines> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<ProgressLine> progress_;
  std::uint64_t moves_ = 0;
  double started_ = 0;
  double smooth_step_seconds_ = 0;
};

Status Worker::run(const std::filesystem::path& hosts, bool resume) {
  MOTLEY_TRY(join(hosts));
  Status done = [&]() -> Status {
    MOTLEY_TRY(open_data());
    MOTLEY_TRY(build_model());
    MOTLEY_TRY(start_state(resume));
    MOTLEY_TRY(open_outputs());
    MOTLEY_TRY(loop());
    return finish();
  }();
  if (done || done.error().code == ErrorCode::kInterrupted) {
    session_->leave();
    return done;
  }
  Error error = done.error();
  if (error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTimeout) {
    error = transport::first_cause(*session_, error);
  }
  session_->abort(error);
  return fail(std::move(error));
}

Status Worker::join(const std::filesystem::path& hosts) {
  transport::SessionOptions options;
  options.job = job_.name;
  options.tenant = job_.exchange_tenant;
  options.join_seconds = job_.join_seconds;
  options.silence_seconds = std::max(5.0, job_.step_seconds / 2);
  options.fingerprint = fingerprint(job_);
  if (layout_) {
    options.fingerprint += fmt::format("-{:08x}", crc32c(plan::to_json(layout_->plan())));
  }
  MOTLEY_ASSIGN(secret_, find_rendezvous(role_, run_.folder(), hosts, options));
  MOTLEY_ASSIGN(session_, transport::Session::join(options, *secret_));
  if (writes()) {  // all have read where to meet; the file holds a secret
    std::error_code ignored;
    std::filesystem::remove(run_.folder() / "rendezvous.json", ignored);
  }
  MOTLEY_ASSIGN(group_, exchange::make_group(*session_));
  if (layout_) {
    const int stage = layout_->stage_of(role_.rank);
    stage_session_ =
        transport::make_partial_session(*session_, layout_->ranks_of(stage), static_cast<std::uint16_t>(stage + 1));
    MOTLEY_ASSIGN(stage_group_, exchange::make_group(*stage_session_));
  }
  return {};
}

Status Worker::open_data() {
  session_->set_phase(0, "opening the data");
  MOTLEY_ASSIGN(train_data_, open_training_data(job_));
  if (has_test_data(job_)) {
    MOTLEY_ASSIGN(test_data_, open_test_data(job_, *train_data_));
  }
  for (const auto* data : {train_data_.get(), test_data_.get()}) {
    if (writes() && data != nullptr && data->skipped().lines > 0) {
      spdlog::warn("{} malformed lines of the {} data were skipped; the first one: {}", data->skipped().lines,
                   data == train_data_.get() ? "training" : "test", data->skipped().first);
    }
  }
  loader_ = std::make_unique<data::Loader>(*train_data_, 1 + kReadAhead);
  const double steps_an_epoch = std::ceil(static_cast<double>(train_data_->size()) / static_cast<double>(job_.batch));
  steps_ = job_.steps > 0 ? job_.steps : static_cast<std::int64_t>(std::ceil(job_.epochs * steps_an_epoch));
  return {};
}

// The whole network, or the layers that the plan gives this rank, connected to those before and after them.
Result<std::unique_ptr<learn::Stage>> Worker::make_stage() {
  MOTLEY_ASSIGN(const learn::NetworkSpec network, network_of(job_, *train_data_));
  const auto seed = static_cast<std::uint64_t>(job_.seed);
  learn::StageOptions options;
  options.device = device_;
  options.dtype = dtype_;
  options.autocast = job_.precision == "bfloat16";
  if (!layout_ || layout_->is_first(role_.rank)) {
    lookups_ = learn::lookup_layout(network);
  }
  const bool moves_rows = lookups_ && lookups_->served;
  options.input_gradients = moves_rows;
  if (!layout_) {
    return learn::make_stage(network, seed, options);
  }
  const plan::Stage& planned = layout_->stage(role_.rank);
  options.recompute = planned.recompute;
  options.input_gradients = moves_rows || !layout_->is_first(role_.rank);
  MOTLEY_ASSIGN(auto whole, learn::make_network(network, seed));
  auto part = learn::take_part(std::move(whole), layout_->plan().layers, planned.first_layer, planned.last_layer);
  if (!part) {
    return fail(part.error().within(job_.plan));
  }
  MOTLEY_ASSIGN(auto stage, learn::Stage::create(std::move(part->network), options));
  MOTLEY_ASSIGN(pipeline_, Pipeline::create(*session_, *layout_, *stage, part->input_shape, part->output_shape,
                                            Deadline::after(job_.join_seconds)));
  return stage;
}

Status Worker::build_model() {
  session_->set_phase(0, "building the network");
  MOTLEY_ASSIGN(loss_, learn::parse_loss(job_.loss));
  metric_ = learn::default_metrics(loss_).front();
  MOTLEY_ASSIGN(dtype_, learn::parse_dtype(job_.model_dtype));
  const std::string device = device_of(job_, cluster_, role_.rank, role_.local_rank);
  MOTLEY_ASSIGN(device_, learn::parse_device(device));

  MOTLEY_ASSIGN(stage_, make_stage());
  MOTLEY_ASSIGN(optimizer_, learn::Optimizer::create(parts_.optimizer, stage_->parameters()));
  MOTLEY_ASSIGN(buckets_, learn::GradientBuckets::create(stage_->parameters(),
                                                         static_cast<std::size_t>(job_.exchange_bucket_bytes)));
  if (learn::has_batch_norm(*stage_)) {
    batch_norm_.emplace(*stage_);
    if (parts_.exchange.staleness) {
      return fail(ErrorCode::kInvalidInput,
                  "model.norm: the network has BatchNorm, whose statistics all workers combine in every step; accepted "
                  "with exchange.consistency {}: networks without it (model.norm: group or none)",
                  job_.exchange_consistency);
    }
  }

  exchange::ExchangeOptions exchange = parts_.exchange;
  exchange::Layout layout;
  layout.type = dtype_ == torch::kFloat64 ? exchange::DataType::kFloat64 : exchange::DataType::kFloat32;
  layout.bucket_elements = buckets_->bucket_elements();
  const Deadline deadline = Deadline::after(job_.join_seconds);
  if (exchange.method == exchange::Method::kAuto && !job_.exchange_servers.empty()) {
    MOTLEY_ASSIGN(exchange.servers, servers_of(job_));
    MOTLEY_ASSIGN(const exchange::MethodChoice choice,
                  exchange::measure_and_choose(*session_, *group_, exchange, layout, deadline));
    exchange.method = choice.method;
    if (writes()) {
      spdlog::info("exchange.method auto: {}", choice.explanation());
    }
  }
  if (exchange.method == exchange::Method::kParameterServer) {
    const auto elements = buckets_->bucket_elements();
    const double count = static_cast<double>(std::accumulate(elements.begin(), elements.end(), std::size_t{0}));
    const double bytes = count * (exchange.wire == exchange::WireType::kNative ? 4 : 2);
    MOTLEY_ASSIGN(service_, place_servers(job_, *session_, *group_, *secret_, bytes, exchange));
  }
  if (layout_) {
    if (layout_->stage(role_.rank).exchange != plan::Exchange::kParameterServer) {
      exchange.method =
          exchange.method == exchange::Method::kParameterServer ? exchange::Method::kAuto : exchange.method;
    }
    exchange.job_suffix = fmt::format("/stage-{}", layout_->stage_of(role_.rank));
  }
  if (exchange.wire == exchange::WireType::kTopK && writes() && (job_.optimizer_name != "sgd" || job_.momentum > 0)) {
    spdlog::warn(
        "exchange.wire: top-k sends small gradients late and all at once, which momentum and Adam take for something "
        "that lasts: best with optimizer.name sgd and optimizer.momentum 0, else with a larger exchange.top_k");
  }
  if (exchange.wire == exchange::WireType::kAuto) {
    MOTLEY_ASSIGN(exchange.wire, exchange::choose_wire(*session_, *group_, exchange, layout, deadline));
  }
  if (layout.bucket_elements.empty()) {  // a stage of layers that train nothing
    exchange.method = exchange::Method::kAuto;
    stage_alone_ = transport::make_partial_session(*session_, {role_.rank}, kAloneNumber);
  }
  MOTLEY_ASSIGN(exchange_, exchange::make_exchange(stage_alone_ ? *stage_alone_ : peers(), exchange));
  MOTLEY_TRY(exchange_->prepare(layout, Deadline::after(job_.join_seconds)));
  std::vector<std::span<std::byte>> memory;
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    memory.push_back(exchange_->buffer(bucket));
  }
  MOTLEY_TRY(buckets_->bind(memory));

  if (layout_ && !job_.emulation.empty()) {
    MOTLEY_ASSIGN(stage_pace_, StagePace::read(job_.emulation, layout_->plan(), layout_->stage(role_.rank),
                                               layout_->type_of(role_.rank)));
    pace_.emplace(SteadyClock::instance(), buckets_->count(), 0.0);  // of backward alone
  } else {
    pace_.emplace(SteadyClock::instance(), buckets_->count());
  }
  TimelineOptions timeline;
  timeline.first_steps = job_.timeline_steps / 2;
  timeline.every = job_.timeline_steps == 0 ? steps_ + 1 : std::max<std::int64_t>(1, 2 * steps_ / job_.timeline_steps);
  timeline_.emplace(role_.rank, description(role_.rank).name, timeline);
  return {};
}

// Sends root's text to all ranks.
Result<std::string> broadcast_text(exchange::Group& group, std::string text, int root, const Deadline& deadline) {
  auto size = static_cast<std::uint64_t>(text.size());
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(&size, 1)), root, deadline));
  text.resize(size);
  MOTLEY_TRY(group.broadcast(std::as_writable_bytes(std::span(text.data(), text.size())), root, deadline));
  return text;
}

// The tensors of these names; of an optimizer's state ("<name>.<field>") those of these parameters.
learn::NamedTensors only_of(const learn::NamedTensors& wanted, const learn::NamedTensors& all, bool of_optimizer) {
  std::unordered_set<std::string> names;
  for (const learn::NamedTensor& tensor : wanted) {
    names.insert(tensor.name);
  }
  learn::NamedTensors found;
  for (const learn::NamedTensor& tensor : all) {
    if (names.contains(of_optimizer ? tensor.name.substr(0, tensor.name.rfind('.')) : tensor.name)) {
      found.push_back(tensor);
    }
  }
  return found;
}

// What each stage's first rank has, put together; complete on rank 0 and nowhere else.
Result<std::string> Worker::collect(const std::function<Result<learn::NamedTensors>()>& own) {
  const Deadline deadline = Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds);
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(step_)}};
  learn::NamedTensors all;
  for (int stage = 0; stage < (layout_ ? layout_->stages() : 1); ++stage) {
    const int root = layout_ ? layout_->ranks_of(stage).front() : 0;
    if (root == role_.rank) {
      MOTLEY_ASSIGN(all, own());
    }
    if (stage == 0) continue;
    std::string text;
    if (root == role_.rank) {
      MOTLEY_ASSIGN(text, learn::encode_tensors(all));
    }
    MOTLEY_ASSIGN(text, broadcast_text(*group_, std::move(text), root, deadline));
    if (writes()) {
      MOTLEY_ASSIGN(const learn::TensorFile part, learn::decode_tensors(text));
      all.insert(all.end(), part.tensors.begin(), part.tensors.end());
    }
  }
  return writes() ? learn::encode_tensors(all, metadata) : std::string();
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
    return fail(ErrorCode::kInvalidInput,
                "tables.place: server; the checkpoint to go on from was written without rows on servers; accepted: "
                "worker");
  }
  MOTLEY_ASSIGN(auto servers, servers_of(job_));
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
        MOTLEY_ASSIGN(start.files["weights.safetensors"], learn::encode_tensors(stage_->state()));
      }
      start.files["state.json"] = "";
    }
  }
  const Deadline deadline = Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds);
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "state.json", "audit.bin"}) {
    MOTLEY_ASSIGN(start.files[name], broadcast_text(*group_, std::move(start.files[name]), 0, deadline));
  }
  if (!start.files["weights.safetensors"].empty()) {
    MOTLEY_ASSIGN(learn::TensorFile weights, learn::decode_tensors(start.files["weights.safetensors"]));
    if (layout_) {
      weights.tensors = only_of(stage_->state(), weights.tensors, false);
    }
    MOTLEY_TRY(explain(stage_->load_state(weights.tensors), resume));
  }

  // Of a planned job's ranks some have layers that normalise and some have none: what all must agree on depends on
  // none.
  const bool has_batch_norm = !layout_ && batch_norm_.has_value();
  MOTLEY_ASSIGN(data::PartitionOptions partition, partition_of(job_, cluster_, has_batch_norm));
  if (layout_) {
    auto shares = StageShares::create(*layout_, partition);
    if (!shares) return fail(shares.error().within(job_.plan));
    stage_shares_ = std::move(*shares);
  } else {
    MOTLEY_ASSIGN(partition_, data::Partition::create(std::move(partition)));
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
    MOTLEY_ASSIGN(learn::TensorFile state, learn::decode_tensors(start.files["optimizer.safetensors"]));
    if (layout_) {
      state.tensors = only_of(stage_->parameters(), state.tensors, true);
    }
    MOTLEY_TRY(explain(optimizer_->load_state(state.tensors), resume));
    bool restored = false;
    if (stage_shares_ && !saved.stage_shares.empty()) {
      MOTLEY_ASSIGN(restored, stage_shares_->restore(saved.stage_shares));
    } else if (partition_ && !saved.partition.empty()) {
      MOTLEY_ASSIGN(restored, partition_->restore(saved.partition));
    }
    if (!restored && writes()) {
      spdlog::info("the plan, the workers or the batch have changed: shares start afresh");
    }
    if (writes()) {  // the counts of all ranks so far; the others count from zero
      MOTLEY_ASSIGN(counts_, data::UseCounts::parse(start.files["audit.bin"]));
    } else {
      counts_->start(ledger.epoch);
    }
  }
  MOTLEY_TRY(open_table(table, deadline));
  if (exchange_->updates_weights()) {
    MOTLEY_ASSIGN(served_,
                  ServedWeights::begin(*exchange_, *buckets_, *optimizer_, parts_.exchange.update.rule, deadline));
  }
  MOTLEY_ASSIGN(ledger_, data::Ledger::open(ledger));
  if (next_evaluation_ == 0) {
    next_evaluation_ = job_.evaluate_every_epochs;
  }
  return {};
}

Status Worker::open_outputs() {
  started_ = monotonic_seconds();
  next_checkpoint_ = started_ + job_.checkpoint_every_seconds;
  if (!writes()) {
    return {};
  }
  progress_.emplace();
  moves_ = share_moves();
  MOTLEY_TRY(write_file(run_.job_file(), format_job(job_)));
  MOTLEY_TRY(run_.roll_back_metrics(step_));
  MOTLEY_ASSIGN(metrics_, JsonLines::open(run_.metrics_file()));
  MOTLEY_ASSIGN(TensorBoardWriter tensorboard, TensorBoardWriter::open(run_.folder() / "tensorboard", wall_seconds()));
  tensorboard_.emplace(std::move(tensorboard));
  std::vector<std::string> exchanges;
  for (int stage = 0; layout_ && stage < layout_->stages(); ++stage) {
    exchanges.emplace_back(plan::to_string(layout_->plan().stages[static_cast<std::size_t>(stage)].exchange));
  }
  MOTLEY_TRY(write_run_file(run_, job_, cluster_,
                            layout_ ? fmt::format("{} by stage", fmt::join(exchanges, ", ")) : exchange_->name()));
  const std::string work = fmt::format("{} training samples, {} workers, {} steps of {} samples", train_data_->size(),
                                       role_.size, steps_, job_.batch);
  if (layout_) {
    spdlog::info("{} by the plan '{}': {}, in {} micro-batches through {} stages ({})", job_.model_name, job_.plan,
                 work, layout_->plan().micro_batches, layout_->stages(), plan::to_string(layout_->plan().schedule));
  } else {
    spdlog::info("{}: {} parameters, {}, exchange: {}", stage_->name(), stage_->parameter_count(), work,
                 exchange_->name());
  }
  for (int rank = 0; rank < role_.size; ++rank) {
    if (const auto& emulation = description(rank).emulation) {
      spdlog::info("worker {} ({}) is emulated: {} a sample", rank, description(rank).name,
                   format_seconds(emulation->seconds_per_sample));
    }
  }
  if (stage_pace_) {
    spdlog::info("all workers are emulated: each stage takes as long as '{}' says for its device type", job_.emulation);
    MOTLEY_TRY(event("emulation", fmt::format("by the profile '{}'", job_.emulation)));
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

Status Worker::loop() {
  bool stop = false;
  while (step_ < steps_ && !stop) {
    MOTLEY_TRY(step(stop));
  }
  if (stop) {
    if (saved_step_ != step_) {
      MOTLEY_TRY(save_checkpoint());
    }
    MOTLEY_TRY(event("interrupted", fmt::format("after step {}", step_)));
    return fail(ErrorCode::kInterrupted, "stopped after step {}; a checkpoint was written", step_);
  }
  if (evaluated_step_ != step_ && job_.evaluate_every_epochs >= 0) {
    MOTLEY_TRY(evaluate());
  }
  if (saved_step_ != step_) {
    MOTLEY_TRY(save_checkpoint());
  }
  if (ledger_->state().cursor != 0) {
    MOTLEY_TRY(audit_epoch());
  }
  return {};
}

Status Worker::step(bool& stop) {
  ++step_;
  const auto number = static_cast<std::uint64_t>(step_);
  const data::Range window = ledger_->next(static_cast<std::uint32_t>(job_.batch));
  const bool control = is_control_step(job_, step_);
  data::StepPlan plan;
  if (layout_) {
    for (int rank = 0; rank < role_.size; ++rank) plan.shares.push_back(layout_->samples(rank, window));
  } else if (control) {
    plan.shares = equal_shares(window.size(), partition_->options().limits);
  } else {
    MOTLEY_ASSIGN(plan, partition_->plan(number, window.size()));
  }

  const double factor = learn::learning_rate_factor(schedule_of(job_, steps_), step_ - 1);
  const double learning_rate = factor * parts_.optimizer.learning_rate;
  const bool meets = meets_in(window, control);
  exchange_->set_learning_rate(learning_rate);
  exchange_->begin_step(window.size(), meets);

  Report report;
  micro_batch_ = 0;
  const double cpu_before = process_cpu_seconds();
  const double waited_before = table_ ? table_->waited() : 0;
  step_begin_ = monotonic_seconds();
  if (unreported_.empty()) {
    interval_begin_ = step_begin_;
  }
  buckets_->zero();
  if (batch_norm_) {
    batch_norm_->begin_step();
  }
  MOTLEY_TRY(layout_        ? compute_planned(plan, window, report)
             : plan.pulls() ? compute_pulled(plan, window, report)
                            : compute_share(plan, window, report));
  computed_ = monotonic_seconds();
  report.compute = computed_ - step_begin_;
  if (table_) {
    report.waited += table_->waited() - waited_before;
    MOTLEY_TRY(table_->finish_step(weight_, step_deadline()));
  }

  session_->set_phase(number, "exchange");
  const Deadline deadline = wait_deadline(meets);
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    MOTLEY_ASSIGN(const exchange::Outcome outcome, exchange_->wait(bucket, deadline));
    report.staleness = std::max<double>(report.staleness, outcome.staleness);
    MOTLEY_TRY(served_ ? served_->fetch(bucket) : buckets_->fetch(bucket));
  }
  if (batch_norm_) {
    std::vector<double> sums = batch_norm_->contribution(report.samples);
    MOTLEY_TRY(peer_group().all_reduce_sum(sums, deadline));
    batch_norm_->finish_step(sums);
  }
  const double exchanged = monotonic_seconds();
  report.total = exchanged - step_begin_;
  report.cpu = process_cpu_seconds() - cpu_before;
  report.stop = stop_requested != 0 ? 1 : 0;
  const bool due_by_time = job_.checkpoint_every_seconds > 0 && exchanged >= next_checkpoint_;
  report.checkpoint = writes() && (checkpoint_is_due() || due_by_time) ? 1 : 0;
  unreported_.push_back(
      {step_, control, plan.pulls(), learning_rate, ledger_->state(), static_cast<double>(window.size()), report});
  if (exchange_->relaxed()) {
    timeline_->record(Phase::kWait, step_, computed_, exchanged);
  }
  return meets ? meet(window, stop) : ledger_->commit(window);
}

double Worker::epochs_done(std::uint32_t cursor) const {
  return static_cast<double>(ledger_->state().epoch) +
         static_cast<double>(cursor) / static_cast<double>(train_data_->size());
}

bool Worker::evaluation_is_due(double epochs) const {
  return job_.evaluate_every_epochs > 0 && epochs >= next_evaluation_ - 1e-9;
}

bool Worker::checkpoint_is_due() const {
  return job_.checkpoint_every_steps > 0 && step_ % job_.checkpoint_every_steps == 0;
}

// Every rank comes to the same answer, whenever it asks.
bool Worker::meets_in(data::Range window, bool control) const {
  return !exchange_->relaxed() || unreported_.size() + 1 >= kMeetingSteps || step_ == steps_ ||
         window.end == train_data_->size() || evaluation_is_due(epochs_done(window.end)) || checkpoint_is_due() ||
         control != is_control_step(job_, step_ + 1);
}

// Where all meet, the slowest rank may be some steps behind, each of which has its time.
Deadline Worker::wait_deadline(bool meets) const {
  const double behind = meets && exchange_->relaxed()
                            ? std::min<double>(*parts_.exchange.staleness, static_cast<double>(unreported_.size()))
                            : 0;
  return Deadline::after((1 + behind) * job_.step_seconds);
}

// All ranks have done the same steps and hold the same weights: they exchange what they measured, and do what is to be
// done together.
Status Worker::meet(data::Range window, bool& stop) {
  const auto number = static_cast<std::uint64_t>(step_);
  session_->set_phase(number, "gathering times");
  const std::size_t steps = unreported_.size();
  std::vector<Report> own;
  for (const StepRecord& record : unreported_) {
    own.push_back(record.report);
  }
  const auto* values = reinterpret_cast<const double*>(own.data());
  MOTLEY_ASSIGN(const std::vector<double> all, group_->all_gather({values, steps * kReportValues}, step_deadline()));
  std::vector<std::vector<Report>> reports(steps, std::vector<Report>(static_cast<std::size_t>(role_.size)));
  for (std::size_t i = 0; i < steps; ++i) {
    for (std::size_t rank = 0; rank < reports[i].size(); ++rank) {
      std::memcpy(static_cast<void*>(&reports[i][rank]), &all[(rank * steps + i) * kReportValues], sizeof(Report));
    }
    MOTLEY_TRY(check_reports(reports[i], unreported_[i]));
  }

  session_->set_phase(number, "optimizer");
  const double exchanged = step_begin_ + unreported_.back().report.total;
  if (!served_) {
    if (job_.clip_norm > 0) {
      MOTLEY_TRY(clip_gradients());
    }
    MOTLEY_TRY(optimizer_->step(unreported_.back().learning_rate));
  }
  const double ended = monotonic_seconds();
  timeline_->record(Phase::kOptimizer, step_, exchanged, ended);
  if (!exchange_->relaxed()) {
    const double waited_until = std::clamp(step_begin_ + last_compute(reports.back()), computed_, exchanged);
    timeline_->record(Phase::kWait, step_, computed_, waited_until);
    timeline_->record(Phase::kExchange, step_, waited_until, exchanged);
  }

  const std::uint64_t moves = share_moves();
  for (std::size_t i = 0; i < steps; ++i) {
    const StepRecord& record = unreported_[i];
    // Once the shares have moved, what was measured before that is no measurement of the new ones.
    if (!record.control && share_moves() == moves) {
      std::vector<data::Observation> observations;
      const double last = last_compute(reports[i]);
      for (const Report& r : reports[i]) {
        // What follows the slowest worker's computation is common to all: exchange that is not hidden, and the
        // optimizer.
        const double common = std::max(0.0, r.total - last);
        observations.push_back(
            {static_cast<std::uint32_t>(r.samples), r.compute - r.waited, (last - r.compute) + r.waited + common});
      }
      const auto at = static_cast<std::uint64_t>(record.step);
      MOTLEY_TRY(stage_shares_ ? stage_shares_->observe(at, observations) : partition_->observe(at, observations));
    }
    MOTLEY_TRY(write_step(reports[i], record, (ended - interval_begin_) / static_cast<double>(steps)));
  }
  unreported_.clear();
  const std::uint64_t epoch = ledger_->state().epoch;
  MOTLEY_TRY(ledger_->commit(window));
  if (ledger_->state().epoch != epoch) {
    MOTLEY_TRY(audit_epoch());
  }

  if (const double done = epochs_done(ledger_->state().cursor); evaluation_is_due(done)) {
    while (evaluation_is_due(done)) {
      next_evaluation_ += job_.evaluate_every_epochs;
    }
    MOTLEY_TRY(evaluate());
  }
  stop = std::any_of(reports.back().begin(), reports.back().end(), [](const Report& r) { return r.stop != 0; });
  if (reports.back().front().checkpoint != 0) {
    MOTLEY_TRY(save_checkpoint());
  }
  return {};
}

// By the norm of the whole network's gradient, of which each stage has a part and each of its ranks the same one.
Status Worker::clip_gradients() {
  if (!layout_) {
    MOTLEY_TRY(learn::clip_gradients(stage_->parameters(), job_.clip_norm));
    return {};
  }
  MOTLEY_ASSIGN(const double own, learn::clip_gradients(stage_->parameters()));  // their norm
  double squares[] = {own * own / peers().membership().size()};
  MOTLEY_TRY(group_->all_reduce_sum(squares, step_deadline()));
  if (own > 0 && squares[0] > job_.clip_norm * job_.clip_norm) {
    MOTLEY_TRY(learn::clip_gradients(stage_->parameters(), own * job_.clip_norm / std::sqrt(squares[0])));
  }
  return {};
}

Result<data::Batch> Worker::load(std::span<const std::uint32_t> samples, Report& report) {
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "loading");
  if (!read_ahead_.empty() && std::ranges::equal(samples, read_ahead_.front())) {
    read_ahead_.pop_front();
  } else {
    loader_->discard();
    read_ahead_.clear();
    loader_->request(samples);
  }
  MOTLEY_ASSIGN(data::Batch batch, loader_->take(step_deadline()));
  if (!layout_ || layout_->is_first(role_.rank)) {  // the last stage reads their targets, and counts them not again
    counts_->record(batch.samples);
  }
  const double end = monotonic_seconds();
  report.load += end - begin;
  timeline_->record(Phase::kLoad, step_, begin, end);
  return batch;
}

// The samples of a window that are this rank's, in the order in which it computes them.
std::vector<std::uint32_t> Worker::own_samples(data::Range window, const data::StepPlan& plan) const {
  std::vector<std::uint32_t> own;
  const auto append = [&](data::Range positions) {
    const auto samples = ledger_->samples(positions);
    own.insert(own.end(), samples.begin(), samples.end());
  };
  if (pipeline_) {
    for (const data::Range& rows : pipeline_->own_rows(window)) append(rows);
  } else {
    append(data::part_of(window, plan.shares, role_.rank));
  }
  return own;
}

// Reads what this rank will need if the shares stay as they are, kReadAhead steps; load() checks.
void Worker::read_ahead(data::Range window, const data::StepPlan& plan) {
  while (!plan.pulls() && read_ahead_.size() < kReadAhead) {
    const auto begin = window.end + static_cast<std::uint32_t>(read_ahead_.size()) * window.size();
    const data::Range next{begin, std::min(begin + window.size(), train_data_->size())};
    if (next.begin >= next.end || next.size() != window.size()) {
      return;
    }
    std::vector<std::uint32_t> samples = own_samples(next, plan);
    if (samples.empty() || !loader_->request(samples)) {
      return;
    }
    read_ahead_.push_back(std::move(samples));
  }
}

Status Worker::compute_share(const data::StepPlan& plan, data::Range window, Report& report) {
  const std::vector<std::uint32_t> samples = own_samples(window, plan);
  weight_ = static_cast<double>(samples.size());
  if (samples.empty()) {
    return start_exchange(0);
  }
  MOTLEY_ASSIGN(data::Batch batch, load(samples, report));
  read_ahead(window, plan);
  MOTLEY_TRY(compute_batch(batch, weight_, true, report));
  loader_->recycle(std::move(batch));
  return {};
}

// Micro-batches go through this rank's stage; the first stage reads their features, the last one their targets.
Status Worker::compute_planned(const data::StepPlan& plan, data::Range window, Report& report) {
  weight_ = layout_->samples(role_.rank, window);
  report.samples = weight_;
  if (weight_ == 0) {
    MOTLEY_TRY(start_exchange(0));
  }
  std::optional<data::Batch> batch;
  torch::Tensor inputs, targets;
  if (weight_ > 0 && (layout_->is_first(role_.rank) || layout_->is_last(role_.rank))) {
    MOTLEY_ASSIGN(batch, load(own_samples(window, plan), report));
    read_ahead(window, plan);
    if (layout_->is_first(role_.rank)) {
      MOTLEY_ASSIGN(inputs, inputs_of(*batch, *train_data_));
    }
    MOTLEY_TRY(ask_for_rows());
    targets = batch_targets(*batch, *train_data_, device_, dtype_);
  }
  const auto number = static_cast<std::uint64_t>(step_);
  Pipeline::Hooks hooks;
  hooks.take_outputs = [&](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
    const torch::Tensor own = targets.narrow(0, rows.begin, rows.size());
    MOTLEY_ASSIGN(const learn::LossOutcome loss, learn::compute_loss(loss_, outputs, own, weight_));
    MOTLEY_TRY(see_outputs(outputs, own, report));
    return loss.output_gradient;
  };
  hooks.before_forward = [&](std::int64_t micro_batch, data::Range rows) {
    if (stage_pace_) {
      report.target += stage_pace_->forward.at(rows.size()) + stage_pace_->backward.at(rows.size());
      pace_->begin(stage_pace_->forward.at(rows.size()));
    }
    learn::seed_randomness(static_cast<std::uint64_t>(job_.seed), number, role_.rank, micro_batch);
  };
  hooks.before_last_backward = [&] {
    buckets_->arm([this, number](int bucket) {
      pace_->after_bucket(bucket);
      return exchange_->start(number, bucket, weight_);
    });
  };
  if (stage_pace_) {
    report.target = 0;
    hooks.after_forward = [&] { pace_->finish(); };
    hooks.before_backward = [&](data::Range rows) { pace_->begin(stage_pace_->backward.at(rows.size())); };
    hooks.after_backward = [&] { pace_->after_backward(); };
  }
  if (table_) {
    hooks.take_input_gradient = [&](data::Range rows, const torch::Tensor& gradient) {
      return table_->push(batch->ids, rows.begin, gradient, weight_);
    };
  }
  hooks.record = [&](Phase phase, double begin, double end) { timeline_->record(phase, step_, begin, end); };
  MOTLEY_TRY(pipeline_->train(number, window, inputs, step_deadline(), hooks));
  if (weight_ > 0) {
    MOTLEY_TRY(buckets_->flush());
  }
  report.waited = pipeline_->waited();
  if (batch) {
    loader_->recycle(std::move(*batch));
  }
  return {};
}

// Claims shards from the counter that all ranks share until none is left. The number of samples is known only then, so
// gradients of sums are added up and divided at the end.
Status Worker::compute_pulled(const data::StepPlan& plan, data::Range window, Report& report) {
  const data::PullPlan shards(window, plan.shards);
  const Deadline deadline = step_deadline();
  for (;;) {
    MOTLEY_ASSIGN(const std::int64_t claimed, group_->fetch_add(0, 1, deadline));
    const std::int64_t index = claimed - pulled_;
    if (index >= shards.shards()) {
      break;
    }
    MOTLEY_ASSIGN(data::Batch batch, load(ledger_->samples(shards.shard(static_cast<std::uint32_t>(index))), report));
    MOTLEY_TRY(compute_batch(batch, 1, false, report));
    loader_->recycle(std::move(batch));
  }
  // Every rank claims once in vain, so all know where the next step's shards begin.
  pulled_ += shards.shards() + role_.size;
  weight_ = report.samples;
  if (weight_ > 0) {
    buckets_->scale(1 / weight_);
  }
  return start_exchange(weight_);
}

Status Worker::start_exchange(double weight) {
  buckets_->arm(
      [this, weight](int bucket) { return exchange_->start(static_cast<std::uint64_t>(step_), bucket, weight); });
  return buckets_->flush();
}

Status Worker::compute_batch(const data::Batch& batch, double divisor, bool last, Report& report) {
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  MOTLEY_ASSIGN(const torch::Tensor inputs, inputs_of(batch, *train_data_));
  const torch::Tensor targets = batch_targets(batch, *train_data_, device_, dtype_);
  const std::int64_t parts = std::min(job_.accumulation, count);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - begin;
    MOTLEY_TRY(compute_micro_batch(batch, begin, inputs.narrow(0, begin, size), targets.narrow(0, begin, size), divisor,
                                   last && part == parts - 1, report));
  }
  return {};
}

// Asks for the rows of the next batch as soon as it is known which they are.
Status Worker::ask_for_rows() {
  if (table_) {
    if (const auto next = loader_->next_ids(); !next.empty()) {
      return table_->read_ahead(next);
    }
  }
  return {};
}

// A batch as the network reads it, with the rows that its samples look up.
Result<torch::Tensor> Worker::inputs_of(const data::Batch& batch, const data::Dataset& data) {
  if (!lookups_) {
    return batch_inputs(batch, data, device_, dtype_);
  }
  torch::Tensor rows;
  if (table_) {
    const double begin = monotonic_seconds();
    session_->set_phase(static_cast<std::uint64_t>(step_), "pulling rows");
    MOTLEY_ASSIGN(rows, table_->rows(batch.ids, step_deadline()));
    timeline_->record(Phase::kLoad, step_, begin, monotonic_seconds());
  }
  const torch::Tensor features = batch_inputs(batch, data, torch::kCPU, torch::kFloat32);
  return learn::lookup_input(*lookups_, features, batch.ids, rows).to(device_, dtype_);
}

// `inputs` are those of the batch's samples from `first` on.
Status Worker::compute_micro_batch(const data::Batch& batch, std::int64_t first, const torch::Tensor& inputs,
                                   const torch::Tensor& targets, double divisor, bool last, Report& report) {
  const auto number = static_cast<std::uint64_t>(step_);
  const double samples = static_cast<double>(inputs.size(0));
  const double begin = monotonic_seconds();
  const auto& emulation = description(role_.rank).emulation;
  if (emulation) {
    // The micro-batch's own part of the step's time, less what loading took already.
    const auto seconds_of = [&](double count) {
      return cluster::emulated_seconds(*emulation, number, static_cast<std::int64_t>(count),
                                       static_cast<std::uint64_t>(job_.seed), role_.rank);
    };
    const double target = seconds_of(report.samples + samples);
    report.target = target;
    pace_->begin(std::max(0.0, target - (begin - step_begin_)));
  }
  report.samples += samples;
  learn::seed_randomness(static_cast<std::uint64_t>(job_.seed), number, role_.rank, micro_batch_);

  session_->set_phase(number, "forward");
  const std::int64_t id = micro_batch_++;
  MOTLEY_TRY(ask_for_rows());
  MOTLEY_ASSIGN(const learn::Tensors outputs, stage_->forward(id, {inputs}));
  MOTLEY_ASSIGN(const learn::LossOutcome loss, learn::compute_loss(loss_, outputs.front(), targets, divisor));
  MOTLEY_TRY(see_outputs(outputs.front(), targets, report));
  pace_->after_forward();
  const double forwarded = monotonic_seconds();
  timeline_->record(Phase::kForward, step_, begin, forwarded);

  session_->set_phase(number, "backward");
  if (last) {
    buckets_->arm([this, number](int bucket) {
      pace_->after_bucket(bucket);
      return exchange_->start(number, bucket, weight_);
    });
  }
  MOTLEY_ASSIGN(const learn::Tensors input_gradients, stage_->backward(id, {loss.output_gradient}));
  if (table_) {
    MOTLEY_TRY(table_->push(batch.ids, first, input_gradients.front(), divisor));
  }
  if (last) {
    MOTLEY_TRY(buckets_->flush());
  }
  pace_->after_backward();
  timeline_->record(Phase::kBackward, step_, forwarded, monotonic_seconds());
  return {};
}

// Adds a micro-batch's loss and metric to the report.
Status Worker::see_outputs(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const {
  learn::Evaluation seen(loss_, {metric_});
  MOTLEY_TRY(seen.add(outputs, targets));
  report.loss_sum += seen.totals()[0];
  report.loss_count += seen.totals()[1];
  report.metric_sum += seen.totals()[2];
  report.metric_count += seen.totals()[3];
  return {};
}

// What every rank finds out alike: a loss that is no number, an emulation that this machine is too busy for.
Status Worker::check_reports(const std::vector<Report>& reports, const StepRecord& record) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!std::isfinite(reports[rank].loss_sum)) {
      return fail(Error{ErrorCode::kDiverged,
                        fmt::format("the loss is {} in step {} on rank {}; the last checkpoint is intact ({}). A lower "
                                    "optimizer.learning_rate, schedule.warmup_steps or clip_norm helps",
                                    reports[rank].loss_sum, record.step, rank,
                                    saved_step_ > 0 ? fmt::format("step {}", saved_step_) : "none was written yet"),
                        -1});
    }
  }
  lateness_.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const double took = (reports[rank].compute - reports[rank].waited) / reports[rank].target;
    if (reports[rank].target > 0) {
      lateness_[rank].steps += 1;
      lateness_[rank].late += took > kLateFactor ? 1 : 0;
      lateness_[rank].excess += took > kLateFactor ? took - 1 : 0;
    }
  }
  if (record.control) {
    return {};
  }
  loads_.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    loads_[rank].name = fmt::format("rank {} ({})", rank, description(static_cast<int>(rank)).name);
    loads_[rank].cpu_seconds += reports[rank].cpu / static_cast<double>(kEmulationCheckSteps);
    if (reports[rank].target >= 0) {
      loads_[rank].emulated_seconds =
          loads_[rank].emulated_seconds.value_or(0) + reports[rank].target / static_cast<double>(kEmulationCheckSteps);
    }
  }
  checked_seconds_ += reports.front().total / static_cast<double>(kEmulationCheckSteps);
  if (++checked_steps_ < kEmulationCheckSteps) {
    return {};
  }
  const Status honest = cluster::check_emulation(loads_, available_cores(), checked_seconds_);
  checked_steps_ = 0;
  checked_seconds_ = 0;
  loads_.clear();
  return honest;
}

Status Worker::write_step(const std::vector<Report>& reports, const StepRecord& record, double step_seconds) {
  if (!writes()) {
    return {};
  }
  const double size = static_cast<double>(train_data_->size());
  const bool relaxed = exchange_->relaxed();
  const double last = last_compute(reports);
  Report sum;
  for (const Report& r : reports) {
    sum.loss_sum += r.loss_sum;
    sum.loss_count += r.loss_count;
    sum.metric_sum += r.metric_sum;
    sum.metric_count += r.metric_count;
  }
  const double loss = sum.loss_sum / sum.loss_count;
  const double metric = sum.metric_sum / sum.metric_count;
  const bool has_accuracy = metric_ == learn::Metric::kAccuracy;
  const data::PartitionDiagnostics diagnostics = partition_ ? partition_->diagnostics() : data::PartitionDiagnostics();

  Json line = {{"step", record.step},
               {"epoch", record.ledger.epoch},
               {"time", monotonic_seconds() - started_},
               {"loss", loss},
               {has_accuracy ? "accuracy" : "mean_absolute_error", metric},
               {"learning_rate", record.learning_rate},
               {"step_seconds", step_seconds},
               {"mode", layout_          ? "plan"
                        : record.control ? "equal"
                        : record.pulls   ? "pull"
                                         : job_.shares},
               {"control", record.control}};
  for (const char* key : {"shares", "samples", "compute_seconds", "load_seconds", "exchange_seconds", "wait_seconds"}) {
    line[key] = Json::array();
  }
  for (const Report& r : reports) {
    // At a step of its own a rank waits for the server, which may wait for others; else it waits for the last rank, and
    // by a plan for its neighbours, too.
    const double wait = (relaxed ? r.total : last) - r.compute + r.waited;
    line["shares"].push_back(static_cast<std::int64_t>(r.samples));
    line["samples"].push_back(static_cast<std::int64_t>(r.samples));
    line["compute_seconds"].push_back(r.compute - r.load - r.waited);
    line["load_seconds"].push_back(r.load);
    line["wait_seconds"].push_back(wait);
    line["exchange_seconds"].push_back(std::max(0.0, r.total - r.compute - wait + r.waited));
    if (relaxed) {
      line["staleness"].push_back(static_cast<std::int64_t>(r.staleness));
    }
  }
  if (layout_ && layout_->plan().predicted.step_seconds > 0) {
    line["predicted_seconds"] = layout_->plan().predicted.step_seconds;
  } else if (diagnostics.predicted > 0) {
    line["predicted_seconds"] = diagnostics.predicted + diagnostics.common;
    line["bound_seconds"] = diagnostics.bound;
    line["equal_seconds"] = data::step_seconds(
        diagnostics.costs, equal_shares(static_cast<std::uint32_t>(job_.batch), partition_->options().limits));
  }
  if (share_moves() != moves_) {
    moves_ = share_moves();
    line["decision"] = stage_shares_ ? stage_shares_->reason() : diagnostics.reason;
  }
  MOTLEY_TRY(metrics_->write(line));

  MOTLEY_TRY(tensorboard_->scalar("train/loss", record.step, loss));
  MOTLEY_TRY(tensorboard_->scalar(has_accuracy ? "train/accuracy" : "train/mean_absolute_error", record.step, metric));
  MOTLEY_TRY(tensorboard_->scalar("train/learning_rate", record.step, record.learning_rate));
  MOTLEY_TRY(tensorboard_->scalar("time/step_seconds", record.step, step_seconds));
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    MOTLEY_TRY(tensorboard_->scalar(fmt::format("shares/rank_{}", rank), record.step, reports[rank].samples));
  }

  smooth_step_seconds_ = smooth_step_seconds_ == 0 ? step_seconds : 0.95 * smooth_step_seconds_ + 0.05 * step_seconds;
  ProgressState state;
  state.step = record.step;
  state.steps = steps_;
  state.epoch = static_cast<double>(record.ledger.epoch) + (record.ledger.cursor + record.samples) / size;
  state.loss = loss;
  state.accuracy = has_accuracy ? metric : -1;
  state.samples_per_second = record.samples / smooth_step_seconds_;
  state.seconds_left = static_cast<double>(steps_ - record.step) * smooth_step_seconds_;
  progress_->show(format_progress(state), record.step == steps_);
  return {};
}

Status Worker::evaluate_own_part(learn::Evaluation& evaluation) {
  const std::uint64_t size = test_data_->size();
  const auto ranks = static_cast<std::uint64_t>(role_.size);
  const auto rank = static_cast<std::uint64_t>(role_.rank);
  const auto first = static_cast<std::uint32_t>(size * rank / ranks);
  const auto end = static_cast<std::uint32_t>(size * (rank + 1) / ranks);
  const std::uint32_t block = static_cast<std::uint32_t>(std::min<std::int64_t>(job_.batch, 256));
  data::Batch batch;
  for (std::uint32_t at = first; at < end; at += block) {
    batch.samples.resize(std::min(block, end - at));
    std::iota(batch.samples.begin(), batch.samples.end(), at);
    MOTLEY_TRY(read_batch(*test_data_, batch));
    MOTLEY_ASSIGN(const torch::Tensor inputs, inputs_of(batch, *test_data_));
    MOTLEY_ASSIGN(const learn::Tensors outputs, stage_->forward(0, {inputs}));
    MOTLEY_TRY(evaluation.add(outputs.front(), batch_targets(batch, *test_data_, device_, dtype_)));
  }
  return {};
}

// The test data go through the stages as training data do, a batch at a time.
Status Worker::evaluate_planned(learn::Evaluation& evaluation) {
  const std::uint32_t size = test_data_->size();
  const auto block = static_cast<std::uint32_t>(job_.batch);
  data::Batch batch;
  for (std::uint32_t at = 0; at < size; at += std::min(block, size - at)) {
    const data::Range window{at, at + std::min(block, size - at)};
    batch.samples.clear();
    for (const data::Range& rows : pipeline_->own_rows(window)) {
      for (std::uint32_t sample = rows.begin; sample < rows.end; ++sample) batch.samples.push_back(sample);
    }
    torch::Tensor inputs, targets;
    if (layout_->is_first(role_.rank) || layout_->is_last(role_.rank)) {
      MOTLEY_TRY(read_batch(*test_data_, batch));
      if (layout_->is_first(role_.rank)) {
        MOTLEY_ASSIGN(inputs, inputs_of(batch, *test_data_));
      }
      targets = batch_targets(batch, *test_data_, device_, dtype_);
    }
    Pipeline::Hooks hooks;
    hooks.take_outputs = [&](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
      MOTLEY_TRY(evaluation.add(outputs, targets.narrow(0, rows.begin, rows.size())));
      return torch::Tensor();
    };
    MOTLEY_TRY(pipeline_->evaluate(at, window, inputs, step_deadline(), hooks));
  }
  return {};
}

// Sums and counts of all ranks are added up, so the result is that of one worker.
Status Worker::evaluate() {
  if (!test_data_) {
    return {};
  }
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "evaluation");
  stage_->train(false);
  learn::Evaluation evaluation(loss_, learn::default_metrics(loss_, test_data_->class_count()));
  MOTLEY_TRY(pipeline_ ? evaluate_planned(evaluation) : evaluate_own_part(evaluation));
  stage_->train(true);
  MOTLEY_TRY(
      group_->all_reduce_sum(evaluation.totals(), Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds)));
  evaluated_step_ = step_;
  timeline_->record(Phase::kEvaluate, step_, begin, monotonic_seconds());
  if (!writes()) {
    return {};
  }
  Json values = Json::object();
  std::string text;
  for (const learn::NamedValue& value : evaluation.values()) {
    values[value.name] = value.value;
    text += fmt::format("  test {} {:.4f}", value.name, value.value);
    MOTLEY_TRY(tensorboard_->scalar("test/" + value.name, step_, value.value));
  }
  MOTLEY_TRY(tensorboard_->flush());
  progress_->clear();
  spdlog::info("step {}:{}", step_, text);
  return metrics_->write({{"step", step_},
                          {"epoch", ledger_->state().epoch},
                          {"time", monotonic_seconds() - started_},
                          {"evaluation", values}});
}

// Adds up all ranks' use counts; the result is complete on every rank.
Result<data::UseCounts> Worker::merge_counts() {
  std::vector<double> chunk;
  std::vector<std::uint8_t> merged(counts_->counts().size());
  for (std::size_t at = 0; at < merged.size(); at += kAuditChunk) {
    const auto part = counts_->counts().subspan(at, std::min(kAuditChunk, merged.size() - at));
    chunk.assign(part.begin(), part.end());
    MOTLEY_TRY(group_->all_reduce_sum(chunk, step_deadline()));
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      merged[at + i] = static_cast<std::uint8_t>(std::min(255.0, chunk[i]));
    }
  }
  return data::UseCounts(counts_->epoch(), std::move(merged));
}

// At an epoch's end (and the job's): were all its samples used exactly once?
Status Worker::audit_epoch() {
  MOTLEY_ASSIGN(const data::UseCounts merged, merge_counts());
  MOTLEY_ASSIGN(const std::uint32_t wrong, merged.not_used_exactly_once(ledger_->state()));
  not_used_once_ += wrong;
  if (ledger_->state().epoch != counts_->epoch()) {
    counts_->start(ledger_->state().epoch);
  }
  if (!writes()) {
    return {};
  }
  if (wrong > 0) {
    spdlog::error("epoch {}: {} samples were not used exactly once", merged.epoch(), wrong);
  }
  return metrics_->write({{"step", step_},
                          {"epoch", merged.epoch()},
                          {"time", monotonic_seconds() - started_},
                          {"event", "audit"},
                          {"text", fmt::format("epoch {}: {} samples not used exactly once", merged.epoch(), wrong)},
                          {"samples_not_used_exactly_once", wrong}});
}

Status Worker::save_checkpoint() {
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "checkpoint");
  MOTLEY_ASSIGN(const data::UseCounts merged, merge_counts());
  MOTLEY_ASSIGN(std::string weights, collect([&]() -> Result<learn::NamedTensors> { return stage_->state(); }));
  MOTLEY_ASSIGN(std::string optimizer, collect([&]() -> Result<learn::NamedTensors> {
                  if (!served_) return optimizer_->state();
                  return served_->optimizer_state(Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds));
                }));
  if (writes()) {
    Checkpoint checkpoint;
    checkpoint.step = step_;
    checkpoint.files["weights.safetensors"] = std::move(weights);
    checkpoint.files["optimizer.safetensors"] = std::move(optimizer);
    checkpoint.files["audit.bin"] = merged.serialise();
    if (table_) {
      MOTLEY_TRY(table_->save(Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds)));
    }
    checkpoint.files["state.json"] = format_state(
        {step_, ledger_->state(), partition_ ? partition_->save() : "", stage_shares_ ? stage_shares_->save() : "",
         table_ ? table_->servers() : 0, evaluated_step_, next_evaluation_, not_used_once_});
    MOTLEY_TRY(write_checkpoint(run_.checkpoint_folder(), checkpoint, static_cast<int>(job_.checkpoint_keep)));
    MOTLEY_TRY(event("checkpoint", fmt::format("step {}", step_)));
    MOTLEY_TRY(tensorboard_->flush());
  }
  MOTLEY_TRY(group_->barrier(Deadline::after(kCheckpointDeadlineFactor * job_.step_seconds)));
  saved_step_ = step_;
  next_checkpoint_ = monotonic_seconds() + job_.checkpoint_every_seconds;
  timeline_->record(Phase::kCheckpoint, step_, begin, monotonic_seconds());
  return {};
}

Status Worker::event(const std::string& kind, const std::string& text) {
  if (!writes()) {
    return {};
  }
  return metrics_->write({{"step", step_}, {"time", monotonic_seconds() - started_}, {"event", kind}, {"text", text}});
}

// An emulated worker is as slow as its deadlines say only while this machine is not too busy to meet them.
Status Worker::tell_lateness() {
  std::vector<std::string> notes(lateness_.size());
  for (std::size_t rank = 0; rank < lateness_.size(); ++rank) {
    const auto& [steps, late, excess] = lateness_[rank];
    if (static_cast<double>(late) <= kLateShare * static_cast<double>(steps)) {
      continue;
    }
    notes[rank] = fmt::format("{:.0f} % of its steps took {:.0f} % longer than that, as this machine was busy",
                              100.0 * static_cast<double>(late) / static_cast<double>(steps),
                              100 * excess / static_cast<double>(late));
    const std::string text =
        fmt::format("worker {} ({}) is emulated: {}", rank, description(static_cast<int>(rank)).name, notes[rank]);
    spdlog::warn("{}", text);
    MOTLEY_TRY(event("warning", text));
  }
  return note_emulation(run_, notes);
}

Status Worker::finish() {
  if (job_.timeline_steps > 0) {
    MOTLEY_TRY(timeline_->write_part(run_.folder() / "logs"));
  }
  MOTLEY_TRY(group_->barrier(step_deadline()));
  if (!writes()) {
    return {};
  }
  MOTLEY_TRY(tell_lateness());
  MOTLEY_TRY(tensorboard_->flush());
  if (job_.timeline_steps > 0 && session_->membership().on_one_host()) {
    std::vector<std::filesystem::path> parts;
    for (int rank = 0; rank < role_.size; ++rank) {
      parts.push_back(timeline_part(run_.folder() / "logs", rank));
    }
    MOTLEY_TRY(merge_timelines(parts, run_.folder() / "timeline.json"));
  }
  return write_summary(run_, job_);
}

}  // namespace

Result<cluster::Cluster> cluster_of(const Job& job) {
  cluster::Cluster cluster;
  if (!job.cluster.empty()) {
    MOTLEY_ASSIGN(cluster, cluster::read_cluster(job.cluster));
  }
  if (!job.plan.empty()) {
    MOTLEY_ASSIGN(const plan::Plan plan, plan_of(job));
    return planned_cluster(job, plan, std::move(cluster));
  }
  if (!job.cluster.empty()) {
    const auto described = static_cast<std::int64_t>(cluster.workers.size());
    if (job.workers > 0 && described != job.workers) {
      return fail(ErrorCode::kInvalidInput, "workers: {} is given, '{}' describes {}", job.workers, job.cluster,
                  described);
    }
    if (described == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: workers: the file describes none; a job needs at least one",
                  job.cluster);
    }
  } else {
    for (std::int64_t rank = 0; rank < std::max<std::int64_t>(1, job.workers); ++rank) {
      cluster::Worker worker;
      worker.name = fmt::format("worker-{}", rank);
      worker.threads = job.threads;
      cluster.workers.push_back(std::move(worker));
    }
  }
  if (job.batch < static_cast<std::int64_t>(cluster.workers.size())) {
    return fail(ErrorCode::kInvalidInput, "batch: {} is smaller than the number of workers; accepted: {} or more",
                job.batch, cluster.workers.size());
  }
  return cluster;
}

Status train_as_rank(const Job& job, const RunDirectory& run, const Role& role, const std::filesystem::path& hosts,
                     bool resume) {
  MOTLEY_ASSIGN(cluster::Cluster cluster, cluster_of(job));
  if (static_cast<int>(cluster.workers.size()) != role.size) {
    return fail(ErrorCode::kInvalidInput, "{} ranks were started, the job names {} workers{}", role.size,
                cluster.workers.size(),
                !job.plan.empty()      ? " by the plan '" + job.plan + "'"
                : !job.cluster.empty() ? " in '" + job.cluster + "'"
                                       : "");
  }
  start_logging(job.log_level, role.rank);
  if (role.launcher == "motley") {
    MOTLEY_TRY(follow_launcher());
  }
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);

  const cluster::Worker& own = cluster.workers[static_cast<std::size_t>(role.rank)];
  MOTLEY_TRY(pin_to_cores(own));
  learn::keep_freed_memory();
  learn::set_threads(static_cast<int>(own.threads));
  learn::set_deterministic(job.deterministic);
  std::optional<plan::Plan> plan;
  if (!job.plan.empty()) {
    MOTLEY_ASSIGN(plan, plan_of(job));
  }
  Worker worker(job, run, role, std::move(cluster), std::move(plan));
  return worker.run(hosts, resume);
}

}  // namespace motley::train
