#include "motley/train/worker/rank_worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/injected_fault.h"
#include "motley/base/os/memory.h"
#include "motley/base/units.h"
#include "motley/net/derived_session.h"
#include "motley/nn/emulated/emulated_accelerator.h"
#include "motley/nn/optimizer.h"
#include "motley/nn/runtime.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/launch_job.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/records/run_file.h"
#include "motley/train/worker/gathered_files.h"
#include "motley/train/worker/summary.h"
#include "motley/train/worker/worker.h"

namespace motley::train {
namespace {

std::vector<std::string> list_names(const cluster::Cluster& cluster) {
  std::vector<std::string> names;
  for (const cluster::Worker& worker : cluster.workers) names.push_back(worker.name);
  return names;
}

// Without a sign of life a rank counts as lost, unless the job says otherwise.
constexpr double kSilenceSeconds = 10;
constexpr double kElasticSilenceSeconds = 1;
constexpr double kPatienceAtEnd = 5;  // seconds, with others of an elastic run that is over
// Of deadline.step, that a rank may take to record a step: it is put out before the others' waits for it end.
constexpr double kRecordingShare = 0.8;

constexpr int kLauncherHasEnded = SIGUSR1;

constexpr int kLeftExitCode = 128 + SIGTERM;

// By SIGTERM a machine says that it is taken away.
volatile std::sig_atomic_t stop_requested = 0, leave_requested = 0;
// After the launcher's end nobody else ends a worker that hangs.
volatile std::sig_atomic_t orphaned_seconds = 60;
void take_request(int signal) {
  (signal == SIGTERM ? leave_requested : stop_requested) = 1;
  if (signal == kLauncherHasEnded) ::alarm(static_cast<unsigned>(orphaned_seconds));
}

}  // namespace

RankWorker::RankWorker(const Job& job, const RunDirectory& run, const Role& role, cluster::Cluster cluster,
                       std::optional<planning::Plan> plan, int cores)
    : job_(job),
      run_(run),
      role_(role),
      cluster_(std::move(cluster)),
      sync_options_(make_server_options(job)),
      emulation_(list_names(cluster_), cores, !is_synthetic(job)) {
  if (plan) layout_ = std::make_unique<StageLayout>(std::move(*plan));
}

// Other launchers end a job themselves where a process dies.
bool RankWorker::is_elastic() const {
  return (role_.launcher == "motley" || role_.launcher == "hosts") && job_.execution.elastic_range().min > 0;
}

Status RankWorker::run(const std::filesystem::path& hosts, bool resume) {
  const auto came_too_late = [this](const Status& done) {
    const bool did = role_.is_newcomer && !done && done.error().code == ErrorCode::kUnavailable;
    if (did) spdlog::info("rank {} came too late: {}", role_.rank, done.error().message);
    if (did && role_.launcher == "motley") leave_error(done.error());  // this rank has not done all
    return did;
  };
  const Status joined = join(hosts);
  if (came_too_late(joined)) return {};
  MOTLEY_TRY(joined);
  if (role_.launcher != "motley") MOTLEY_TRY(keep_log());
  std::signal(SIGINT, take_request);  // before, there is nothing to save, and nobody to tell of a stop
  const Status prepared = prepare(resume);
  Status done = prepared ? loop() : prepared;
  if (done) {
    done = finish();
  } else if (prepared && done.error().code == ErrorCode::kInterrupted) {
    const Status written = write_timeline();  // nothing depends on it
    if (!written) spdlog::warn("there is no timeline: {}", written.error().message);
  }
  if (!done && done.error().code == ErrorCode::kLeft) {
    timeline_->keep();
    if (writes()) MOTLEY_TRY(reporter_->flush());
    return done;
  }
  if (elastic_ && keeps_files()) elastic_->close();
  if (done || done.error().code == ErrorCode::kInterrupted) {
    session_->leave();
    return done;
  }
  const bool is_of_others = prepared || prepared.error().rank >= 0;  // not, say, this host's memory
  if (is_of_others && elastic_ && elastic_->is_newcomer() && came_too_late(done)) return {};
  Error error = done.error();
  if (error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTimeout) {
    error = net::first_cause(*session_, error);
  }
  session_->abort(error);
  return fail(std::move(error));
}

// Where others go on without this rank, the files may be theirs.
bool RankWorker::keeps_files() const {
  if (!writes() || !elastic_) return writes();
  const auto writer = run_.find_writer(session_->membership().session);
  return writer && writer->value_or(role_.rank) == role_.rank;
}

Status RankWorker::prepare(bool resume) {
  MOTLEY_TRY(open_data());
  if (!waits_for_stage()) MOTLEY_TRY(build());
  MOTLEY_TRY(start(resume));
  MOTLEY_TRY(open_outputs());
  return watch_speeds();
}

Status RankWorker::join(const std::filesystem::path& hosts) {
  net::SessionOptions options;
  options.job = job_.name;
  options.tenant = job_.gradient_sync.tenant;
  options.join_seconds = job_.deadline.join;
  const double silence = is_elastic() ? kElasticSilenceSeconds : kSilenceSeconds;
  options.progress_seconds = job_.deadline.progress;
  options.recording_seconds = kRecordingShare * job_.deadline.step;
  options.silence_seconds = job_.deadline.silence > 0 ? job_.deadline.silence : silence;
  options.is_elastic = is_elastic();
  if (is_elastic()) options.starting = static_cast<int>(job_.execution.workers);
  MOTLEY_ASSIGN(options.encryption, read_encryption(job_));
  options.fingerprint = fingerprint(job_, layout_ ? planning::to_json(layout_->plan()) : "");
  MOTLEY_TRY(join_session(hosts, std::move(options)));
  std::vector<double> rates;
  for (const cluster::Worker& other : cluster_.workers) {
    rates.push_back(cluster_.emulated_rate(description(role_.rank), other));
  }
  if (std::ranges::any_of(rates, [](double rate) { return rate > 0; })) {
    session_ = net::emulate_links(std::move(session_), std::move(rates));
  }
  if (writes() && !is_elastic()) {  // all have read where to meet; the file holds a secret
    remove_rendezvous(run_.folder() / "rendezvous.json", role_.job_id);
  }
  if (!is_elastic()) {
    MOTLEY_ASSIGN(group_, collective::make_group(*session_));
    return {};
  }
  elastic_.emplace(job_, role_, run_, *session_, *secret_);
  MOTLEY_ASSIGN(group_, elastic_->make_first_group());
  return writes() ? elastic_->invite() : Status();
}

// A newcomer finds a rank that answers: the one that it was told of may have been lost since.
Status RankWorker::join_session(const std::filesystem::path& hosts, net::SessionOptions options) {
  const Deadline deadline = Deadline::after(options.join_seconds);
  for (;;) {
    net::SessionOptions own = options;
    MOTLEY_ASSIGN(secret_, find_rendezvous(role_, run_.folder(), hosts, open_torchrun_store, own));
    auto session = net::Session::join(own, *secret_);
    if (session) {
      session_ = std::move(*session);
      return {};
    }
    if (!role_.is_newcomer || session.error().code == ErrorCode::kRefused || deadline.passed()) {
      return fail(std::move(session.error()));
    }
  }
}

// Whether the run's files are written by others, as they show: this rank has waited for `deadline.join` in vain.
bool RankWorker::others_go_on() const {
  const auto measured = run_.last_measured();
  std::error_code unknown;
  const auto written = std::filesystem::last_write_time(run_.metrics_file(), unknown);
  const std::chrono::duration<double> since = std::filesystem::file_time_type::clock::now() - written;
  return !measured || measured->step > progress_.step || (!unknown && since.count() < job_.deadline.join);
}

// The rank that wrote them may have been lost between a step and its line. Of a rank that goes on with nobody (-1):
// what it needs to write a checkpoint.
Status RankWorker::take_over_files(std::int64_t step) {
  MOTLEY_ASSIGN(const std::optional<int> writer, run_.find_writer(session_->membership().session));
  if (step < 0 && writer) {
    if (*writer == role_.rank) return {};
    if (!others_go_on()) return run_.note_writer(session_->membership().session, role_.rank);
    reporter_->close();
    return {};
  }
  if (step < 0) step = progress_.step;
  MOTLEY_TRY(elastic_->claim_files());
  // Of a run that goes on it may tell of the attempt before.
  const auto told = read_run_file(run_.run_file());
  const bool is_of_before = !told || (!told->attempts.empty() && told->attempts.back().exit);
  if (!std::filesystem::exists(run_.job_file()) || is_of_before) {
    MOTLEY_ASSIGN(const RunDirectory::Measured before, run_.last_measured());
    MOTLEY_TRY(write_facts(before));
  }
  MOTLEY_TRY(run_.roll_back_metrics(step));
  MOTLEY_ASSIGN(const RunDirectory::Measured measured, run_.last_measured());
  reporter_->set_now(std::max(reporter_->now(), measured.seconds));
  MOTLEY_TRY(reporter_->open(run_.folder()));
  return measured.step < step ? reporter_->repeat(step) : Status();
}

// Our launcher keeps the logs of the workers that it starts.
Status RankWorker::keep_log() const {
  const std::filesystem::path file = run_.log_file(role_.rank);
  std::error_code ignored;  // opening says what is wrong
  std::filesystem::create_directories(file.parent_path(), ignored);
  return log_to_file(file);
}

Status RankWorker::open_data() {
  session_->set_phase(0, "opening the data");
  MOTLEY_TRY(data_.open(*session_, *group_, writes(), role_.is_newcomer));
  TimelineOptions timeline;
  timeline.first_steps = job_.timeline.steps / 2;
  timeline.every =
      job_.timeline.steps == 0 ? data_.steps() + 1 : std::max<std::int64_t>(1, 2 * data_.steps() / job_.timeline.steps);
  timeline_.emplace(role_.rank, description(role_.rank).name, timeline);
  if (is_elastic() && job_.timeline.steps > 0) {
    const bool goes_on = role_.is_newcomer && role_.launcher == "motley";
    std::error_code ignored;
    if (!goes_on) std::filesystem::remove(timeline_part(logs(), role_.rank), ignored);  // of an attempt before
    timeline_->keep_in(logs(), goes_on);
  }
  context_.emplace(role_.rank, role_.size, *session_, *group_, *timeline_, job_.deadline.step);
  if (elastic_) context_->present = elastic_->first_ranks();
  if (role_.is_newcomer) context_->writer = -1;
  data_.start(*context_, is_elastic());
  return role_.is_newcomer ? Status() : compare_data();
}

// Ranks that read files of their own have to have the same samples, or each would take them in another order.
Status RankWorker::compare_data() {
  constexpr std::size_t kNumbers = 3;
  const double own[kNumbers] = {static_cast<double>(data_.train().size()),
                                static_cast<double>(data_.train().class_count()),
                                data_.test() != nullptr ? static_cast<double>(data_.test()->size()) : 0};
  MOTLEY_ASSIGN(const std::vector<double> all, group_->all_gather(own, context_->long_deadline()));
  const auto numbers = [&](int rank) { return all.data() + kNumbers * static_cast<std::size_t>(rank); };
  const int first = context_->present.front();
  const double* const wanted = numbers(first);
  for (const int rank : context_->present) {  // of an elastic run those who are not there yet give zeros
    const double* const its = numbers(rank);
    if (std::equal(its, its + kNumbers, wanted)) continue;
    return fail(ErrorCode::kInvalidInput,
                "data: rank {} has {} training and {} test samples of {} classes, rank {} has {}, {} and {}; accepted: "
                "the same data on all hosts",
                rank, its[0], its[2], its[1], first, wanted[0], wanted[2], wanted[1]);
  }
  return {};
}

// A state that does not fit the job: says which of the run's keys have changed since it was written.
Status RankWorker::explain(Status loaded, bool resume) const {
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

RunState RankWorker::run_state(Replica& replica) {
  return {progress_, *replica.plan, data_.audit(), *replica.state};
}

// Every rank starts from rank 0's state: the newest checkpoint, or the initial weights.
Status RankWorker::start(bool resume) {
  session_->set_phase(0, "reading the state to start from");
  checkpoints_.emplace(*context_, run_.checkpoint_folder(),
                       Checkpoints::Options{job_.checkpoint.every_steps, job_.checkpoint.every,
                                            is_synthetic(job_) ? 0 : static_cast<int>(job_.checkpoint.keep)});
  if (role_.is_newcomer) return {};  // the others tell it, once it has entered
  if (writes() && elastic_) MOTLEY_TRY(run_.note_writer(session_->membership().session, role_.rank));
  Checkpoint start;
  if (writes() && resume) {
    MOTLEY_ASSIGN(start, read_newest_checkpoint(run_.checkpoint_folder()));
  } else if (writes() && !layout_) {  // else every stage has its own weights, which follow from the seed
    MOTLEY_ASSIGN(start.files[kWeightsFile], replica_->state->weights(0));
  }
  return restore(std::move(start), resume);
}

Status RankWorker::restore(Checkpoint start, bool resume) {
  const auto explained = [&](Status loaded) { return explain(std::move(loaded), resume); };
  MOTLEY_ASSIGN(const bool restored, checkpoints_->restore(std::move(start), run_state(*replica_), explained));
  if (!restored && writes() && plans_ == 0) {
    spdlog::info("the plan, the workers or the batch have changed: shares start afresh");
  }
  if (progress_.next_evaluation == 0) {
    progress_.next_evaluation = job_.evaluate.every_epochs;
  }
  return {};
}

Status RankWorker::open_outputs() {
  MOTLEY_ASSIGN(const nn::Loss loss, nn::parse_loss(job_.training.loss));
  reporter_.emplace(Reporter::Options{.steps = data_.steps(),
                                      .has_accuracy = nn::default_metrics(loss).front() == nn::Metric::kAccuracy,
                                      .is_async = replica_ && replica_->sync->is_async(),
                                      .has_remote_data = !job_.data.server.empty(),
                                      .has_served_table = has_served_table(job_),
                                      .is_elastic = is_elastic()});
  if (replica_) reporter_->follow(*replica_->plan);
  checkpoints_->start_clock(reporter_->started());
  mover_.emplace(*context_, *this, *reporter_, run_.folder());
  if (!writes()) {
    return {};
  }
  MOTLEY_ASSIGN(const RunDirectory::Measured before, run_.last_measured());
  reporter_->set_now(before.seconds + reporter_->now());
  MOTLEY_TRY(run_.roll_back_metrics(progress_.step));
  MOTLEY_TRY(reporter_->open(run_.folder()));
  for (const int rank : all_ranks(role_.size)) {  // of an attempt before; who is there may have written its own
    std::error_code ignored;
    if (!context_->is_present(rank)) std::filesystem::remove(timeline_part(logs(), rank), ignored);
  }
  if (progress_.step > 0 && progress_.step >= data_.steps()) {  // the run's files say already how it came to be
    spdlog::info("step {} is done, and the job has {}: nothing is left to do; accepted: more --steps or --epochs",
                 progress_.step, data_.steps());
    return {};
  }
  const auto predicted =
      layout_ ? layout_->plan().predicted : read_prediction(run_, job_, role_.size).value_or(planning::Prediction());
  mover_->expect(predicted);
  MOTLEY_TRY(write_facts(before));
  return describe_run(before);
}

// What the run's folder says of it from the start; `before`: what the attempts before this one have done.
Status RankWorker::write_facts(const RunDirectory::Measured& before) const {
  MOTLEY_TRY(write_file(run_.job_file(), format_job(job_)));
  const std::string& device = job_.execution.device;
  RunFacts facts{
      .gradient_sync = replica_->sync->name(),
      .training_samples = data_.train().size(),
      .class_names = data_.train().preprocessing().class_names,
      .done_steps = progress_.step,
      .done_seconds = before.seconds,
      .plan = layout_ ? &layout_->plan() : nullptr,
      .device = device == "auto" ? c10::DeviceTypeName(replica_->network.device.type(), /*lower_case=*/true) : device,
      .emulated_accelerator = nn::emulated::describe(nn::emulated::given_options()),
      .workers = static_cast<int>(context_->present.size())};
  if (layout_) {
    std::vector<std::string> by_stage;
    for (const planning::Stage& stage : layout_->plan().stages) {
      by_stage.emplace_back(planning::to_string(stage.gradient_sync));
    }
    const bool are_alike = std::ranges::all_of(by_stage, [&](const auto& one) { return one == by_stage.front(); });
    facts.gradient_sync = !are_alike                   ? fmt::format("{} by stage", fmt::join(by_stage, ", "))
                          : by_stage.front() == "none" ? "none, as each stage has one device"
                                                       : by_stage.front() + " in each stage";
  }
  return write_run_file(run_, job_, cluster_, facts);
}

// In the log, and as events what matters for its results.
Status RankWorker::describe_run(const RunDirectory::Measured& before) {
  if (!is_elastic() && !job_.execution.elastic.empty()) {
    const std::string text =
        fmt::format("elastic: {} changes nothing under {}, which ends the job where a process ends",
                    job_.execution.elastic, role_.launcher);
    spdlog::warn("{}", text);
    MOTLEY_TRY(reporter_->event(progress_.step, "warning", text));
  }
  const std::string work = fmt::format(
      "{} training samples, {}, {} of {}", data_.train().size(), format_count(std::ssize(context_->present), "worker"),
      format_count(data_.steps(), "step"), format_count(job_.training.global_batch_size, "sample"));
  if (layout_) {
    spdlog::info("{} by the plan '{}': {}, in {} through {} ({})", job_.model.name, job_.execution.plan, work,
                 format_count(layout_->plan().micro_batches, "micro-batch", "es"),
                 format_count(layout_->stages(), "stage"), planning::to_string(layout_->plan().schedule));
  } else {
    const nn::Stage& stage = *replica_->network.stage;
    spdlog::info("{}: {} parameters, {}{}", stage.name(), stage.parameter_count(), work,
                 context_->present.size() > 1 ? ", gradients by " + replica_->sync->name() : "");
  }
  if (const auto samples = static_cast<std::int64_t>(data_.train().size());
      samples < job_.training.global_batch_size && !is_synthetic(job_)) {
    const std::string text = fmt::format("global_batch_size: {} is more than the {} training samples: a step has {}",
                                         job_.training.global_batch_size, samples, samples);
    spdlog::warn("{}", text);
    MOTLEY_TRY(reporter_->event(progress_.step, "warning", text));
  }
  for (int rank = 0; rank < role_.size; ++rank) {
    if (const auto& emulation = description(rank).emulation) {
      spdlog::info("worker {} ({}) is emulated: {} a sample", rank, description(rank).name,
                   format_seconds(emulation->seconds_per_sample));
    }
  }
  if (layout_ && !job_.execution.emulation.empty()) {
    spdlog::info("all workers are emulated: each stage takes as long as '{}' says for its device type",
                 job_.execution.emulation);
    MOTLEY_TRY(
        reporter_->event(progress_.step, "emulation", fmt::format("by the profile '{}'", job_.execution.emulation)));
  }
  if (replica_->sync->has_batch_norm() && role_.size > 1) {
    const char* text =
        "BatchNorm normalises each worker's samples by their own statistics; running statistics are combined by "
        "samples. For results that do not depend on the shares use a network with GroupNorm (model.norm: group)";
    spdlog::warn("{}", text);
    MOTLEY_TRY(reporter_->event(progress_.step, "warning", text));
  }
  if (progress_.step > 0) {
    const data::LedgerState& ledger = replica_->plan->ledger();
    spdlog::info("resumed after step {}, epoch {}, {} of its samples used", progress_.step, ledger.epoch,
                 ledger.cursor);
    std::string text =
        fmt::format("after step {} with {}", progress_.step, format_count(std::ssize(context_->present), "worker"));
    if (before.step > progress_.step) {
      text += fmt::format("; {} that the run had done since its checkpoint {} done again",
                          format_count(before.step - progress_.step, "step"),
                          before.step == progress_.step + 1 ? "is" : "are");
    }
    MOTLEY_TRY(reporter_->event(progress_.step, "resumed", text));
  }
  return {};
}

// The loop's parts, of which those of the replica change where the run moves to another plan.
void RankWorker::connect_loop() {
  loop_parts_ = {.audit = &data_.audit(),
                 .emulation = &emulation_,
                 .reporter = &*reporter_,
                 .checkpoints = &*checkpoints_,
                 .mover = &*mover_,
                 .elastic = elastic_ ? &*elastic_ : nullptr,
                 .stages = elastic_ && layout_ ? this : nullptr};
  if (replica_) {
    Replica& own = *replica_;
    loop_parts_.plan = &*own.plan;
    loop_parts_.runner = own.runner.get();
    loop_parts_.work_queue = own.work_queue.get();
    loop_parts_.sync = own.sync.get();
    loop_parts_.evaluator = &*own.evaluator;
    loop_parts_.model = &*own.state;
  }
  if (elastic_) {
    elastic_->connect({.context = &*context_,
                       .sync = replica_ ? replica_->sync.get() : nullptr,
                       .take_over = [this](std::int64_t step) { return take_over_files(step); }});
  }
}

Status RankWorker::loop() {
  LoopOptions options;
  options.steps = data_.steps();
  options.evaluate_every_epochs = is_synthetic(job_) ? -1 : job_.evaluate.every_epochs;
  options.staleness = sync_options_.staleness.value_or(0);
  const LrSchedulerSpec& keys = job_.lr_scheduler;
  const nn::ScheduleSpec schedule = {.name = keys.name,
                                     .warmup_steps = keys.warmup_steps,
                                     .step_size = keys.step_size,
                                     .factor = keys.gamma,
                                     .total_steps = data_.steps(),
                                     .minimum = keys.min_lr_ratio};
  options.learning_rate = [schedule, highest = job_.optimizer.learning_rate](std::int64_t step) {
    return nn::learning_rate_factor(schedule, step - 1) * highest;
  };
  options.is_asked_to_stop = [this] { return stop_requested != 0 || (leave_requested != 0 && !is_elastic()); };
  options.is_asked_to_leave = [] { return leave_requested != 0; };
  connect_loop();
  Status done = TrainingLoop(std::move(options), *context_, loop_parts_, progress_).run();
  if (is_elastic() && !layout_)
    spdlog::info("this worker has computed {}", format_count(replica_->computation->samples(), "sample"));
  return done;
}

// An emulated worker is as slow as its deadlines say only while this machine is not too busy to meet them.
Status RankWorker::report_lateness() {
  const std::vector<std::string> notes = emulation_.notes();
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].empty()) {
      continue;
    }
    const std::string text =
        fmt::format("worker {} ({}) is emulated: {}", rank, description(static_cast<int>(rank)).name, notes[rank]);
    spdlog::warn("{}", text);
    MOTLEY_TRY(reporter_->event(progress_.step, "warning", text));
  }
  return note_emulation(run_, notes);
}

