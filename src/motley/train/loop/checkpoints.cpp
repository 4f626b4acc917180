#include "motley/train/loop/checkpoints.h"

#include "motley/base/guard.h"

namespace motley::train {

Result<Checkpoint> Checkpoints::gather(const RunState& state, bool with_optimizer) const {
  const RunProgress& progress = state.progress;
  MOTLEY_ASSIGN(const data::UseCounts merged, state.audit.merge(context_));
  Result<std::string> weights = state.model.weights(progress.step);
  if (!weights && weights.error().code == ErrorCode::kDiverged) {
    return fail(ErrorCode::kDiverged,
                "after step {} {}, so that no checkpoint is made of them; {}. A lower optimizer.learning_rate, "
                "lr_scheduler.warmup_steps or max_grad_norm helps",
                progress.step, weights.error().message,
                progress.saved_step > 0 ? fmt::format("the last one is intact (step {})", progress.saved_step)
                                        : "none was written yet");
  }
  if (!weights) return fail(weights.error());
  std::string optimizer;
  if (with_optimizer) {
    MOTLEY_ASSIGN(optimizer, state.model.optimizer(progress.step));
  }
  Checkpoint checkpoint{progress.step, {}};
  if (context_.writes()) {
    checkpoint.files[kWeightsFile] = std::move(*weights);
    checkpoint.files[kOptimizerFile] = std::move(optimizer);
    checkpoint.files[kAuditFile] = merged.serialise();
    checkpoint.files[kStateFile] = describe(state);
  }
  return checkpoint;
}

std::string Checkpoints::describe(const RunState& state) const {
  SavedState saved;
  saved.step = state.progress.step;
  state.plan.save(saved);
  saved.table_servers = state.model.embedding_servers();
  saved.evaluated_step = state.progress.evaluated_step;
  saved.next_evaluation = state.progress.next_evaluation;
  saved.not_used_once = state.audit.not_used_once();
  return format_state(saved);
}

Status Checkpoints::save(const RunState& state, Reporter& reporter) {
  if (!keeps_any()) {
    return {};
  }
  const std::int64_t step = state.progress.step;
  const double begin = monotonic_seconds();
  context_.set_phase(step, "checkpoint");
  MOTLEY_ASSIGN(const Checkpoint checkpoint, gather(state));
  if (context_.writes()) {
    if (state.model.embedding_servers() > 0) {
      MOTLEY_TRY(state.model.save_embeddings());
    }
    MOTLEY_TRY(write_checkpoint(folder_, checkpoint, options_.keep));
    MOTLEY_TRY(reporter.event(step, "checkpoint", fmt::format("step {}", step)));
    MOTLEY_TRY(reporter.flush());
  }
  if (MOTLEY_KEEPS("checkpoint-all-know")) MOTLEY_TRY(context_.group.barrier(context_.long_deadline()));
  state.progress.saved_step = step;
  const double end = monotonic_seconds();
  start_clock(end);
  context_.timeline.record(Phase::kCheckpoint, step, begin, end);
  context_.timeline.keep();
  return {};
}

// These files, from the root to all.
Status Checkpoints::send(Checkpoint& checkpoint, std::initializer_list<const char*> files, collective::Group& group,
                         int root) const {
  const Deadline deadline = context_.long_deadline();
  for (const char* name : files) {
    MOTLEY_ASSIGN(checkpoint.files[name], broadcast_text(group, std::move(checkpoint.files[name]), root, deadline));
  }
  return {};
}

Result<Checkpoint> Checkpoints::hand_out(const RunState& state, collective::Group& group, int root) const {
  MOTLEY_ASSIGN(Checkpoint now, gather(state, state.model.has_optimizer()));
  MOTLEY_TRY(send(now, {kStateFile, kAuditFile}, group, root));
  return now;
}

Status Checkpoints::take_over(const RunState& state, collective::Group& group, int root) const {
  Checkpoint now;
  MOTLEY_TRY(send(now, {kStateFile, kAuditFile}, group, root));
  MOTLEY_ASSIGN(const bool is_whole, load_run(now, state));
  return is_whole ? Status() : fail(ErrorCode::kInternal, "the others split the batch in a way that is unknown here");
}

Result<bool> Checkpoints::restore(Checkpoint start, const RunState& state,
                                  const std::function<Status(Status)>& explain) const {
  MOTLEY_TRY(send(start, {kWeightsFile, kOptimizerFile, kStateFile, kAuditFile}, context_.group, context_.writer));
  MOTLEY_TRY(explain(load_model(start, state.model)));
  return load_run(start, state);
}

Status Checkpoints::load_model(const Checkpoint& checkpoint, ModelState& model) {
  const auto text = [&](const char* name) -> const std::string& { return checkpoint.files.at(name); };
  if (!text(kWeightsFile).empty()) MOTLEY_TRY(model.load_weights(text(kWeightsFile)));
  return text(kOptimizerFile).empty() ? Status() : model.load_optimizer(text(kOptimizerFile));
}

Result<bool> Checkpoints::load_run(const Checkpoint& start, const RunState& state) const {
  const auto text = [&](const char* name) -> const std::string& { return start.files.at(name); };
  if (text(kStateFile).empty()) {
    MOTLEY_TRY(state.model.start(0, 0));
    return true;
  }
  MOTLEY_ASSIGN(const SavedState saved, parse_state(text(kStateFile)));
  MOTLEY_ASSIGN(const bool restored, state.plan.restore(saved));
  if (!text(kAuditFile).empty()) {
    MOTLEY_TRY(state.audit.restore(text(kAuditFile), saved.not_used_once, saved.ledger.epoch, context_.writes()));
  }
  state.progress = {saved.step, saved.evaluated_step, saved.step, saved.next_evaluation};
  MOTLEY_TRY(state.model.start(saved.step, saved.table_servers));
  return restored;
}

}  // namespace motley::train
