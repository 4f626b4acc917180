#include "tests/simulation/training_rank.h"

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "motley/base/os/file.h"
#include "motley/collective/present_group.h"
#include "motley/collective/replaceable_reducer.h"
#include "motley/net/socket.h"
#include "motley/train/loop/elastic_session.h"
#include "motley/train/loop/training_loop.h"
#include "motley/train/sync/choose_method.h"
#include "motley/train/sync/elastic_servers.h"
#include "tests/simulation/cluster.h"
#include "tests/train/loop/plain_model.h"

namespace motley::simulation {
namespace {

using namespace train;  // NOLINT: this file plays a part of it

constexpr double kStepDeadlineSeconds = 30;
constexpr double kJoinSeconds = 20;
constexpr double kSlackSeconds = 0.5;
constexpr double kBackwardSeconds = 0.5e-3;  // after each bucket, while it is reduced
constexpr double kLookSeconds = 20e-3;       // between two looks at where a newcomer may join
constexpr int kProgressLines = 100;

template <class Value>
std::span<Value> view(std::span<std::byte> bytes) {
  return {reinterpret_cast<Value*>(bytes.data()), bytes.size() / sizeof(Value)};
}

// What all parts of a rank use, and the weights.
struct Shared {
  const LinearJob& job;
  Observer& observer;
  int rank = 0;
  std::uint64_t epoch = 1;  // of the session
  std::vector<double> weights;
  std::vector<double> momentum;        // as a checkpoint has it, for servers
  std::int64_t momentum_step = 0;      // of that checkpoint
  std::vector<double> gradient;        // sum over this rank's samples of the step
  std::vector<std::uint32_t> samples;  // that are in it
  bool is_alone = false;               // goes on with nobody, outside of any epoch
  void observe_writer(int writer) const {
    if (!is_alone) observer.follow_writer(epoch, rank, writer);
  }
};

// Tells the observer of each epoch at once.
class ObservedSession final : public net::Session {
 public:
  ObservedSession(std::unique_ptr<net::Session> session, Observer& observer)
      : session_(std::move(session)), observer_(observer) {}
  const net::Membership& membership() const override { return session_->membership(); }
  const net::SessionOptions& options() const override { return session_->options(); }
  Result<std::unique_ptr<net::Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override {
    return session_->connect(peer, purpose, deadline);
  }
  Status health() const override { return session_->health(); }
  void abort(const Error& error) override { session_->abort(error); }
  void set_phase(std::uint64_t step, const char* phase) override { session_->set_phase(step, phase); }
  std::string last_seen(int rank) const override { return session_->last_seen(rank); }
  Result<std::vector<net::Epoch>> regroup(const Deadline& deadline) override {
    const double began = monotonic_seconds();
    auto agreed = session_->regroup(deadline);
    const bool is_stuck = !agreed && agreed.error().code == ErrorCode::kTimeout && is_member_;
    const bool was_stopped = monotonic_seconds() > began + kJoinSeconds + kSlackSeconds;
    if (is_stuck && !was_stopped) {  // a member's roster comes to a decision, or to an end, before that
      observer_.violate(kWaitsEnd,
                        fmt::format("rank {} waits for nothing: {}", membership().rank, agreed.error().message));
    }
    is_member_ = true;
    MOTLEY_ASSIGN(auto epochs, std::move(agreed));
    for (const net::Epoch& epoch : epochs) observer_.install(epoch.number, epoch.members, membership().rank);
    return epochs;
  }
  void renew() override { session_->renew(); }
  void leave() override { session_->leave(); }

 private:
  const std::unique_ptr<net::Session> session_;
  Observer& observer_;
  bool is_member_ = !session_->options().is_newcomer;
};

// Weights are float64 where each rank takes the optimizer's step, and float32 where servers take it.
class LinearSync final : public GradientSync, public ServedSync {
 public:
  LinearSync(Shared& shared, const RunProgress& progress, SyncMethod method, bool is_served)
      : shared_(shared),
        progress_(progress),
        is_served_(is_served),
        server_(method.server_optimizer),
        reducer_(std::move(method.reducer)) {}