// Between hosts, and where ranks were started by hand, each may have a run folder of its own.
bool RankWorker::gathers_files() const {
  return role_.launcher == "hosts" || !session_->membership().on_one_host();
}

Status RankWorker::finish() {
  MOTLEY_TRY(write_timeline());
  if (!writes()) return {};
  MOTLEY_TRY(report_lateness());
  MOTLEY_TRY(reporter_->flush());
  return write_summary(run_, job_);
}

// With the logs of other hosts, once all ranks have come to their ends.
Status RankWorker::write_timeline() {
  if (job_.timeline.steps > 0) {
    std::error_code ignored;  // writing says what is wrong; between hosts the folder may be this one's alone
    std::filesystem::create_directories(logs(), ignored);
    MOTLEY_TRY(timeline_->write_part(logs()));
  }
  // The ranks of an elastic run have met already, and may be gone.
  const double patience = is_elastic() ? std::min(kPatienceAtEnd, context_->step_seconds) : context_->step_seconds;
  const Status met = group_->barrier(Deadline::after(patience));
  if (!met && !is_elastic()) return met;
  ClockOffsets offsets;
  if (gathers_files()) {
    auto gathered = gather_files(*session_, run_, context_->present, context_->writer, context_->step_deadline());
    if (!gathered && !is_elastic()) return fail(gathered.error());
    if (!gathered) spdlog::warn("logs and timelines of other hosts are missing: {}", gathered.error().message);
    if (gathered) offsets = std::move(*gathered);
  }
  if (!writes() || job_.timeline.steps == 0) return {};
  std::vector<TimelinePart> parts;
  // On this host also those that are not there any more, as far as they have kept theirs.
  for (const int rank : role_.launcher == "motley" ? all_ranks(role_.size) : context_->present) {
    const auto file = timeline_part(logs(), rank);
    if (!is_elastic() || std::filesystem::exists(file)) parts.push_back({file, offsets[rank]});
  }
  return merge_timelines(parts, run_.folder() / "timeline.json");
}

