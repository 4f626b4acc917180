// What is found out and kept of a run: the lines of its metrics, evaluations, the audit of samples, checkpoints.
#include "motley/train/loop/worker_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/nn/tensor_file.h"
#include "motley/train/checkpoint/saved_state.h"
#include "motley/train/loop/summary.h"

namespace motley::train {

namespace {

constexpr std::int64_t kEmulationCheckSteps = 20;  // the load is averaged over so many steps
constexpr double kLateFactor = 1.1;  // an emulated step that takes longer than this times its deadline is late
constexpr double kLateShare = 0.1;   // and so large a share of late steps is told
// Counts are summed several in one double, whose 53 bits hold three sums of at most 1024 ranks' counts of up to 63.
constexpr std::size_t kPacked = 3;
constexpr double kPackedBase = 65536;
constexpr std::uint8_t kMaxCount = 63;
constexpr std::size_t kAuditChunk = kPacked << 16;  // counts summed at a time

}  // namespace

// What each stage's first rank has, put together; complete on rank 0 and nowhere else.
Result<std::string> Worker::collect(const std::function<Result<nn::NamedTensors>()>& own) {
  const Deadline deadline = Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step);
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(step_)}};
  nn::NamedTensors all;
  for (int stage = 0; stage < (layout_ ? layout_->stages() : 1); ++stage) {
    const int root = layout_ ? layout_->list_ranks(stage).front() : 0;
    nn::NamedTensors tensors;
    if (root == role_.rank) {
      MOTLEY_ASSIGN(tensors, own());
      if (tied_) tensors = tied_->without_copies(std::move(tensors));
    }
    if (root == 0) {
      all.insert(all.end(), tensors.begin(), tensors.end());
      continue;
    }
    std::string text;
    if (root == role_.rank) {
      MOTLEY_ASSIGN(text, nn::encode_tensors(tensors));
    }
    MOTLEY_ASSIGN(text, broadcast_text(*group_, std::move(text), root, deadline));
    if (writes()) {
      MOTLEY_ASSIGN(const nn::TensorFile part, nn::decode_tensors(text));
      all.insert(all.end(), part.tensors.begin(), part.tensors.end());
    }
  }
  return writes() ? nn::encode_tensors(all, metadata) : std::string();
}