  Status prepare() {
    const auto type = is_served_ ? collective::DataType::kFloat32 : collective::DataType::kFloat64;
    return reducer_.prepare({type, shared_.job.bucket_elements}, Deadline::after(kJoinSeconds));
  }
  // Servers get what this rank has. Collective.
  Status load_servers() {
    if (server_ == nullptr) return {};
    ps::ServerState state{.updates = server_->updates(), .weights = cut(shared_.weights)};
    if (shared_.job.momentum > 0) state.optimizer.push_back(cut(shared_.momentum));
    return server_->load(state, Deadline::after(kJoinSeconds));
  }
  Result<std::vector<double>> read_momentum() const {
    if (server_ == nullptr) return fail(ErrorCode::kUnavailable, "the servers have not been joined yet");
    MOTLEY_ASSIGN(const ps::ServerState state, server_->save(Deadline::after(kStepDeadlineSeconds)));
    std::vector<double> momentum;
    for (const auto& array : state.optimizer) {
      for (const auto& bucket : array) std::ranges::copy(bucket, std::back_inserter(momentum));
    }
    momentum.resize(shared_.job.elements());
    return momentum;
  }
  bool is_served() const { return is_served_; }

  std::uint64_t updates() const override { return server_ != nullptr ? server_->updates() : 0; }
  std::optional<int> lost_server() const override { return server_ != nullptr ? server_->lost_server() : std::nullopt; }
  bool has_replicas() const override { return server_ != nullptr && server_->has_replicas(); }
  std::vector<int> server_cores() const override {
    return server_ != nullptr ? server_->server_cores() : std::vector<int>();
  }
  std::vector<std::string> list_servers_without_state() const override {
    return server_ != nullptr ? server_->list_servers_without_state() : std::vector<std::string>();
  }
  Status go_on(net::Session& session, const ps::ServerOptions& options, const Deadline& deadline) override {
    MOTLEY_ASSIGN(auto method, make_reducer(session, options));
    if (server_ != nullptr) server_->hand_over();
    server_ = method.server_optimizer;
    is_first_ = session.membership().rank == 0;
    return reducer_.replace(std::move(method.reducer), deadline);
  }
  Status restore_servers(const std::string& optimizer, const Deadline&) override;

