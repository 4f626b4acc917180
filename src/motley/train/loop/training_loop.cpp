// A step of the loop, the same on every rank:
//
//   1. The batch plan gives the window of the epoch's permutation that the step uses, and each rank's samples of it. It
//      is pure and fed with the same numbers, so every rank knows every rank's samples without a word.
//   2. The runner loads the rank's samples, runs forward and backward. Each bucket of gradients starts its
//      synchronisation as soon as backward has completed it. An emulated worker sleeps to its deadline on the way.
//   3. Wait until all buckets are reduced: sum n_i g_i / sum n_i.
//   4. One small all-gather: samples, seconds, loss, whether anyone was asked to stop. What is decided from it (split,
//      stop, checkpoint, divergence, another plan) is decided alike everywhere.
//   5. The optimizer updates the weights; the batch plan commits the step.
//   6. What all do together: an epoch's audit, an evaluation, a checkpoint, moving to another plan.
//
// Where a parameter server lets ranks be at different steps, 3 is a wait for weights that are new enough, and 4 to 6
// take place only in steps where all ranks meet, for all steps since they met last: every kMaxStepsApart, and wherever
// there is something that all do together. Until then every rank keeps to the same plan.
//
// Where ranks are lost in an elastic run, or join, whatever the others wait for fails, and they regroup (regrouping.h):
// then they go on with the very operation.
#include "motley/train/loop/training_loop.h"

#include <algorithm>
#include <cmath>

#include "motley/base/guard.h"
#include "motley/base/log.h"
#include "motley/train/loop/progress.h"