// With all connections still open: others take their end for a loss, and kill what is left of a lost process.
[[noreturn]] static void leave(const Error& error, const Role& role) {
  if (role.launcher == "motley") leave_error(error);
  std::fprintf(stderr, "motley: %s\n", error.message.c_str());
  std::fflush(nullptr);
  std::_Exit(kLeftExitCode);
}

Status train_as_rank(const ResolvedJob& resolved, const RunDirectory& run, const Role& role,
                     const std::filesystem::path& hosts, bool resume, bool& writes) {
  writes = role.rank == 0 && !role.is_newcomer;
  const auto& [job, cluster, plan] = resolved;
  if (static_cast<int>(cluster.workers.size()) != role.size) {
    return fail(ErrorCode::kInvalidInput, "{} ranks were started, the job names {}{}", role.size,
                format_count(cluster.workers.size(), "worker"),
                !job.execution.plan.empty()      ? " by the plan '" + job.execution.plan + "'"
                : !job.execution.cluster.empty() ? " in '" + job.execution.cluster + "'"
                                                 : "");
  }
  if (role.is_newcomer && job.execution.elastic.empty()) {
    return fail(ErrorCode::kInvalidInput, "--join: the job is not elastic; accepted with elastic: MIN:MAX");
  }
  const auto beginners = static_cast<int>(job.execution.workers > 0 ? job.execution.workers : role.size);
  if (role.launcher == "hosts" && !role.is_newcomer && role.rank >= beginners) {
    return fail(ErrorCode::kInvalidInput,
                "--rank: {} does not begin the job, which does so with workers: {}; accepted: 0 to {}, or any free "
                "rank with --join HOST:PORT once it runs",
                role.rank, beginners, beginners - 1);
  }
  start_logging(job.log_level, role.rank);
  inject_fault(role.rank, "starting");
  if (role.launcher == "motley") {
    MOTLEY_TRY(follow_launcher(kLauncherHasEnded));
  }
  orphaned_seconds = static_cast<std::sig_atomic_t>(std::ceil(stop_seconds(job)));
  std::signal(SIGTERM, take_request);
  std::signal(kLauncherHasEnded, take_request);
  std::signal(SIGPIPE, SIG_IGN);  // of the log that the launcher reads

  const cluster::Worker& own = cluster.workers[static_cast<std::size_t>(role.rank)];
  const int cores = available_cores();  // that all ranks share; from here on this one may have its own alone
  MOTLEY_TRY(pin_to_cores(own));
  keep_freed_memory();
  nn::set_threads(static_cast<int>(own.threads));
  nn::set_deterministic(job.execution.deterministic);
  RankWorker worker(job, run, role, cluster, plan, cores);
  const Status done = worker.run(hosts, resume);
  if (!done && done.error().code == ErrorCode::kLeft) leave(done.error(), role);
  writes = worker.keeps_files();
  return done;
}

}  // namespace motley::train