  void begin(const Step& step) override {
    if (server_ != nullptr) server_->begin_step(step.window.size(), step.synchronises);
    std::ranges::fill(shared_.gradient, 0.0);
    shared_.samples.clear();
  }
  void arm(const Step& step, double weight, std::function<void(int)>) override {
    if (server_ != nullptr) server_->set_learning_rate(step.learning_rate);
    step_ = step.number;
    weight_ = weight;
  }
  Status flush() override {
    shared_.observer.contribute(shared_.epoch, step_, shared_.rank, shared_.samples);
    const double* sum = shared_.gradient.data();
    for (int bucket = 0; bucket < buckets(); ++bucket) {
      sum = is_served_ ? put_mean(view<float>(reducer_.buffer(bucket)), sum)
                       : put_mean(view<double>(reducer_.buffer(bucket)), sum);
      MOTLEY_TRY(reducer_.start(static_cast<std::uint64_t>(step_), bucket, weight_));
      SteadyClock::instance().sleep_until(monotonic_seconds() + kBackwardSeconds);
    }
    return {};
  }
  void scale(double) override {}
  void resume() override {}
  Status wait(const Step&, double seconds, Report&) override {
    const Deadline deadline = Deadline::after(seconds);
    reduced_.clear();
    for (int bucket = 0; bucket < buckets(); ++bucket) {
      MOTLEY_TRY(reducer_.wait(bucket, deadline));
      if (!is_served_) std::ranges::copy(view<double>(reducer_.buffer(bucket)), std::back_inserter(reduced_));
    }
    reduced_in_ = shared_.epoch;
    return {};
  }
  // Of a rank that has joined: from now on it does what others do. They have the step's weights once they have taken
  // part in the next one.
  void enter() { entered_in_ = shared_.epoch; }
  bool postpone_updates() override {
    postponed_.clear();
    postpones_ = !is_served_;
    return postpones_;
  }
  Result<bool> catch_up() override {
    if (!postponed_.empty()) {
      const auto& [learning_rate, gradient] = postponed_.front();
      take_step(learning_rate, gradient);
      postponed_.pop_front();
    }
    postpones_ = !postponed_.empty();
    return postpones_;
  }
  Status update(const Step& step) override {
    if (postpones_) {
      postponed_.emplace_back(step.learning_rate, reduced_);
      return {};
    }
    if (const std::uint64_t epoch = std::exchange(entered_in_, 0); epoch > 0) {
      shared_.observer.take_over(epoch, step.number - 1, shared_.rank, shared_.weights);
    }
    if (server_ != nullptr) {
      auto weight = shared_.weights.begin();
      for (int bucket = 0; bucket < buckets(); ++bucket) {
        weight = std::ranges::copy(server_->weights(bucket), weight).out;
      }
      server_->commit();
    }
    take_step(step.learning_rate, reduced_);
    shared_.observer.commit(reduced_in_, step.number, shared_.rank, shared_.weights);
    return {};
  }
  std::string parameter_name(std::size_t) const override { return "weights"; }
  bool is_async() const override { return false; }
  std::uint64_t bytes_sent() const override { return reducer_.bytes_sent(); }

 private:
  int buckets() const { return static_cast<int>(shared_.job.bucket_elements.size()); }
  void take_step(double learning_rate, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < gradient.size(); ++i) shared_.weights[i] -= learning_rate * gradient[i];
  }
  // Of this rank's samples. Returns what follows the bucket's part of the sum.
  template <class Value>
  const double* put_mean(std::span<Value> values, const double* sum) const {
    constexpr Value kNothing = std::numeric_limits<Value>::quiet_NaN();  // of no weight it is not looked at
    for (Value& value : values) value = weight_ > 0 ? static_cast<Value>(*sum++ / weight_) : (++sum, kNothing);
    return sum;
  }
  std::vector<std::vector<float>> cut(const std::vector<double>& values) const {
    std::vector<std::vector<float>> cut;
    auto begin = values.begin();
    for (const std::size_t elements : shared_.job.bucket_elements) {
      const auto end = begin + static_cast<std::ptrdiff_t>(elements);
      cut.emplace_back(begin, end);
      begin = end;
    }
    return cut;
  }

  Shared& shared_;
  const RunProgress& progress_;
  const bool is_served_;         // even if this rank has not joined the servers yet
  ps::ServerOptimizer* server_;  // part of the reducer, or null
  collective::ReplaceableReducer reducer_;
  bool is_first_ = false;  // of those who are there
  std::int64_t step_ = 0;
  double weight_ = 0;
  std::vector<double> reduced_;
  std::uint64_t reduced_in_ = 0;                                  // epoch
  std::deque<std::pair<double, std::vector<double>>> postponed_;  // learning rates and gradients
  bool postpones_ = false;
  std::uint64_t entered_in_ = 0;  // epoch, until a step was taken since; 0: none
};

class LinearRunner final : public StepRunner {
 public:
  LinearRunner(Shared& shared, BatchPlan& plan, LinearSync& sync, double seconds_per_sample)
      : shared_(shared), plan_(plan), sync_(sync), seconds_per_sample_(seconds_per_sample) {}
  Status run(const Step& step, Report& report) override { return add(step, plan_.samples(step, shared_.rank), report); }
  Status add(const Step& step, std::span<const std::uint32_t> samples, Report& report) override {
    for (const std::uint32_t sample : samples) {
      shared_.job.add_gradient(sample, shared_.weights, shared_.gradient);
      shared_.samples.push_back(sample);
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() +
                                        seconds_per_sample_ * static_cast<double>(samples.size()));
    report.samples += static_cast<double>(samples.size());
    report.samples_hash = hash_samples(report.samples_hash, samples);
    report.loss_count = report.metric_count = report.samples;
    return sync_.start(step, report.samples);
  }

