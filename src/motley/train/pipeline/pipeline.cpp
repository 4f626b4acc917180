// What comes from neighbours is asked for one micro-batch ahead, so that it arrives while the one before is computed,
// and no more of it lies in memory than that.
#include "motley/train/pipeline/pipeline.h"

#include <algorithm>
#include <deque>

#include "motley/base/clock.h"
#include "motley/base/os/injected_fault.h"
#include "motley/planning/plan/plan.h"

namespace motley::train {
namespace {

std::span<std::byte> byte_size(const torch::Tensor& rows) {
  return {static_cast<std::byte*>(rows.data_ptr()), static_cast<std::size_t>(rows.nbytes())};
}

torch::Tensor select_rows(const torch::Tensor& values, data::Range rows) {
  return values.narrow(0, rows.begin, rows.size());
}

}  // namespace

struct Pipeline::Step {
  const std::uint64_t number;
  const torch::Tensor inputs;
  Deadline deadline;
  const Hooks& hooks;
  std::vector<StageLayout::MicroBatch> micro_batches = {};
  std::vector<data::Range> own = {};  // of each micro-batch, in this rank's rows of the step
  std::vector<double> samples = {};   // by rank, of whose mean loss its gradient is
  std::map<std::int64_t, Incoming> activations = {};
  std::map<std::int64_t, Incoming> gradients = {};
  std::map<std::int64_t, torch::Tensor> output_gradients = {};
  struct Outgoing {
    std::int64_t micro_batch;
    Kind kind;
    nn::DeviceCopies::Arriving rows;
  };
  std::deque<Outgoing> outgoing = {};  // that a GPU is still computing or copying
  std::int64_t expected_activations = 0;
  std::int64_t expected_gradients = 0;
  std::int64_t last_backward = -1;

  const StageLayout::MicroBatch& at(std::int64_t micro_batch) const {
    return micro_batches[static_cast<std::size_t>(micro_batch)];
  }
  data::Range rows(std::int64_t micro_batch) const { return own[static_cast<std::size_t>(micro_batch)]; }
};

std::uint64_t Pipeline::make_tag(const Step& step, std::int64_t micro_batch, Kind kind) {
  return step.number << 24 | static_cast<std::uint64_t>(micro_batch) << 2 | static_cast<std::uint64_t>(kind);
}

Pipeline::Pipeline(net::Session& session, const StageLayout& layout, nn::Stage& stage, nn::DeviceCopies copies,
                   std::vector<std::int64_t> input_shape, std::vector<std::int64_t> output_shape)
    : session_(session),
      layout_(layout),
      stage_(stage),
      copies_(std::move(copies)),
      rank_(session.membership().rank),
      input_shape_(std::move(input_shape)),
      output_shape_(std::move(output_shape)) {}

Result<std::unique_ptr<Pipeline>> Pipeline::create(net::Session& session, const StageLayout& layout, nn::Stage& stage,
                                                   std::vector<std::int64_t> input_shape,
                                                   std::vector<std::int64_t> output_shape, bool overlaps,
                                                   const Deadline& deadline) {
  MOTLEY_ASSIGN(nn::DeviceCopies copies, nn::DeviceCopies::create(stage.options().device, overlaps));
  std::unique_ptr<Pipeline> pipeline(
      new Pipeline(session, layout, stage, std::move(copies), std::move(input_shape), std::move(output_shape)));
  const int own = layout.find_stage(pipeline->rank_);
  std::vector<int> peers;
  for (const int neighbour : {own - 1, own + 1}) {
    const std::vector<int> ranks = layout.list_ranks(neighbour);
    peers.insert(peers.end(), ranks.begin(), ranks.end());
  }
  MOTLEY_ASSIGN(pipeline->stage_channels_, collective::StageChannels::connect(session, peers, deadline));
  return pipeline;
}

Pipeline::Step Pipeline::begin(std::uint64_t number, data::Range window, const StageLayout::Kept& kept,
                               const torch::Tensor& inputs, const Deadline& deadline, const Hooks& hooks) {
  Step step{.number = number, .inputs = inputs, .deadline = deadline, .hooks = hooks};
  step.micro_batches = layout_.micro_batches(window, kept);
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    step.samples.push_back(std::max(1.0, static_cast<double>(layout_.samples(rank, window, kept))));
  }
  std::uint32_t before = 0;
  for (const StageLayout::MicroBatch& micro_batch : step.micro_batches) {
    const std::uint32_t rows = layout_.rows(rank_, micro_batch).size();
    step.own.push_back({before, before + rows});
    if (rows > 0 && micro_batch.lacks(layout_.find_stage(rank_))) {
      step.last_backward = static_cast<std::int64_t>(step.own.size()) - 1;
    }
    before += rows;
  }
  waited_ = 0;
  return step;
}

void Pipeline::set_phase(const Step& step, const char* phase) const {
  session_.set_phase(step.number, phase);
  inject_fault(rank_, phase);
}