namespace motley::train {

TrainingLoop::TrainingLoop(LoopOptions options, const RankContext& context, const LoopParts& parts,
                           RunProgress& progress)
    : options_(std::move(options)), context_(context), parts_(parts), progress_(progress) {
  if (parts.elastic == nullptr) return;
  regrouping_.emplace(context, parts, progress,
                      Regrouping::Loop{.state = state_,
                                       .commit = [this](AllReports reports) { return commit(std::move(reports)); },
                                       .end = [this] { end(); },
                                       .save = [this] { return save(); },
                                       .is_asked_to_stop = options_.is_asked_to_stop});
}

Status TrainingLoop::run() {
  if (regrouping_ && parts_.elastic->is_newcomer()) MOTLEY_TRY(regrouping_->run());
  while (!state_.has_ended || state_.duties != 0) {
    Status done = advance();
    if (!done && goes_on_after(done.error())) done = regrouping_->run();
    // Who has left has seen that all have done all.
    if (!done && done.error().code == ErrorCode::kUnavailable && state_.has_ended && state_.duties == kPart) break;
    MOTLEY_TRY(done);
  }
  if (!state_.stops) return {};
  MOTLEY_TRY(parts_.reporter->event(progress_.step, "interrupted", fmt::format("after step {}", progress_.step)));
  return fail(ErrorCode::kInterrupted, "stopped after step {}{}", progress_.step,
              parts_.checkpoints->keeps_any() ? "; a checkpoint was written" : "");
}

// What is left once no more steps are done.
void TrainingLoop::end() {
  state_.has_ended = true;
  state_.duties |= kSave;
  if (regrouping_ && MOTLEY_KEEPS("loop-meet-at-end")) state_.duties |= kPart;
  if (state_.stops) return;
  if (progress_.evaluated_step != progress_.step && options_.evaluate_every_epochs >= 0) state_.duties |= kEvaluate;
  if (parts_.plan->ledger().cursor != 0) state_.duties |= kAudit;
}

// What is next: what all still have to do together after a step, or the step. Where it fails, it can be called again
// once the ranks that are left have regrouped, and goes on from there.
Status TrainingLoop::advance() {
  if (state_.duties != 0) return do_duties();
  if (progress_.step >= options_.steps || state_.stops) {
    end();
    return do_duties();
  }
  // A rank that is alone waits for nobody in a step: it would not notice who wants to join.
  if (!state_.under_way && regrouping_) {
    MOTLEY_TRY(context_.session.health());
    MOTLEY_TRY(regrouping_->catch_up(false));
  }
  if (!state_.under_way && leaves()) {
    return fail(ErrorCode::kLeft, "left after step {}, as asked; the others go on", progress_.step);
  }
  if (!state_.under_way) MOTLEY_TRY(begin_step());
  MOTLEY_TRY(compute());
  MOTLEY_TRY(reduce());
  if (!state_.under_way->step.synchronises) {
    MOTLEY_TRY(parts_.plan->commit(state_.under_way->step));
    progress_.step = state_.under_way->step.number;
    state_.under_way.reset();
    return {};
  }
  MOTLEY_ASSIGN(AllReports reports, exchange_reports());
  MOTLEY_TRY(commit(std::move(reports)));
  return do_duties();
}

Status TrainingLoop::begin_step() {
  MOTLEY_ASSIGN(Step step, parts_.plan->next(progress_.step + 1, state_.kept));
  step.learning_rate = options_.learning_rate(step.number);
  step.synchronises = synchronises_in(step);
  WindowParts parts = regrouping_ ? regrouping_->cut(step) : WindowParts();
  if (regrouping_ && !parts[static_cast<std::size_t>(context_.rank)].empty()) MOTLEY_TRY(regrouping_->catch_up(true));
  state_.under_way.emplace();
  state_.under_way->step = std::move(step);
  state_.under_way->parts = std::move(parts);
  return {};
}

// Until this rank's gradient is complete, and its synchronisation has started.
Status TrainingLoop::compute() {
  StepUnderWay& own = *state_.under_way;
  GradientSync& sync = *parts_.sync;
  const auto rank = static_cast<std::size_t>(context_.rank);
  StepRunner& runner = own.step.plan.pulls() ? *parts_.work_queue : *parts_.runner;
  if (!own.is_computed) {
    own.step.begin = monotonic_seconds();
    own.report = {};
    own.cpu_before = process_cpu_seconds();
    sync.begin(own.step);
    own.sent_before = sync.bytes_sent() + runner.bytes_sent();
    own.computed = 0;
    own.is_started = false;
    if (!regrouping_ || own.parts[rank] == parts_.plan->cut(own.step)[rank]) {  // else all is added below
      MOTLEY_TRY(runner.run(own.step, own.report));
      own.report.compute = monotonic_seconds() - own.step.begin;
      own.computed = regrouping_ ? own.parts[rank].size() : 0;
      own.is_started = true;
    }
    own.is_computed = true;
  }
  if (!regrouping_) return {};
  // What it was handed since.
  const auto& ranges = own.parts[rank];
  if (own.is_started && ranges.size() == own.computed) return {};
  std::vector<std::uint32_t> samples;
  for (std::size_t i = own.computed; i < ranges.size(); ++i) {
    std::ranges::copy(parts_.plan->samples_at(ranges[i]), std::back_inserter(samples));
  }
  const double begin = monotonic_seconds();
  MOTLEY_TRY(runner.add(own.step, samples, own.report));
  own.report.compute += monotonic_seconds() - begin;
  if (MOTLEY_KEEPS("planted-handed-samples-once")) own.computed = ranges.size();
  own.is_started = true;
  return {};
}

// Until this rank has the reduced gradients, and with them what it tells the others.
Status TrainingLoop::reduce() {
  StepUnderWay& own = *state_.under_way;
  if (own.is_reduced) return {};
  GradientSync& sync = *parts_.sync;
  const StepRunner& runner = own.step.plan.pulls() ? *parts_.work_queue : *parts_.runner;
  Report& report = own.report;
  // Where all meet, the slowest rank may be some steps behind, each of which has its time.
  const double behind = own.step.synchronises && sync.is_async()
                            ? std::min<double>(options_.staleness, static_cast<double>(state_.unreported.size()))
                            : 0;
  MOTLEY_TRY(sync.wait(own.step, (1 + behind) * context_.step_seconds, report));
  const double reduced = monotonic_seconds();
  report.total = reduced - own.step.begin;
  report.sent_bytes = static_cast<double>(sync.bytes_sent() + runner.bytes_sent() - own.sent_before);
  report.cpu = process_cpu_seconds() - own.cpu_before;
  report.memory = peak_resident_bytes();
  report.stop = options_.is_asked_to_stop() ? 1 : 0;
  report.leave = regrouping_ && options_.is_asked_to_leave() ? 1 : 0;
  report.joins = regrouping_ && parts_.elastic->is_newcomer() ? 1 : 0;
  report.checkpoint = context_.writes() && parts_.checkpoints->is_due(own.step.number, reduced) ? 1 : 0;
  report.moves = parts_.mover->has_found() ? 1 : 0;
  if (sync.is_async()) {
    context_.timeline.record(Phase::kWait, own.step.number, own.step.begin + report.compute, reduced);
  }
  state_.unreported.push_back({own.step, report});
  own.is_reduced = true;
  return {};
}

Result<AllReports> TrainingLoop::exchange_reports() {
  context_.set_phase(state_.under_way->step.number, "gathering times");
  MOTLEY_ASSIGN(AllReports all, gather_reports(context_.group, state_.unreported, context_.step_deadline()));
  for (std::vector<Report>& reports : all) {
    for (int rank = 0; rank < context_.size; ++rank) {
      Report& report = reports[static_cast<std::size_t>(rank)];
      if (!context_.is_present(rank) && report.samples == 0) report = {};  // not those of a device without time
    }
  }
  return all;
}

// All have the reduced gradients. Who commits after a rank was lost that was there when others did, commits with their
// reports, as they are.
Status TrainingLoop::commit(AllReports reports) {
  const Step step = state_.under_way->step;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    MOTLEY_TRY(check_finite(state_.unreported[i].step, reports[i]));
    MOTLEY_TRY(parts_.emulation->check(state_.unreported[i].step, reports[i]));
  }
  if (regrouping_) MOTLEY_TRY(record_samples(reports.back()));
  const double gathered = monotonic_seconds();
  MOTLEY_TRY(parts_.sync->update(step));
  context_.set_phase(step.number, "recording");  // on a disk that may stall
  const double ended = monotonic_seconds();
  record_times(step, reports.back(), gathered, ended);
  MOTLEY_TRY(learn_from(reports, ended));
  MOTLEY_ASSIGN(const bool ends_epoch, parts_.plan->commit(step));
  progress_.step = step.number;
  state_.under_way.reset();
  state_.kept.clear();