 private:
  Shared& shared_;
  BatchPlan& plan_;
  LinearSync& sync_;
  const double seconds_per_sample_;
};

class LinearEvaluator final : public Evaluator {
 public:
  LinearEvaluator(const RankContext& context, Shared& shared) : context_(context), shared_(shared) {}
  Result<std::optional<std::vector<Value>>> evaluate(std::int64_t) override {
    double sum[] = {shared_.weights.front()};
    MOTLEY_TRY(context_.group.all_reduce_sum(sum, context_.step_deadline()));
    return std::vector<Value>{{"loss", sum[0]}};
  }

 private:
  const RankContext& context_;
  Shared& shared_;
};

// The weights, and where servers take the optimizer's step, what they keep for it.
class LinearState final : public PlainModel {
 public:
  LinearState(const RankContext& context, Shared& shared, LinearSync& sync)
      : context_(context), shared_(shared), sync_(sync) {}
  Result<std::string> weights(std::int64_t) override {
    if (context_.writes()) shared_.observe_writer(shared_.rank);
    return write(shared_.weights);
  }
  Status load_weights(const std::string& text) override { return read(text, shared_.weights); }
  Result<std::string> optimizer(std::int64_t step) override {
    if (!sync_.is_served()) return "none";
    if (!context_.writes()) return std::string();
    MOTLEY_ASSIGN(const std::vector<double> momentum, sync_.read_momentum());
    return write({static_cast<double>(step)}) + write(momentum);
  }
  Status load_optimizer(const std::string& text) override { return load_momentum(text, shared_); }
  Status start(std::int64_t, int) override { return sync_.load_servers(); }
  Result<WeightsHash> hash_weights() const override {
    return WeightsHash{1, 1, crc64(std::as_bytes(std::span(shared_.weights)))};
  }
  bool has_optimizer() const override { return !sync_.is_served(); }

  static Status load_momentum(const std::string& text, Shared& shared) {
    if (text.empty() || text == "none") return {};
    std::vector<double> step(1);
    MOTLEY_TRY(read(text.substr(0, sizeof(double)), step));
    shared.momentum_step = static_cast<std::int64_t>(step.front());
    return read(text.substr(sizeof(double)), shared.momentum);
  }

 private:
  static std::string write(const std::vector<double>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
  }
  static Status read(const std::string& text, std::vector<double>& values) {
    if (text.size() != values.size() * sizeof(double)) {
      return fail(ErrorCode::kInvalidInput, "{} bytes of the state", text.size());
    }
    std::memcpy(values.data(), text.data(), text.size());
    return {};
  }

  const RankContext& context_;
  Shared& shared_;
  LinearSync& sync_;
};

Status LinearSync::restore_servers(const std::string& optimizer, const Deadline&) {
  MOTLEY_TRY(LinearState::load_momentum(optimizer, shared_));
  if (is_first_ && shared_.job.momentum > 0) {
    shared_.observer.replace_momentum(progress_.step, shared_.momentum_step, shared_.momentum);
  }
  return load_servers();
}

class TrainingRank final : public ElasticRanks {
 public:
  TrainingRank(const RankSetup& setup, const LinearJob& job, Observer& observer)
      : setup_(setup),
        shared_{.job = job,
                .observer = observer,
                .rank = setup.session.rank,
                .weights = job.initial_weights(),
                .momentum = std::vector<double>(job.elements()),
                .gradient = std::vector<double>(job.elements()),
                .samples = {}} {}

