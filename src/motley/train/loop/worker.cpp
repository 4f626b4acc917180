// A step of the loop, the same on every rank:
//
//   1. The ledger gives the window of the epoch's permutation that the step uses; the partition cuts it into shares.
//      Both are pure and fed with the same numbers, so every rank knows every rank's share without a word.
//   2. The worker loads its samples, runs forward and backward. Each bucket of gradients starts its exchange as soon as
//      backward has completed it. An emulated worker sleeps to its deadline on the way.
//   3. Wait until all buckets are reduced: sum n_i g_i / sum n_i.
//   4. One small all-gather: samples, seconds, loss, whether anyone was asked to stop. What is decided from it (shares,
//      stop, checkpoint, divergence) is decided alike everywhere.
//   5. The optimizer updates the weights; the ledger commits the window.
//
// Where a parameter server lets ranks be at different steps, 3 is a wait for weights that are new enough, and 4 takes
// place only in steps where all ranks meet, for all steps since they met last: every kSynchronisationSteps, and
// wherever there is something that all do together (an evaluation, a checkpoint, the end of an epoch). Until then every
// rank keeps to the same plan, which nothing but a meeting changes.
#include "motley/train/loop/worker.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/net/emulated_links.h"
#include "motley/nn/runtime.h"
#include "motley/nn/schedule.h"
#include "motley/train/job/planned_job.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/loop/worker_state.h"

namespace motley::train {
namespace {

constexpr std::size_t kSynchronisationSteps =
    20;  // at most so many steps between two meetings of ranks at different steps

volatile sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

}  // namespace

Status Worker::run(const std::filesystem::path& hosts, bool resume) {
  MOTLEY_TRY(join(hosts));
  Status done = [&]() -> Status {
    MOTLEY_TRY(open_data());
    MOTLEY_TRY(build_model());
    MOTLEY_TRY(start_state(resume));
    MOTLEY_TRY(open_outputs());
    MOTLEY_TRY(watch_speeds());
    MOTLEY_TRY(loop());
    return finish();
  }();
  if (done || done.error().code == ErrorCode::kInterrupted) {
    session_->leave();
    return done;
  }
  Error error = done.error();
  if (error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTimeout) {
    error = net::first_cause(*session_, error);
  }
  session_->abort(error);
  return fail(std::move(error));
}

Status Worker::join(const std::filesystem::path& hosts) {
  net::SessionOptions options;
  options.job = job_.name;
  options.tenant = job_.gradient_sync.tenant;
  options.join_seconds = job_.deadline.join;
  options.silence_seconds = std::max(5.0, job_.deadline.step / 2);
  options.fingerprint = fingerprint(job_);
  if (layout_) {
    options.fingerprint += fmt::format("-{:08x}", crc32c(planning::to_json(layout_->plan())));
  }
  MOTLEY_ASSIGN(secret_, find_rendezvous(role_, run_.folder(), hosts, options));
  MOTLEY_ASSIGN(session_, net::Session::join(options, *secret_));
  std::vector<double> rates;
  for (const cluster::Worker& other : cluster_.workers) {
    rates.push_back(cluster_.emulated_rate(description(role_.rank), other));
  }
  if (std::ranges::any_of(rates, [](double rate) { return rate > 0; })) {
    session_ = net::emulate_links(std::move(session_), std::move(rates));
  }
  if (writes()) {  // all have read where to meet; the file holds a secret
    std::error_code ignored;
    std::filesystem::remove(run_.folder() / "rendezvous.json", ignored);
  }
  MOTLEY_ASSIGN(group_, collective::make_group(*session_));
  return layout_ ? join_stage() : Status();
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
    return fail(ErrorCode::kInterrupted, "stopped after step {}{}", step_,
                keeps_checkpoints() ? "; a checkpoint was written" : "");
  }
  if (evaluated_step_ != step_ && job_.evaluate.every_epochs >= 0 && !is_synthetic(job_)) {
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
  const data::Range window = ledger_->next(static_cast<std::uint32_t>(job_.training.global_batch_size));
  const bool baseline = is_baseline_step(job_, step_);
  data::StepPlan plan;
  if (layout_) {
    for (int rank = 0; rank < role_.size; ++rank) plan.shares.push_back(layout_->samples(rank, window));
  } else if (baseline) {
    plan.shares = equal_split(window.size(), splitter_->options().limits);
  } else {
    MOTLEY_ASSIGN(plan, splitter_->plan(number, window.size()));
  }

  const double factor = nn::learning_rate_factor(make_lr_schedule(job_, steps_), step_ - 1);
  const double learning_rate = factor * parts_.optimizer.learning_rate;
  const bool synchronises = synchronises_in(window, baseline);
  if (server_optimizer_ != nullptr) {
    server_optimizer_->set_learning_rate(learning_rate);
    server_optimizer_->begin_step(window.size(), synchronises);
  }

  Report report;
  micro_batch_ = 0;
  const double cpu_before = process_cpu_seconds();
  const auto bytes_sent = [&] { return reducer_->bytes_sent() + (pipeline_ ? pipeline_->bytes_sent() : 0); };
  const std::uint64_t sent_before = bytes_sent();
  const ServedTable::Counts rows_before = table_ ? table_->counts() : ServedTable::Counts();
  step_begin_ = monotonic_seconds();
  if (unreported_.empty()) {
    interval_begin_ = step_begin_;
  }
  if (!is_synthetic(job_)) {  // whose gradients are zeros from the start
    buckets_->zero();
  }
  if (batch_norm_) {
    batch_norm_->begin_step();
  }
  MOTLEY_TRY(layout_        ? compute_planned(plan, window, report)
             : plan.pulls() ? compute_pulled(plan, window, report)
                            : compute_share(plan, window, report));
  computed_ = monotonic_seconds();
  report.compute = computed_ - step_begin_;
  if (table_) {
    // Out of a cache rows that are asked for ahead are older: then whether they are must not depend on the clock.
    MOTLEY_TRY(ask_for_rows(table_->caches() ? step_deadline() : Deadline::after(0)));
    MOTLEY_TRY(table_->finish_step(weight_, step_deadline()));
    const ServedTable::Counts rows = table_->counts();
    report.rows_waited = rows.waited - rows_before.waited;
    report.waited += report.rows_waited;
    report.rows_pulled_bytes = rows.pulled_bytes - rows_before.pulled_bytes;
    report.rows_pushed_bytes = rows.pushed_bytes - rows_before.pushed_bytes;
    report.rows_needed = rows.needed - rows_before.needed;
    report.rows_cached = rows.cached - rows_before.cached;
    report.rows_prefetched = rows.ahead - rows_before.ahead;
  }

  session_->set_phase(number, "gradient synchronisation");
  const Deadline deadline = wait_deadline(synchronises);
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    MOTLEY_ASSIGN(const collective::Outcome outcome, reducer_->wait(bucket, deadline));
    report.staleness = std::max<double>(report.staleness, outcome.staleness);
    MOTLEY_TRY(served_ ? served_->fetch(bucket) : buckets_->fetch(bucket));
  }
  if (tied_) {
    MOTLEY_TRY(tied_->add_up(number, deadline));
  }
  if (batch_norm_) {
    std::vector<double> sums = batch_norm_->contribution(report.samples);
    MOTLEY_TRY(peer_group().all_reduce_sum(sums, deadline));
    batch_norm_->finish_step(sums);
  }
  const double reduced = monotonic_seconds();
  report.total = reduced - step_begin_;
  report.sent_bytes = static_cast<double>(bytes_sent() - sent_before);
  report.cpu = process_cpu_seconds() - cpu_before;
  report.memory = peak_resident_bytes();
  report.stop = stop_requested != 0 ? 1 : 0;
  const bool due_by_time = job_.checkpoint.every > 0 && reduced >= next_checkpoint_;
  report.checkpoint = writes() && (checkpoint_is_due() || due_by_time) ? 1 : 0;
  if (replanner_ && !next_move_) {
    next_move_ = replanner_->next_move();
    if (next_move_ && !may_follow(*next_move_)) {
      next_move_.reset();
    }
  }
  report.moves = next_move_ ? 1 : 0;
  unreported_.push_back(
      {step_, baseline, plan.pulls(), learning_rate, ledger_->state(), static_cast<double>(window.size()), report});
  if (is_async()) {
    timeline_->record(Phase::kWait, step_, computed_, reduced);
  }
  return synchronises ? synchronise(window, stop) : ledger_->commit(window);
}