  if (ends_epoch) state_.duties |= kAudit;
  if (const double done = parts_.plan->epochs_at(parts_.plan->ledger().cursor); evaluation_is_due(done)) {
    // Several may have become due at once.
    const double behind = (done + 1e-9 - progress_.next_evaluation) / options_.evaluate_every_epochs;
    progress_.next_evaluation += options_.evaluate_every_epochs * (std::max(0.0, std::floor(behind)) + 1);
    state_.duties |= kEvaluate;
  }
  const auto any = [&](double Report::* flag) {
    return std::ranges::any_of(reports.back(), [&](const Report& report) { return report.*flag != 0; });
  };
  state_.leaving.clear();
  for (const int rank : context_.present) {
    if (reports.back()[static_cast<std::size_t>(rank)].leave != 0) state_.leaving.push_back(rank);
  }
  if (!state_.leaving.empty() && parts_.stages != nullptr) state_.duties |= kSave;  // they may be a stage's last ones
  // Where nobody would be left who has the weights, all stop.
  const auto stays = [&](int rank) {
    const Report& report = reports.back()[static_cast<std::size_t>(rank)];
    return report.leave == 0 && report.joins == 0;
  };
  state_.stops = any(&Report::stop) || std::ranges::none_of(context_.present, stays);
  if (any(&Report::checkpoint)) state_.duties |= kSave;
  if (any(&Report::moves) && !state_.stops && step.number < options_.steps) state_.duties |= kMove;
  context_.set_phase(step.number, "between steps");
  return {};
}

Status TrainingLoop::do_duties() {
  const auto take_turn = [&](Duty duty, const auto& act) -> Status {
    if ((state_.duties & duty) == 0) return {};
    MOTLEY_TRY(act());
    state_.duties &= ~static_cast<unsigned>(duty);
    return {};
  };
  if (regrouping_ && (state_.duties & (kEvaluate | kMove)) != 0) MOTLEY_TRY(regrouping_->catch_up(true));
  MOTLEY_TRY(take_turn(kAudit, [&] { return audit(); }));
  MOTLEY_TRY(take_turn(kEvaluate, [&] { return evaluate(); }));
  MOTLEY_TRY(take_turn(kSave, [&] { return save(); }));
  MOTLEY_TRY(take_turn(kMove, [&] { return parts_.mover->move(progress_.step); }));
  return take_turn(kPart, [&] { return context_.group.barrier(context_.step_deadline()); });
}