  // What kUnavailable says of a newcomer that never was a member: it came too late.
  Status run() {
    MOTLEY_TRY(join());
    Status done = train();
    if (!done && done.error().code == ErrorCode::kLeft) return done;
    if (context_ && context_->writes()) close();
    if (done || done.error().code == ErrorCode::kInterrupted) {
      session_->leave();
      return done;
    }
    if (is_newcomer_ && done.error().code == ErrorCode::kUnavailable) return done;
    Error error = done.error();
    if (error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTimeout) {
      error = net::first_cause(*session_, error);
    }
    session_->abort(error);
    return fail(std::move(error));
  }
  std::int64_t step() const { return progress_.step; }
  // It has not got the others' state.
  bool is_newcomer() const override { return is_newcomer_; }

  Result<std::vector<std::vector<int>>> regroup() override {
    note_saved();
    MOTLEY_ASSIGN(auto epochs, elastic_->regroup(*context_, Deadline::after(kJoinSeconds)));
    shared_.epoch = elastic_->epoch();
    return epochs;
  }
  Status synchronise() override {
    if (setup_.sync.servers.empty()) {
      return sync_->go_on(elastic_->present(), setup_.sync, Deadline::after(kJoinSeconds));
    }
    return servers_.synchronise(*context_, *elastic_, *sync_, setup_.folder / "checkpoint", kJoinSeconds);
  }
  void renew() override { session_->renew(); }
  std::string lost_servers() const override { return servers_.lost_servers(); }
  Result<std::unique_ptr<collective::Group>> make_group(const std::vector<int>& ranks) override {
    return elastic_->make_group(ranks);
  }
  Status take_over(std::int64_t) override { return invite(); }
  Status stand_alone() override {
    shared_.is_alone = true;
    return elastic_->stand_alone(*context_);
  }
  int minimum() const override { return setup_.minimum; }
  double join_seconds() const override { return kGrowSeconds; }
  void enter() override {
    is_newcomer_ = false;
    sync_->enter();
  }
  void follow_writer(int rank) override {
    shared_.observe_writer(rank);
    context_->writer = rank;
  }

 private:
  Status join() {
    MOTLEY_ASSIGN(auto session, join_session());
    session_ = std::make_unique<ObservedSession>(std::move(session), shared_.observer);
    if (setup_.launched != nullptr) setup_.launched->takes_signals = true;
    const int size = setup_.session.size;
    if (!is_newcomer_) shared_.observer.install(1, all_ranks(size), shared_.rank);
    elastic_.emplace(*session_, is_newcomer_);
    MOTLEY_ASSIGN(group_, elastic_->make_first_group());
    context_.emplace(shared_.rank, size, *session_, *group_, timeline_, kStepDeadlineSeconds);
    if (is_newcomer_) {
      context_->present = {shared_.rank};
      context_->writer = -1;
    }
    return context_->writes() ? invite() : Status();
  }

  // A newcomer finds a rank that answers: the one that it was told of may have been lost since.
  Result<std::unique_ptr<net::Session>> join_session() const {
    const auto secret = net::Secret::from_text("all ranks of the simulated job know this", "secret");
    const Deadline deadline = Deadline::after(setup_.session.join_seconds);
    for (;;) {
      net::SessionOptions own = setup_.session;
      if (is_newcomer_) {
        MOTLEY_ASSIGN(own.rendezvous, find_member());
      }
      auto session = net::Session::join(own, *secret);
      const bool is_final = session || !is_newcomer_ || session.error().code == ErrorCode::kRefused;
      if (is_final || deadline.passed()) return session;
    }
  }