// Asks for a micro-batch's rows from the stage before, or for their gradients from the stage after.
Status Pipeline::expect(Step& step, std::int64_t micro_batch, Kind kind) {
  const bool back = kind == Kind::kBackward;
  if (back && !step.at(micro_batch).goes_back_to(layout_.find_stage(rank_))) return {};
  const int from = layout_.find_stage(rank_) + (back ? 1 : -1);
  const data::Range rows = layout_.rows(rank_, step.at(micro_batch));
  std::vector<std::int64_t> shape = back ? output_shape_ : input_shape_;
  shape.insert(shape.begin(), rows.size());
  Incoming incoming;
  MOTLEY_ASSIGN(incoming.values, copies_.host_memory(shape, stage_.options().dtype));
  const std::uint64_t tag = make_tag(step, micro_batch, kind);
  for (const auto& [rank, shared] : layout_.pieces(rank_, from, step.at(micro_batch))) {
    const data::Range within{shared.begin - rows.begin, shared.end - rows.begin};
    MOTLEY_ASSIGN(const std::uint64_t number,
                  stage_channels_->receive(rank, tag, byte_size(select_rows(incoming.values, within))));
    incoming.parts.push_back({rank, number, within});
  }
  (back ? step.gradients : step.activations).emplace(micro_batch, std::move(incoming));
  return {};
}

Result<torch::Tensor> Pipeline::take(Step& step, std::int64_t micro_batch, Kind kind) {
  const bool back = kind == Kind::kBackward;
  // All up to the next one have been asked for.
  std::int64_t& expected = back ? step.expected_gradients : step.expected_activations;
  const auto count = static_cast<std::int64_t>(step.micro_batches.size());
  for (; expected < std::min(micro_batch + 2, count); ++expected) {
    MOTLEY_TRY(expect(step, expected, kind));
  }
  Incoming incoming = std::move((back ? step.gradients : step.activations).extract(micro_batch).mapped());
  // Whoever is waited for may be waiting for what a GPU has not given yet.
  const auto has_come = [&](const Incoming::Part& part) { return stage_channels_->has_come(part.rank, part.number); };
  if (!step.outgoing.empty() && !std::ranges::all_of(incoming.parts, has_come)) {
    MOTLEY_TRY(finish_sends(step));
  }
  const double begin = monotonic_seconds();
  // Else the others would take this rank for one that computes, and the one that it waits for, too.
  if (!std::ranges::all_of(incoming.parts, has_come)) session_.set_phase(step.number, "waiting for a neighbour");
  const auto operation = [&] {
    return fmt::format("step {}, micro-batch {}, {}", step.number, micro_batch, back ? "backward" : "forward");
  };
  const double own = step.samples[static_cast<std::size_t>(rank_)];
  for (const Incoming::Part& part : incoming.parts) {
    MOTLEY_TRY(stage_channels_->wait(part.rank, part.number, step.deadline, operation));
    if (back) {
      select_rows(incoming.values, part.rows).mul_(step.samples[static_cast<std::size_t>(part.rank)] / own);
    }
  }
  const double end = monotonic_seconds();
  waited_ += end - begin;
  if (step.hooks.record) step.hooks.record(Phase::kWait, begin, end);
  return copies_.to_device(incoming.values);
}

// Sends what is there; what a GPU has yet to compute and copy goes with the next finish_sends().
Status Pipeline::send(Step& step, std::int64_t micro_batch, const torch::Tensor& values, Kind kind) {
  MOTLEY_ASSIGN(nn::DeviceCopies::Arriving rows,
                copies_.to_host(values.detach().to(stage_.options().dtype).contiguous()));
  const bool is_here = rows.is_here();
  step.outgoing.push_back({micro_batch, kind, std::move(rows)});
  return is_here ? finish_sends(step) : Status();
}

Status Pipeline::finish_sends(Step& step) {
  for (; !step.outgoing.empty(); step.outgoing.pop_front()) {
    auto& [micro_batch, kind, arriving] = step.outgoing.front();
    MOTLEY_TRY(arriving.wait());
    const auto rows = std::make_shared<torch::Tensor>(std::move(arriving.values));
    const int to = layout_.find_stage(rank_) + (kind == Kind::kBackward ? -1 : 1);
    const data::Range own = layout_.rows(rank_, step.at(micro_batch));
    const std::uint64_t tag = make_tag(step, micro_batch, kind);
    for (const auto& [rank, shared] : layout_.pieces(rank_, to, step.at(micro_batch))) {
      const data::Range within{shared.begin - own.begin, shared.end - own.begin};
      MOTLEY_TRY(stage_channels_->send(rank, tag, byte_size(select_rows(*rows, within)), rows));
    }
  }
  return {};
}