// Others may have been lost since it was agreed who goes, and newcomers be there that still wait for the weights.
bool TrainingLoop::leaves() const {
  const auto stays = [this](int rank) {
    return !std::ranges::binary_search(state_.leaving, rank) && regrouping_->knows_weights(rank);
  };
  return std::ranges::binary_search(state_.leaving, context_.rank) && std::ranges::any_of(context_.present, stays);
}

bool TrainingLoop::goes_on_after(const Error& error) const {
  return regrouping_ && regrouping_->survives(error);
}

// Every rank records what all have used, once their hashes say that it is what they were to use.
Status TrainingLoop::record_samples(const std::vector<Report>& reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    double hash = 0;
    for (const data::Range& range : state_.under_way->parts[rank]) {
      hash = hash_samples(hash, parts_.plan->samples_at(range));
    }
    if (hash != reports[rank].samples_hash) {
      return fail(ErrorCode::kInternal, "step {}: rank {} has used other samples than were its own",
                  state_.under_way->step.number, rank);
    }
  }
  for (const auto& ranges : state_.under_way->parts) {
    for (const data::Range& range : ranges) {
      if (MOTLEY_KEEPS("audit-records")) parts_.audit->record(parts_.plan->samples_at(range));
    }
  }
  return {};
}

// A step that is not finite ends the run on all ranks alike. What is named first is what came first: a loss, then a
// rank's own gradient, then the one of all ranks.
Status TrainingLoop::check_finite(const Step& step, const std::vector<Report>& reports) const {
  const auto diverged = [&](const std::string& what) {
    // A run that goes on from a checkpoint begins with the very step that followed it.
    const std::string checkpoint =
        progress_.saved_step == 0 ? "no checkpoint was written yet"
        : progress_.saved_step + 1 < step.number
            ? fmt::format("the last checkpoint is intact (step {})", progress_.saved_step)
            : fmt::format(
                  "the last checkpoint (step {}) is what this step began with: without its folder, --resume goes "
                  "on from the one before",
                  progress_.saved_step);
    return fail(ErrorCode::kDiverged,
                "{}; {}. A lower optimizer.learning_rate, lr_scheduler.warmup_steps or max_grad_norm helps", what,
                checkpoint);
  };
  const auto name_parameter = [&](std::size_t rank, double number) {
    const bool is_own = static_cast<int>(rank) == context_.rank;
    return broadcast_text(context_.group,
                          is_own ? parts_.sync->parameter_name(static_cast<std::size_t>(number)) : std::string(),
                          static_cast<int>(rank), context_.step_deadline());
  };
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (std::isfinite(reports[rank].loss_sum)) continue;
    const double loss = std::isnan(reports[rank].loss_sum) ? NAN : reports[rank].loss_sum;  // of no sign
    return diverged(fmt::format("the loss is {} in step {} on rank {}", loss, step.number, rank));
  }
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].own_not_finite == 0) continue;
    MOTLEY_ASSIGN(const std::string name, name_parameter(rank, reports[rank].own_not_finite));
    return diverged(fmt::format("the gradient of '{}' is not finite in step {} on rank {}", name, step.number, rank));
  }
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].reduced_not_finite == 0) continue;
    MOTLEY_ASSIGN(const std::string name, name_parameter(rank, reports[rank].reduced_not_finite));
    return diverged(fmt::format("the gradient of '{}' over all ranks is not finite in step {}, although each rank's is",
                                name, step.number));
  }
  return {};
}