// What every rank finds out alike: a loss that is no number, an emulation that this machine is too busy for.
Status Worker::check_reports(const std::vector<Report>& reports, const StepRecord& record) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!std::isfinite(reports[rank].loss_sum)) {
      return fail(Error{ErrorCode::kDiverged,
                        fmt::format("the loss is {} in step {} on rank {}; the last checkpoint is intact ({}). A lower "
                                    "optimizer.learning_rate, lr_scheduler.warmup_steps or max_grad_norm helps",
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
  if (record.baseline) {
    return {};
  }
  loads_.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    loads_[rank].name = fmt::format("rank {} ({})", rank, description(static_cast<int>(rank)).name);
    loads_[rank].cpu_seconds += reports[rank].cpu / static_cast<double>(kEmulationCheckSteps);
    if (reports[rank].target >= 0 && !is_synthetic(job_)) {  // whose work is to send, which the emulated host does, too
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
  const bool async = is_async();
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
  const bool has_accuracy = metric_ == nn::Metric::kAccuracy;
  const data::BatchSplitDiagnostics diagnostics = splitter_ ? splitter_->diagnostics() : data::BatchSplitDiagnostics();

  Json line = {{"step", record.step},
               {"epoch", record.ledger.epoch},
               {"time", monotonic_seconds() - started_},
               {"loss", loss},
               {has_accuracy ? "accuracy" : "mean_absolute_error", metric},
               {"learning_rate", record.learning_rate},
               {"step_seconds", step_seconds},
               {"mode", layout_           ? "plan"
                        : record.baseline ? "equal"
                        : record.pulls    ? "work-queue"
                                          : job_.batch_split.mode},
               {"baseline", record.baseline}};
  for (const char* key : {"batch_split", "samples", "compute_seconds", "load_seconds", "gradient_sync_seconds",
                          "wait_seconds", "memory_bytes"}) {
    line[key] = Json::array();
  }
  for (const Report& r : reports) {
    // At a step of its own a rank waits for the server, which may wait for others; else it waits for the last rank, and
    // by a plan for its neighbours, too.
    const double wait = (async ? r.total : last) - r.compute + r.waited;
    line["batch_split"].push_back(static_cast<std::int64_t>(r.samples));
    line["samples"].push_back(static_cast<std::int64_t>(r.samples));
    line["compute_seconds"].push_back(r.compute - r.load - r.waited);
    line["load_seconds"].push_back(r.load);
    line["memory_bytes"].push_back(r.memory);
    line["wait_seconds"].push_back(wait);
    line["gradient_sync_seconds"].push_back(std::max(0.0, r.total - r.compute - wait + r.waited));
    if (async) {
      line["staleness"].push_back(static_cast<std::int64_t>(r.staleness));
    }
    if (!job_.data.server.empty()) {
      line["data_wait_seconds"].push_back(r.fetched);
    }
  }
  const auto of_each = [&](double Report::* value) {
    Json values = Json::array();
    for (const Report& r : reports) values.push_back(r.*value);
    return values;
  };
  line["sent_bytes"] = of_each(&Report::sent_bytes);
  if (has_served_table(job_)) {
    line["embedding"] = {{"pulled_bytes", of_each(&Report::rows_pulled_bytes)},
                         {"pushed_bytes", of_each(&Report::rows_pushed_bytes)},
                         {"wait_seconds", of_each(&Report::rows_waited)},
                         {"needed", of_each(&Report::rows_needed)},
                         {"cached", of_each(&Report::rows_cached)},
                         {"prefetched", of_each(&Report::rows_prefetched)}};
  }
  if (layout_ && layout_->plan().predicted.step_seconds > 0) {
    line["predicted_seconds"] = layout_->plan().predicted.step_seconds;
  } else if (diagnostics.predicted > 0) {
    line["predicted_seconds"] = diagnostics.predicted + diagnostics.common;
    line["bound_seconds"] = diagnostics.bound;
    line["equal_seconds"] = data::step_seconds(
        diagnostics.costs,
        equal_split(static_cast<std::uint32_t>(job_.training.global_batch_size), splitter_->options().limits));
  }
  if (split_moves() != moves_) {
    moves_ = split_moves();
    line["decision"] = stage_split_ ? stage_split_->reason() : diagnostics.reason;
  }
  MOTLEY_TRY(metrics_->write(line));

  MOTLEY_TRY(tensorboard_->scalar("train/loss", record.step, loss));
  MOTLEY_TRY(tensorboard_->scalar(has_accuracy ? "train/accuracy" : "train/mean_absolute_error", record.step, metric));
  MOTLEY_TRY(tensorboard_->scalar("train/learning_rate", record.step, record.learning_rate));
  MOTLEY_TRY(tensorboard_->scalar("time/step_seconds", record.step, step_seconds));
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    MOTLEY_TRY(tensorboard_->scalar(fmt::format("batch_split/rank_{}", rank), record.step, reports[rank].samples));
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

Status Worker::evaluate_own_part(nn::Evaluation& evaluation) {
  const std::uint64_t size = test_data_->size();
  const auto ranks = static_cast<std::uint64_t>(role_.size);
  const auto rank = static_cast<std::uint64_t>(role_.rank);
  const auto first = static_cast<std::uint32_t>(size * rank / ranks);
  const auto end = static_cast<std::uint32_t>(size * (rank + 1) / ranks);
  const std::uint32_t block = static_cast<std::uint32_t>(std::min<std::int64_t>(job_.training.global_batch_size, 256));
  const auto block_at = [&](std::uint32_t at) {
    std::vector<std::uint32_t> samples(std::min(block, end - at));
    std::iota(samples.begin(), samples.end(), at);
    test_data_->expect(samples, {});
    return samples;
  };
  data::Batch batch;
  std::vector<std::uint32_t> next;
  for (std::uint32_t at = first; at < end; at += block) {
    batch.samples = at == first ? block_at(at) : std::move(next);
    if (end - at > block) {
      next = block_at(at + block);
    }
    MOTLEY_TRY(read_batch(*test_data_, batch));
    MOTLEY_ASSIGN(const torch::Tensor inputs, make_inputs(batch, *test_data_));
    MOTLEY_ASSIGN(const nn::Tensors outputs, stage_->forward(0, {inputs}));
    MOTLEY_TRY(evaluation.add(outputs.front(), batch_targets(batch, *test_data_, device_, dtype_)));
  }
  return {};
}

// The test data go through the stages as training data do, a batch at a time.
Status Worker::evaluate_planned(nn::Evaluation& evaluation) {
  const std::uint32_t size = test_data_->size();
  const auto block = static_cast<std::uint32_t>(job_.training.global_batch_size);
  data::Batch batch;
  for (std::uint32_t at = 0; at < size; at += std::min(block, size - at)) {
    const data::Range window{at, at + std::min(block, size - at)};
    batch.samples.clear();
    for (const data::Range& rows : pipeline_->own_rows(window)) {
      for (std::uint32_t sample = rows.begin; sample < rows.end; ++sample) batch.samples.push_back(sample);
    }
    torch::Tensor inputs, targets;
    if (layout_->is_first(role_.rank) || layout_->is_last(role_.rank)) {
      MOTLEY_TRY(read_batch(*test_data_, batch, own_parts()));
      if (layout_->is_first(role_.rank)) {
        MOTLEY_ASSIGN(inputs, make_inputs(batch, *test_data_));
      }
      if (layout_->is_last(role_.rank)) {
        targets = batch_targets(batch, *test_data_, device_, dtype_);
      }
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
  nn::Evaluation evaluation(loss_, nn::default_metrics(loss_, test_data_->class_count()));
  MOTLEY_TRY(pipeline_ ? evaluate_planned(evaluation) : evaluate_own_part(evaluation));
  stage_->train(true);
  MOTLEY_TRY(
      group_->all_reduce_sum(evaluation.totals(), Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step)));
  evaluated_step_ = step_;
  timeline_->record(Phase::kEvaluate, step_, begin, monotonic_seconds());
  if (!writes()) {
    return {};
  }
  Json values = Json::object();
  std::string text;
  for (const nn::NamedValue& value : evaluation.values()) {
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
  std::vector<std::uint8_t> merged(counts_->counts().size());
  std::vector<double> packed;
  for (std::size_t begin = 0; begin < merged.size(); begin += kAuditChunk) {
    const auto counts = counts_->counts().subspan(begin, std::min(kAuditChunk, merged.size() - begin));
    packed.assign((counts.size() + kPacked - 1) / kPacked, 0);
    for (std::size_t i = counts.size(); i-- > 0;) {
      packed[i / kPacked] = packed[i / kPacked] * kPackedBase + std::min(counts[i], kMaxCount);
    }
    MOTLEY_TRY(group_->all_reduce_sum(packed, step_deadline()));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double& left = packed[i / kPacked];
      const double others = std::floor(left / kPackedBase);
      merged[begin + i] = static_cast<std::uint8_t>(std::min(255.0, left - others * kPackedBase));
      left = others;
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
    spdlog::error("epoch {}: {} samples lost or duplicated", merged.epoch(), wrong);
  }
  return metrics_->write({{"step", step_},
                          {"epoch", merged.epoch()},
                          {"time", monotonic_seconds() - started_},
                          {"event", "audit"},
                          {"text", fmt::format("epoch {}: {} samples lost or duplicated", merged.epoch(), wrong)},
                          {"samples_lost_or_duplicated", wrong}});
}

// All that a checkpoint holds of this process's and the others' state; rank 0's alone is complete. Collective.
Result<Checkpoint> Worker::gather_state() {
  MOTLEY_ASSIGN(const data::UseCounts merged, merge_counts());
  MOTLEY_ASSIGN(std::string weights, collect([&]() -> Result<nn::NamedTensors> { return stage_->state(); }));
  MOTLEY_ASSIGN(std::string optimizer, collect([&]() -> Result<nn::NamedTensors> {
                  if (!served_) return optimizer_->state();
                  return served_->optimizer_state(Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step));
                }));
  Checkpoint checkpoint;
  checkpoint.step = step_;
  if (writes()) {
    checkpoint.files["weights.safetensors"] = std::move(weights);
    checkpoint.files["optimizer.safetensors"] = std::move(optimizer);
    checkpoint.files["audit.bin"] = merged.serialise();
    checkpoint.files["state.json"] = format_state(
        {step_, ledger_->state(), splitter_ ? splitter_->save() : "", stage_split_ ? stage_split_->save() : "",
         table_ ? table_->servers() : 0, evaluated_step_, next_evaluation_, not_used_once_});
  }
  return checkpoint;
}

Status Worker::save_checkpoint() {
  if (!keeps_checkpoints()) {
    return {};
  }
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "checkpoint");
  MOTLEY_ASSIGN(const Checkpoint checkpoint, gather_state());
  if (writes()) {
    if (table_) {
      MOTLEY_TRY(table_->save(Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step)));
    }
    MOTLEY_TRY(write_checkpoint(run_.checkpoint_folder(), checkpoint, static_cast<int>(job_.checkpoint.keep)));
    MOTLEY_TRY(event("checkpoint", fmt::format("step {}", step_)));
    MOTLEY_TRY(tensorboard_->flush());
  }
  MOTLEY_TRY(group_->barrier(Deadline::after(kCheckpointDeadlineFactor * job_.deadline.step)));
  saved_step_ = step_;
  next_checkpoint_ = monotonic_seconds() + job_.checkpoint.every;
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
Status Worker::log_lateness() {
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
  if (job_.timeline.steps > 0) {
    MOTLEY_TRY(timeline_->write_part(run_.folder() / "logs"));
  }
  MOTLEY_TRY(group_->barrier(step_deadline()));
  if (!writes()) {
    return {};
  }
  MOTLEY_TRY(log_lateness());
  MOTLEY_TRY(tensorboard_->flush());
  if (job_.timeline.steps > 0 && session_->membership().on_one_host()) {
    std::vector<std::filesystem::path> parts;
    for (int rank = 0; rank < role_.size; ++rank) {
      parts.push_back(timeline_part(run_.folder() / "logs", rank));
    }
    MOTLEY_TRY(merge_timelines(parts, run_.folder() / "timeline.json"));
  }
  return write_summary(run_, job_);
}

}  // namespace motley::train