  // The rank that writes the run's files says where newcomers of this start join, and at the end that none can any
  // more.
  std::filesystem::path rendezvous_file() const { return setup_.folder / "rendezvous"; }
  Status invite() const {
    shared_.observe_writer(shared_.rank);
    const net::Member& own = session_->membership().members[static_cast<std::size_t>(shared_.rank)];
    return write_file(rendezvous_file(),
                      fmt::format("{} {}", setup_.generation, net::to_string({own.address, own.port})));
  }
  void close() const {
    std::error_code ignored;
    std::filesystem::remove(rendezvous_file(), ignored);
  }
  Result<net::Endpoint> find_member() const {
    const std::string start = fmt::format("{} ", setup_.generation);
    const Deadline deadline = Deadline::after(setup_.session.join_seconds);
    while (!deadline.passed()) {
      if (!std::filesystem::exists(rendezvous_file())) return fail(ErrorCode::kUnavailable, "the run is over");
      const Result<std::string> text = read_file(rendezvous_file());
      if (text && text->starts_with(start)) return net::parse_endpoint(text->substr(start.size()));
      SteadyClock::instance().sleep_until(monotonic_seconds() + kLookSeconds);
    }
    return fail(ErrorCode::kTimeout, "nobody says where to join");
  }

  Status train() {
    const int size = setup_.session.size;
    data::BatchSplitOptions split;
    split.policy = data::SplitPolicy::kDynamic;
    split.may_pull = false;
    split.batch = shared_.job.batch;
    split.limits.resize(static_cast<std::size_t>(size), {.minimum = 0});
    MOTLEY_ASSIGN(BatchPlan plan, BatchPlan::create({.mode = "dynamic"}, split, shared_.job.fresh_ledger()));
    SampleAudit audit(shared_.job.samples);
    audit.record_all();
    MOTLEY_TRY(make_sync());
    LinearRunner runner(shared_, plan, *sync_, setup_.seconds_per_sample);
    LinearEvaluator evaluator(*context_, shared_);
    LinearState model(*context_, shared_, *sync_);
    checkpoints_.emplace(
        *context_, setup_.folder / "checkpoint",
        Checkpoints::Options{.every_steps = shared_.job.steps_per_checkpoint, .keep = shared_.job.checkpoints});
    if (!is_newcomer_) MOTLEY_TRY(restore({progress_, plan, audit, model}));
    Reporter reporter({.steps = shared_.job.steps, .is_elastic = true});
    PlanMover mover(*context_, follower_, reporter, setup_.folder);
    EmulationWatch emulation(std::vector<std::string>(static_cast<std::size_t>(size)), 64, false);
    LoopOptions options;
    options.steps = shared_.job.steps;
    options.evaluate_every_epochs = 1;
    options.learning_rate = [](std::int64_t) { return LinearJob::kLearningRate; };
    options.is_asked_to_stop = [this] {
      note_saved();
      return setup_.launched != nullptr && setup_.launched->is_asked_to_stop;
    };
    options.is_asked_to_leave = [this] { return setup_.launched != nullptr && setup_.launched->is_asked_to_leave; };
    const LoopParts parts = {&plan,  &runner,    nullptr,   &*sync_,        &evaluator, &model,
                             &audit, &emulation, &reporter, &*checkpoints_, &mover,     this};
    Status done = TrainingLoop(std::move(options), *context_, parts, progress_).run();
    note_saved();
    if (!done) return done;
    if (audit.not_used_once() != 0) {
      return fail(ErrorCode::kInternal, "{} samples were not used once", audit.not_used_once());
    }
    return {};
  }

  Status make_sync() {
    ps::ServerOptions options = setup_.sync;
    const bool is_served = !options.servers.empty();
    options.elastic = ps::ElasticJob{.session = session_->membership().session,
                                     .kept_seconds = kJoinSeconds,
                                     .replicates = options.servers.size() > 1};
    if (is_newcomer_) options.server_speeds.clear();
    servers_.use(options, {}, is_newcomer_);
    if (is_newcomer_ && is_served) options.method = collective::Method::kAuto;  // until it has entered
    MOTLEY_ASSIGN(SyncMethod method, make_reducer(elastic_->first(), options));
    sync_.emplace(shared_, progress_, std::move(method), is_served);
    return sync_->prepare();
  }