Status Pipeline::forward(Step& step, std::int64_t micro_batch, Kind kind) {
  const data::Range rows = step.rows(micro_batch);
  torch::Tensor input;
  if (layout_.is_first(rank_)) {
    if (rows.size() > 0) input = select_rows(step.inputs, rows);
  } else {
    MOTLEY_ASSIGN(input, take(step, micro_batch, kind));
  }
  if (rows.size() == 0) return finish_sends(step);
  const double begin = monotonic_seconds();
  set_phase(step, "forward");
  if (step.hooks.before_forward) step.hooks.before_forward(micro_batch, rows);
  MOTLEY_ASSIGN(const nn::Tensors outputs, stage_.forward(micro_batch, {input}));
  MOTLEY_TRY(finish_sends(step));  // of the micro-batch before, now that a GPU has this one to compute
  if (layout_.is_last(rank_)) {
    MOTLEY_ASSIGN(step.output_gradients[micro_batch], step.hooks.take_outputs(rows, outputs.front()));
  }
  if (step.hooks.after_forward) step.hooks.after_forward();
  if (!layout_.is_last(rank_)) MOTLEY_TRY(send(step, micro_batch, outputs.front(), kind));
  if (step.hooks.record) step.hooks.record(Phase::kForward, begin, monotonic_seconds());
  return {};
}

Status Pipeline::backward(Step& step, std::int64_t micro_batch) {
  const StageLayout::MicroBatch& part = step.at(micro_batch);
  const int stage = layout_.find_stage(rank_);
  if (!part.goes_back_to(stage)) {
    stage_.forget(micro_batch);
    return finish_sends(step);
  }
  torch::Tensor gradient;
  if (layout_.is_last(rank_)) {
    gradient = std::move(step.output_gradients[micro_batch]);
    step.output_gradients.erase(micro_batch);
  } else {
    MOTLEY_ASSIGN(gradient, take(step, micro_batch, Kind::kBackward));
  }
  const data::Range rows = step.rows(micro_batch);
  if (rows.size() == 0) return finish_sends(step);
  const double begin = monotonic_seconds();
  set_phase(step, "backward");
  if (step.hooks.before_backward) step.hooks.before_backward(rows);
  if (micro_batch == step.last_backward && step.hooks.before_last_backward) step.hooks.before_last_backward();
  MOTLEY_ASSIGN(const nn::Tensors input_gradients, stage_.backward(micro_batch, {gradient}, part.lacks(stage)));
  if (part.lacks(stage) && step.hooks.added) step.hooks.added(rows, layout_.positions(rank_, part));
  MOTLEY_TRY(finish_sends(step));
  if (step.hooks.after_backward) MOTLEY_TRY(step.hooks.after_backward());
  if (!layout_.is_first(rank_)) {
    if (part.goes_back_to(stage - 1)) MOTLEY_TRY(send(step, micro_batch, input_gradients.front(), Kind::kBackward));
  } else if (step.hooks.take_input_gradient) {
    MOTLEY_TRY(step.hooks.take_input_gradient(rows, input_gradients.front()));
  }
  if (step.hooks.record) step.hooks.record(Phase::kBackward, begin, monotonic_seconds());
  return {};
}

Status Pipeline::train(std::uint64_t number, data::Range window, const StageLayout::Kept& kept,
                       const torch::Tensor& inputs, const Deadline& deadline, const Hooks& hooks) {
  Step step = begin(number, window, kept, inputs, deadline, hooks);
  const auto count = static_cast<std::int64_t>(step.micro_batches.size());
  const std::int64_t warm_up =
      planning::count_warm_up(layout_.plan().schedule, static_cast<std::size_t>(layout_.find_stage(rank_)),
                              static_cast<std::size_t>(layout_.stages()), count);
  Status done;
  for (std::int64_t position = 0; done && position < 2 * count; ++position) {
    const planning::Task task = planning::task_at(position, warm_up, count);
    done = task.forward ? forward(step, task.micro_batch, Kind::kForward) : backward(step, task.micro_batch);
  }
  return end(step, std::move(done));
}

Status Pipeline::evaluate(std::uint64_t number, data::Range window, const torch::Tensor& inputs,
                          const Deadline& deadline, const Hooks& hooks) {
  Step step = begin(number, window, {}, inputs, deadline, hooks);
  Status done;
  for (std::int64_t i = 0; done && i < static_cast<std::int64_t>(step.micro_batches.size()); ++i) {
    done = forward(step, i, Kind::kEvaluate);
  }
  return end(step, std::move(done));
}

// Where the step has failed for a reason of this rank's own, neighbours still send what it expected.
Status Pipeline::end(Step& step, Status done) {
  if (done) done = finish_sends(step);
  if (!done) {
    for (auto* expected : {&step.activations, &step.gradients}) {
      for (auto& [micro_batch, incoming] : *expected) unclaimed_.push_back(std::move(incoming));
    }
  }
  return done;
}

}  // namespace motley::train