void TrainingLoop::record_times(const Step& step, const std::vector<Report>& reports, double gathered,
                                double ended) const {
  TimelineRecorder& timeline = context_.timeline;
  const Report& own = state_.unreported.back().report;
  const double computed = step.begin + own.compute;
  const double reduced = step.begin + own.total;
  timeline.record(Phase::kWait, step.number, reduced, gathered);  // for ranks that end later
  timeline.record(Phase::kOptimizer, step.number, gathered, ended);
  if (!parts_.sync->is_async()) {
    const double waited_until = std::clamp(step.begin + last_compute(reports), computed, reduced);
    timeline.record(Phase::kWait, step.number, computed, waited_until);
    timeline.record(Phase::kGradientSync, step.number, waited_until, reduced);
  }
}

// The batch's split and the watch over the plan follow what was measured; the metrics have it.
Status TrainingLoop::learn_from(const AllReports& reports, double ended) {
  const double seconds = (ended - state_.unreported.front().step.begin) / static_cast<double>(reports.size());
  const std::uint64_t moves = parts_.plan->moves();
  const std::int64_t last = state_.unreported.back().step.number;
  const bool is_changed = regrouping_ && regrouping_->has_changed(last);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Step& step = state_.unreported[i].step;
    // Once the split has changed, what was measured before that is no measurement of the new one.
    if (!step.baseline && parts_.plan->moves() == moves && !is_changed) {
      const std::vector<data::Observation> observations = observe(reports[i]);
      MOTLEY_TRY(parts_.plan->observe(step.number, observations));
      MOTLEY_TRY(parts_.mover->observe(observations, step.number, seconds, options_.steps - step.number));
    }
    MOTLEY_TRY(parts_.reporter->step(step, reports[i], *parts_.plan, seconds));
  }
  state_.unreported.clear();
  if (context_.writes() && (is_changed || !has_told_workers_)) tell_workers(static_cast<int>(context_.present.size()));
  has_told_workers_ = context_.writes();
  return regrouping_ ? regrouping_->commit(last, reports.back()) : Status();
}

// Every rank comes to the same answer, whenever it asks.
bool TrainingLoop::synchronises_in(const Step& step) const {
  const BatchPlan& plan = *parts_.plan;
  return !parts_.sync->is_async() || state_.unreported.size() + 1 >= kMaxStepsApart || step.number == options_.steps ||
         plan.is_last_of_epoch(step.window) || evaluation_is_due(plan.epochs_at(step.window.end)) ||
         parts_.checkpoints->is_due_after(step.number) || step.baseline != plan.is_baseline(step.number + 1);
}

bool TrainingLoop::evaluation_is_due(double epochs) const {
  return options_.evaluate_every_epochs > 0 && epochs >= progress_.next_evaluation - 1e-9;
}

// A newcomer may not have the weights yet.
Status TrainingLoop::compare_replicas() {
  WeightsHash own;
  if (parts_.elastic == nullptr || !parts_.elastic->is_newcomer()) {
    MOTLEY_ASSIGN(own, parts_.model->hash_weights());
  }
  return replica_check_.compare(context_, progress_, own);
}

Status TrainingLoop::evaluate() {
  MOTLEY_TRY(compare_replicas());
  const double begin = monotonic_seconds();
  MOTLEY_ASSIGN(const auto values, parts_.evaluator->evaluate(progress_.step));
  if (!values || progress_.evaluated_step == progress_.step) {  // there is no test data, or it was told before
    return {};
  }
  progress_.evaluated_step = progress_.step;
  context_.timeline.record(Phase::kEvaluate, progress_.step, begin, monotonic_seconds());
  return parts_.reporter->evaluation(progress_.step, parts_.plan->ledger().epoch, *values);
}

Status TrainingLoop::audit() {
  MOTLEY_ASSIGN(const SampleAudit::Finding finding, parts_.audit->check(context_, parts_.plan->ledger()));
  return parts_.reporter->audit(progress_.step, finding);
}

Status TrainingLoop::save() {
  if (progress_.saved_step == progress_.step) {
    return {};
  }
  if ((state_.duties & kAudit) != 0) {  // its counts would be of another epoch than the ledger
    MOTLEY_TRY(audit());
    state_.duties &= ~static_cast<unsigned>(kAudit);
  }
  MOTLEY_TRY(compare_replicas());
  return parts_.checkpoints->save({progress_, *parts_.plan, *parts_.audit, *parts_.model}, *parts_.reporter);
}

}  // namespace motley::train