  Status restore(const RunState& state) {
    Checkpoint start;
    const std::filesystem::path folder = setup_.folder / "checkpoint";
    if (context_->writes() && holds_checkpoint(folder)) {
      MOTLEY_ASSIGN(start, read_newest_checkpoint(folder));
    } else if (context_->writes()) {
      MOTLEY_ASSIGN(start.files[kWeightsFile], state.model.weights(0));
    }
    MOTLEY_TRY(checkpoints_->restore(std::move(start), state, [](Status loaded) { return loaded; }));
    shared_.observer.restore(shared_.rank, progress_.step, shared_.weights);
    if (context_->writes()) {
      MOTLEY_ASSIGN(const std::int64_t noted, read_progress());
      shared_.observer.check_progress(noted);
    }
    if (progress_.next_evaluation == 0) progress_.next_evaluation = 1;
    return {};
  }

  std::filesystem::path progress_file() const { return setup_.folder / "notes" / "progress"; }

  void note_saved() {
    shared_.observer.save(progress_.saved_step);
    // A checkpoint that all write anew after a loss does not count as none.
    if (!context_->writes() || progress_.saved_step <= noted_step_) return;
    noted_step_ = progress_.saved_step;
    // A file that is written anew each time, in place of the one before.
    const std::string text = fmt::format("{:08}\n", progress_.saved_step);
    std::string content;
    for (int line = 0; line < kProgressLines; ++line) content += text;
    const std::filesystem::path file = progress_file();
    if (make_folders(file.parent_path()) && write_file(file, content)) {
      shared_.observer.note_progress(progress_.saved_step);
    }
  }

  // Some content that was written, whole; 0: there is none yet.
  Result<std::int64_t> read_progress() const {
    const auto content = read_file(progress_file());
    if (!content && content.error().code == ErrorCode::kInvalidInput) return 0;
    if (!content) return fail(content.error());
    std::int64_t step = 0;
    std::from_chars(content->data(), content->data() + std::min<std::size_t>(content->size(), 8), step);
    std::string expected;
    for (int line = 0; line < kProgressLines; ++line) expected += fmt::format("{:08}\n", step);
    if (*content != expected) return fail(ErrorCode::kInternal, "the file of the progress is torn");
    return step;
  }

  const RankSetup& setup_;
  bool is_newcomer_ = setup_.session.is_newcomer;
  Shared shared_;
  std::unique_ptr<net::Session> session_;
  std::unique_ptr<collective::PresentGroup> group_;
  std::optional<ElasticSession> elastic_;
  TimelineRecorder timeline_{0};
  std::optional<RankContext> context_;
  ElasticServers servers_;
  std::optional<LinearSync> sync_;
  std::optional<Checkpoints> checkpoints_;
  NoFollower follower_;
  RunProgress progress_;
  std::int64_t noted_step_ = 0;
};

}  // namespace

// With what it leaves to its launcher. One that was asked to leave ends with all connections still open.
int run_training_rank(const RankSetup& setup, const LinearJob& job, Observer& observer) {
  if (setup.launched != nullptr) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + setup.load_seconds);
  }
  TrainingRank rank(setup, job, observer);
  const Status done = rank.run();
  const bool is_late = rank.is_newcomer() && !done && done.error().code == ErrorCode::kUnavailable;
  if (is_late) {
    observer.note_late(setup.session.rank, done.error());
  } else {
    observer.finish(setup.session.rank, done, rank.step());
  }
  const bool is_interrupted = !done && done.error().code == ErrorCode::kInterrupted;
  const int code = done || is_late ? 0 : is_interrupted ? 128 + SIGINT : 1;
  if (setup.launched == nullptr) return code;
  setup.launched->exit_code = code;
  if (!done) setup.launched->error = done.error();
  if (!done && done.error().code == ErrorCode::kLeft) {
    simulator().kill(Cluster::caller());  // which has all its connections still
    simulator().operation();
  }
  return code;
}

}  // namespace motley::simulation