double Worker::epochs_done(std::uint32_t cursor) const {
  return static_cast<double>(ledger_->state().epoch) +
         static_cast<double>(cursor) / static_cast<double>(train_data_->size());
}

bool Worker::evaluation_is_due(double epochs) const {
  return job_.evaluate.every_epochs > 0 && !is_synthetic(job_) && epochs >= next_evaluation_ - 1e-9;
}

bool Worker::checkpoint_is_due() const {
  return job_.checkpoint.every_steps > 0 && step_ % job_.checkpoint.every_steps == 0;
}

// Every rank comes to the same answer, whenever it asks.
bool Worker::synchronises_in(data::Range window, bool baseline) const {
  return !is_async() || unreported_.size() + 1 >= kSynchronisationSteps || step_ == steps_ ||
         window.end == train_data_->size() || evaluation_is_due(epochs_done(window.end)) || checkpoint_is_due() ||
         baseline != is_baseline_step(job_, step_ + 1);
}

// Where all meet, the slowest rank may be some steps behind, each of which has its time.
Deadline Worker::wait_deadline(bool synchronises) const {
  const double behind = synchronises && is_async()
                            ? std::min<double>(*parts_.gradient_sync.staleness, static_cast<double>(unreported_.size()))
                            : 0;
  return Deadline::after((1 + behind) * job_.deadline.step);
}

