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
#include "motley/train/loop/training_loop.h"

#include <algorithm>
#include <cmath>

namespace motley::train {

static constexpr std::size_t kMaxStepsApart = 20;  // after so many all ranks meet

Status TrainingLoop::run() {
  bool stop = false;
  while (progress_.step < options_.steps && !stop) {
    MOTLEY_ASSIGN(stop, step());
  }
  if (stop) {
    MOTLEY_TRY(save());
    MOTLEY_TRY(parts_.reporter->event(progress_.step, "interrupted", fmt::format("after step {}", progress_.step)));
    return fail(ErrorCode::kInterrupted, "stopped after step {}{}", progress_.step,
                parts_.checkpoints->keeps_any() ? "; a checkpoint was written" : "");
  }
  if (progress_.evaluated_step != progress_.step && options_.evaluate_every_epochs >= 0) {
    MOTLEY_TRY(evaluate());
  }
  MOTLEY_TRY(save());
  return parts_.plan->ledger().cursor != 0 ? audit() : Status();
}

// Whether a rank was asked to stop.
Result<bool> TrainingLoop::step() {
  MOTLEY_ASSIGN(Step step, parts_.plan->next(++progress_.step));
  step.learning_rate = options_.learning_rate(step.number);
  step.synchronises = synchronises_in(step);
  step.begin = monotonic_seconds();
  MOTLEY_TRY(compute(step));
  if (!step.synchronises) {
    MOTLEY_TRY(parts_.plan->commit(step));
    return false;
  }

  MOTLEY_ASSIGN(const AllReports reports, exchange_reports());
  const double gathered = monotonic_seconds();
  MOTLEY_TRY(parts_.sync->update(step));
  const double ended = monotonic_seconds();
  record_times(step, reports.back(), gathered, ended);
  MOTLEY_TRY(learn_from(reports, ended));
  MOTLEY_ASSIGN(const bool ends_epoch, parts_.plan->commit(step));
  if (ends_epoch) {
    MOTLEY_TRY(audit());
  }
  if (const double done = parts_.plan->epochs_at(parts_.plan->ledger().cursor); evaluation_is_due(done)) {
    // Several may have become due at once.
    const double behind = (done + 1e-9 - progress_.next_evaluation) / options_.evaluate_every_epochs;
    progress_.next_evaluation += options_.evaluate_every_epochs * (std::max(0.0, std::floor(behind)) + 1);
    MOTLEY_TRY(evaluate());
  }
  const Report& first = reports.back().front();
  const bool stop = std::ranges::any_of(reports.back(), [](const Report& report) { return report.stop != 0; });
  if (first.checkpoint != 0) {
    MOTLEY_TRY(save());
  }
  if (first.moves != 0 && !stop && step.number < options_.steps) {
    MOTLEY_TRY(parts_.mover->move(step.number));
  }
  return stop;
}

// Until this rank has the reduced gradients, and with them what it tells the others.
Status TrainingLoop::compute(const Step& step) {
  GradientSync& sync = *parts_.sync;
  StepRunner& runner = step.plan.pulls() ? *parts_.work_queue : *parts_.runner;
  Report report;
  const double cpu_before = process_cpu_seconds();
  sync.begin(step);
  const std::uint64_t sent_before = sync.bytes_sent() + runner.bytes_sent();
  MOTLEY_TRY(runner.run(step, report));
  report.compute = monotonic_seconds() - step.begin;
  // Where all meet, the slowest rank may be some steps behind, each of which has its time.
  const double behind = step.synchronises && sync.is_async()
                            ? std::min<double>(options_.staleness, static_cast<double>(unreported_.size()))
                            : 0;
  MOTLEY_TRY(sync.wait(step, (1 + behind) * context_.step_seconds, report));
  const double reduced = monotonic_seconds();
  report.total = reduced - step.begin;
  report.sent_bytes = static_cast<double>(sync.bytes_sent() + runner.bytes_sent() - sent_before);
  report.cpu = process_cpu_seconds() - cpu_before;
  report.memory = peak_resident_bytes();
  report.stop = options_.is_asked_to_stop() ? 1 : 0;
  report.checkpoint = context_.writes() && parts_.checkpoints->is_due(step.number, reduced) ? 1 : 0;
  report.moves = parts_.mover->has_found() ? 1 : 0;
  if (sync.is_async()) {
    context_.timeline.record(Phase::kWait, step.number, step.begin + report.compute, reduced);
  }
  unreported_.push_back({step, report});
  return {};
}

Result<AllReports> TrainingLoop::exchange_reports() {
  context_.set_phase(progress_.step, "gathering times");
  MOTLEY_ASSIGN(AllReports all, gather_reports(context_.group, unreported_, context_.step_deadline()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    MOTLEY_TRY(check_finite(unreported_[i].step, all[i]));
    MOTLEY_TRY(parts_.emulation->check(unreported_[i].step, all[i]));
  }
  return all;
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
    return diverged(fmt::format("the loss is {} in step {} on rank {}", reports[rank].loss_sum, step.number, rank));
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
  const Report& own = unreported_.back().report;
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
  const double seconds = (ended - unreported_.front().step.begin) / static_cast<double>(reports.size());
  const std::uint64_t moves = parts_.plan->moves();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Step& step = unreported_[i].step;
    // Once the split has changed, what was measured before that is no measurement of the new one.
    if (!step.baseline && parts_.plan->moves() == moves) {
      const std::vector<data::Observation> observations = observe(reports[i]);
      MOTLEY_TRY(parts_.plan->observe(step.number, observations));
      parts_.mover->observe(observations, options_.steps - step.number);
    }
    MOTLEY_TRY(parts_.reporter->step(step, reports[i], *parts_.plan, seconds));
  }
  unreported_.clear();
  return {};
}

// Every rank comes to the same answer, whenever it asks.
bool TrainingLoop::synchronises_in(const Step& step) const {
  const BatchPlan& plan = *parts_.plan;
  return !parts_.sync->is_async() || unreported_.size() + 1 >= kMaxStepsApart || step.number == options_.steps ||
         plan.is_last_of_epoch(step.window) || evaluation_is_due(plan.epochs_at(step.window.end)) ||
         parts_.checkpoints->is_due_after(step.number) || step.baseline != plan.is_baseline(step.number + 1);
}

bool TrainingLoop::evaluation_is_due(double epochs) const {
  return options_.evaluate_every_epochs > 0 && epochs >= progress_.next_evaluation - 1e-9;
}

Status TrainingLoop::evaluate() {
  const double begin = monotonic_seconds();
  MOTLEY_ASSIGN(const auto values, parts_.evaluator->evaluate(progress_.step));
  if (!values) {  // there is no test data
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
  return parts_.checkpoints->save({progress_, *parts_.plan, *parts_.audit, *parts_.model}, *parts_.reporter);
}

}  // namespace motley::train