// All ranks have done the same steps and hold the same weights: they exchange what they measured, and do what is to be
// done together.
Status Worker::synchronise(data::Range window, bool& stop) {
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
  const double reduced = step_begin_ + unreported_.back().report.total;
  const double gathered = monotonic_seconds();
  if (!served_ && !is_synthetic(job_)) {
    if (job_.max_grad_norm > 0) {
      MOTLEY_TRY(clip_gradients());
    }
    if (stage_timing_) timing_->begin(stage_timing_->update_seconds);
    MOTLEY_TRY(optimizer_->step(unreported_.back().learning_rate));
    if (stage_timing_) timing_->finish();
  }
  const double ended = monotonic_seconds();
  timeline_->record(Phase::kWait, step_, reduced, gathered);  // for ranks that end later
  timeline_->record(Phase::kOptimizer, step_, gathered, ended);
  if (!is_async()) {
    const double waited_until = std::clamp(step_begin_ + last_compute(reports.back()), computed_, reduced);
    timeline_->record(Phase::kWait, step_, computed_, waited_until);
    timeline_->record(Phase::kGradientSync, step_, waited_until, reduced);
  }

  const std::uint64_t moves = split_moves();
  for (std::size_t i = 0; i < steps; ++i) {
    const StepRecord& record = unreported_[i];
    // Once the shares have moved, what was measured before that is no measurement of the new ones.
    if (!record.baseline && split_moves() == moves) {
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
      MOTLEY_TRY(stage_split_ ? stage_split_->observe(at, observations) : splitter_->observe(at, observations));
      if (replanner_) {
        replanner_->observe(observations, steps_ - record.step);
      }
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
      next_evaluation_ += job_.evaluate.every_epochs;
    }
    MOTLEY_TRY(evaluate());
  }
  stop = std::any_of(reports.back().begin(), reports.back().end(), [](const Report& r) { return r.stop != 0; });
  if (reports.back().front().checkpoint != 0) {
    MOTLEY_TRY(save_checkpoint());
  }
  return reports.back().front().moves != 0 && !stop && step_ < steps_ ? move() : Status();
}

// By the norm of the whole network's gradient, of which each stage has a part and each of its ranks the same one. The
// factor is bitwise the same everywhere.
Status Worker::clip_gradients() {
  const nn::NamedTensors& parameters = stage_->parameters();
  MOTLEY_ASSIGN(double norm, nn::gradient_norm(tied_ ? tied_->without_copies(parameters) : parameters));
  if (layout_) {
    double squares[] = {norm * norm / peers().membership().size()};
    MOTLEY_TRY(group_->all_reduce_sum(squares, step_deadline()));
    norm = std::sqrt(squares[0]);
  }
  return norm > job_.max_grad_norm ? nn::scale_gradients(parameters, job_.max_grad_norm / norm) : Status();
}

Result<cluster::Cluster> make_cluster(const Job& job) {
  cluster::Cluster cluster;
  if (!job.execution.cluster.empty()) {
    MOTLEY_ASSIGN(cluster, cluster::read_cluster(job.execution.cluster));
  }
  if (!job.execution.plan.empty()) {
    MOTLEY_ASSIGN(const planning::Plan plan, build_plan(job));
    return planned_cluster(job, plan, std::move(cluster));
  }
  if (!job.execution.cluster.empty()) {
    const auto described = static_cast<std::int64_t>(cluster.workers.size());
    if (job.execution.workers > 0 && described != job.execution.workers) {
      return fail(ErrorCode::kInvalidInput, "workers: {} is given, '{}' describes {}", job.execution.workers,
                  job.execution.cluster, described);
    }
    if (described == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: workers: the file describes none; a job needs at least one",
                  job.execution.cluster);
    }
  } else {
    for (std::int64_t rank = 0; rank < std::max<std::int64_t>(1, job.execution.workers); ++rank) {
      cluster::Worker worker;
      worker.name = fmt::format("worker-{}", rank);
      worker.threads = job.execution.threads;
      cluster.workers.push_back(std::move(worker));
    }
  }
  if (job.training.global_batch_size < static_cast<std::int64_t>(cluster.workers.size())) {
    return fail(ErrorCode::kInvalidInput,
                "global_batch_size: {} is smaller than the number of workers; accepted: {} or more",
                job.training.global_batch_size, cluster.workers.size());
  }
  return cluster;
}

Status train_as_rank(const Job& job, const RunDirectory& run, const Role& role, const std::filesystem::path& hosts,
                     bool resume) {
  MOTLEY_ASSIGN(cluster::Cluster cluster, make_cluster(job));
  if (static_cast<int>(cluster.workers.size()) != role.size) {
    return fail(ErrorCode::kInvalidInput, "{} ranks were started, the job names {} workers{}", role.size,
                cluster.workers.size(),
                !job.execution.plan.empty()      ? " by the plan '" + job.execution.plan + "'"
                : !job.execution.cluster.empty() ? " in '" + job.execution.cluster + "'"
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
  nn::keep_freed_memory();
  nn::set_threads(static_cast<int>(own.threads));
  nn::set_deterministic(job.execution.deterministic);
  std::optional<planning::Plan> plan;
  if (!job.execution.plan.empty()) {
    MOTLEY_ASSIGN(plan, build_plan(job));
  }
  Worker worker(job, run, role, std::move(cluster), std::move(plan));
  return worker.run(hosts, resume);
}

}  // namespace motley::train
