// Both cost models, as equations over sums that are made once a stage, and what they say of a candidate.
#include "motley/planning/cost/evaluation.h"

#include <cmath>

#include "motley/base/units.h"

namespace motley::planning {
namespace {

constexpr double kSecondsPerHour = 3600;

void add_violation(Evaluation& evaluation, const std::string& sentence) {
  evaluation.violation += (evaluation.violation.empty() ? "" : "; ") + sentence;
}

// "throughput 14,210 is below the minimum throughput of 20,000 samples/s", with more digits where a few do not show it.
void add_missed_limit(Evaluation& evaluation, const char* what, double value, const char* relation, double limit,
                      const char* unit) {
  std::string value_text = format_number(value);
  std::string limit_text = format_number(limit);
  if (value_text == limit_text) {
    value_text = fmt::format("{}", value);
    limit_text = fmt::format("{}", limit);
  }
  add_violation(evaluation, fmt::format("{} {} is {} of {}{}", what, value_text, relation, limit_text, unit));
}

void check_counts(const Problem& problem, Evaluation& evaluation) {
  for (std::size_t type = 0; type < problem.types.size(); ++type) {
    if (evaluation.used[type] > problem.types[type].count) {
      add_violation(evaluation, fmt::format("uses {} of {} {}", evaluation.used[type], problem.types[type].count,
                                            problem.types[type].name));
    }
  }
}

bool exceeds(double value, double limit) {
  return value > limit * (1 + kTolerance);
}

void set_price(const Problem& problem, Evaluation& evaluation) {
  for (std::size_t type = 0; type < problem.types.size(); ++type) {
    evaluation.hourly_cost += static_cast<double>(evaluation.used[type]) * problem.types[type].price_per_hour;
  }
  evaluation.cost = problem.total_samples / evaluation.throughput / kSecondsPerHour * evaluation.hourly_cost;
}

// Says which of the objective's limits are missed, and whether all is as it should be.
void check_limits(const Objective& objective, Evaluation& evaluation) {
  if (evaluation.throughput < objective.min_throughput * (1 - kTolerance)) {
    add_missed_limit(evaluation, "throughput", evaluation.throughput, "below the minimum throughput",
                     objective.min_throughput, " samples/s");
  }
  if (exceeds(evaluation.cost, objective.max_cost)) {
    add_missed_limit(evaluation, "cost", evaluation.cost, "above the cap", objective.max_cost, "");
  }
  if (exceeds(evaluation.hourly_cost, objective.max_hourly_cost)) {
    add_missed_limit(evaluation, "the price", evaluation.hourly_cost, "above the cap", objective.max_hourly_cost,
                     " an hour");
  }
  evaluation.feasible = evaluation.violation.empty();
}

// Of a step, a device of the stage.
double occupied_seconds(const Problem& problem, const StageCost& cost) {
  return static_cast<double>(problem.micro_batches) * std::max(cost.compute_seconds, cost.transfer_seconds) +
         cost.exposed_sync_seconds + cost.update_seconds;
}

void evaluate_heterps(const Problem& problem, const Candidate& candidate, Evaluation& evaluation) {
  double slowest = -1;
  int previous = -1;
  for (std::size_t s = 0; s < candidate.size(); ++s) {
    const StageChoice& choice = candidate[s];
    const HeterpsStage stage = heterps_stage(problem, choice.first, choice.last, choice.type, previous);
    const auto k = static_cast<double>(choice.replicas);
    evaluation.stages[s].compute_seconds = stage.compute(k);
    evaluation.stages[s].communication_seconds = stage.data(k);
    if (stage.seconds(k) > slowest) {
      slowest = stage.seconds(k);
      evaluation.bottleneck = static_cast<int>(s);
    }
    previous = choice.type;
  }
  evaluation.throughput = 1 / slowest;
  evaluation.step_seconds = static_cast<double>(problem.batch) * slowest;
}

void evaluate_pipeline(const Problem& problem, const Candidate& candidate, Evaluation& evaluation) {
  const std::size_t stages = candidate.size();
  double busiest = -1;
  for (std::size_t s = 0; s < stages; ++s) {
    const StageChoice& choice = candidate[s];
    const bool last = s + 1 == stages;
    const PipelineStage stage =
        pipeline_stage(problem, choice.first, choice.last, choice.type, last ? -1 : candidate[s + 1].type,
                       static_cast<int>(s), static_cast<int>(stages));
    const auto k = static_cast<double>(choice.replicas);
    StageCost& cost = evaluation.stages[s];
    cost.forward_seconds = stage.forward_seconds(k);
    cost.backward_seconds = stage.backward_seconds(k, choice.recompute);
    cost.compute_seconds = cost.forward_seconds + cost.backward_seconds;
    cost.transfer_seconds = last ? 0 : stage.transfer_seconds(k, static_cast<double>(candidate[s + 1].replicas));
    cost.communication_seconds = std::max(stage.rows_seconds(stage.samples / k), cost.transfer_seconds);
    cost.gradient_sync_seconds = stage.gradient_sync_seconds(k);
    cost.exposed_sync_seconds = stage.exposed_seconds(cost.gradient_sync_seconds, k);
    cost.update_seconds = stage.update_seconds;
    cost.memory_bytes = stage.memory_bytes(k, choice.recompute);
    const Type& type = problem.type(choice.type);
    if (choice.replicas > problem.batch / problem.micro_batches) {
      add_violation(evaluation,
                    fmt::format("stage {} has {} for micro-batches of {}", s, format_count(choice.replicas, "replica"),
                                format_count(problem.batch / problem.micro_batches, "sample")));
    }
    if (type.memory_bytes > 0 && exceeds(cost.memory_bytes, type.memory_bytes)) {
      add_violation(evaluation, fmt::format("stage {} needs {} a device, {} has {}", s, format_bytes(cost.memory_bytes),
                                            type.name, format_bytes(type.memory_bytes)));
    }
    const double occupied = occupied_seconds(problem, cost);
    if (occupied > busiest) {
      busiest = occupied;
      evaluation.bottleneck = static_cast<int>(s);
    }
  }
  evaluation.step_seconds = pipeline_time(problem, evaluation.stages).step;
  evaluation.throughput = static_cast<double>(problem.batch) / evaluation.step_seconds;
}

// W under 1F1B, no less than `interval`: of all runs of stages, the longest there and back for each of its stages.
// Each scan keeps the run that most exceeds its stages times the interval, which grows until none does.
double one_forward_one_backward(std::span<const StageCost> stages, double interval) {
  for (bool grown = true; grown;) {
    grown = false;
    double run = 0;
    double length = 0;
    double transfer = 0;
    for (const StageCost& stage : stages) {
      if (run + 2 * transfer < length * interval) run = length = transfer = 0;
      run += 2 * transfer + stage.forward_seconds + stage.backward_seconds;
      length += 1;
      transfer = stage.transfer_seconds;
      if (run / length > interval) {
        interval = run / length;
        grown = true;
      }
    }
  }
  return interval;
}

// Of one stage, while a step under 1F1B is replayed.
struct ReplayedStage {
  std::int64_t warm_up = 1;
  double free = 0;                             // it has done all before
  double forward_link = 0;                     // its link to the next stage is free
  double backward_link = 0;                    // and that to the one before
  std::vector<double> activations, gradients;  // come, of every micro-batch
};

constexpr std::int64_t kMaxReplayed = 4096;  // micro-batches; all further ones come at the pipeline's rate

// The step under 1F1B, as it comes of the order of the work: every stage does one thing after the other, and every link
// carries one transfer at a time each way. In a round all stages do the forward pass of one micro-batch, and the
// backward pass that follows it; the last rounds have backward passes alone.
double replay_one_forward_one_backward(const Problem& problem, std::span<const StageCost> costs, double interval) {
  const std::int64_t micro_batches = std::min(problem.micro_batches, kMaxReplayed);
  const std::size_t count = costs.size();
  std::vector<ReplayedStage> stages(count);
  for (std::size_t s = 0; s < count; ++s) {
    stages[s].warm_up = count_warm_up(problem.schedule, s, count, micro_batches);
    stages[s].activations.resize(index(micro_batches));
    stages[s].gradients.resize(index(micro_batches));
  }
  const auto forward = [&](std::size_t s, std::int64_t m) {
    ReplayedStage& stage = stages[s];
    stage.free = std::max(stage.free, stage.activations[index(m)]) + costs[s].forward_seconds;
    if (s + 1 == count) return;
    stage.forward_link = std::max(stage.forward_link, stage.free) + costs[s].transfer_seconds;
    stages[s + 1].activations[index(m)] = stage.forward_link;
  };
  const auto backward = [&](std::size_t s, std::int64_t m) {
    if (m < 0 || m >= micro_batches) return;
    ReplayedStage& stage = stages[s];
    stage.free = std::max(stage.free, stage.gradients[index(m)]) + costs[s].backward_seconds;
    if (s == 0) return;
    stage.backward_link = std::max(stage.backward_link, stage.free) + costs[s - 1].transfer_seconds;
    stages[s - 1].gradients[index(m)] = stage.backward_link;
  };
  for (std::int64_t round = 0; round < micro_batches + stages[0].warm_up; ++round) {
    for (std::size_t s = 0; round < micro_batches && s < count; ++s) forward(s, round);
    for (std::size_t s = count; s-- > 0;) backward(s, round - stages[s].warm_up + 1);
  }
  double step = 0;
  for (std::size_t s = 0; s < count; ++s) {
    step = std::max(step, stages[s].free + costs[s].exposed_sync_seconds + costs[s].update_seconds);
  }
  return step + static_cast<double>(problem.micro_batches - micro_batches) * interval;
}

// The devices of a type that train with data parallelism, each the whole model.
struct Workers {
  int type;
  double count;
  PipelineStage stage;
  double row_seconds = 0;  // of a sample, one direction: the mean of those of an equal share
  double samples = 0;      // of each device

  // Without samples there is nothing to do, not even what every batch takes.
  double forward() const { return samples > 0 ? stage.forward.at(samples) + row_seconds * samples : 0; }
  double backward() const { return samples > 0 ? stage.backward.at(samples) + row_seconds * samples : 0; }
  double samples_within(double seconds) const {
    const double left = seconds - stage.forward.fixed - stage.backward.fixed;
    const double slope = stage.forward.per_sample + stage.backward.per_sample + 2 * row_seconds;
    if (left < 0) return 0;
    return slope > 0 ? left / slope : kInfinity;
  }
};

// So that all are done at the same time, the earliest in which they can do the batch.
void balance(std::vector<Workers>& all, double batch) {
  const auto samples_by = [&](double seconds) {
    double samples = 0;
    for (const Workers& one : all) samples += one.count * std::min(batch, one.samples_within(seconds));
    return samples;
  };
  double low = 0;
  double high = 0;  // all are done with equal parts by then
  for (const Workers& one : all) high = std::max(high, one.forward() + one.backward());
  // The last halving leaves neighbouring numbers.
  for (double middle = high / 2; middle > low && middle < high; middle = low + (high - low) / 2) {
    (samples_by(middle) < batch ? low : high) = middle;
  }
  const double excess = batch / std::max(batch, samples_by(high));
  for (Workers& one : all) one.samples = excess * std::min(batch, one.samples_within(high));
}

}  // namespace

double gradient_sync_seconds(GradientSync gradient_sync, double bytes, double devices, const Link& link) {
  if (devices == 1 || gradient_sync == GradientSync::kNone) return 0;
  return gradient_sync == GradientSync::kRing
             ? 2 * (devices - 1) * (bytes / (devices * link.bytes_per_second) + link.latency_seconds)
             : bytes / link.bytes_per_second + 2 * link.latency_seconds;
}

Link slowest_link(const Problem& problem, std::span<const int> types) {
  Link slowest;
  const auto add = [&](double bytes_per_second, double latency_seconds) {
    slowest.bytes_per_second = std::min(slowest.bytes_per_second, bytes_per_second);
    slowest.latency_seconds = std::max(slowest.latency_seconds, latency_seconds);
  };
  for (const int from : types) {
    add(problem.type(from).bytes_per_second, problem.type(from).latency_seconds);
    for (const int to : types) {
      if (from != to) add(problem.link(from, to).bytes_per_second, problem.link(from, to).latency_seconds);
    }
  }
  return slowest;
}

HeterpsStage heterps_stage(const Problem& problem, int first, int last, int type, int previous) {
  const double profile_batch = problem.profile_batch;
  const double bytes_per_second = problem.type(type).bytes_per_second;
  const double distinct = model::distinct_rows(problem.distinct_lookups, profile_batch) / profile_batch;
  HeterpsStage stage;
  for (int layer = first; layer <= last; ++layer) {
    const LayerOnType& times = problem.at(layer, type);
    const LayerSize& size = problem.layer(layer);
    const double compute = (times.forward.at(profile_batch) + times.backward.at(profile_batch)) / profile_batch;
    double data = 2 * (distinct * size.sparse_bytes + size.parameter_bytes / profile_batch) / bytes_per_second;
    if (layer == first && previous >= 0) {
      data += 2 * problem.cut_bytes[index(first)] / problem.link(previous, type).bytes_per_second;
    }
    stage.compute_fixed += compute * (1 - times.compute_fraction);
    stage.compute_divided += compute * times.compute_fraction;
    stage.data_fixed += data * (1 - times.communication_fraction);
    stage.data_divided += data * times.communication_fraction;
  }
  return stage;
}

namespace {

// The buckets of a stage's gradients. Buckets that are full begin at once, one after another; what is left over waits
// for the next layer.
std::vector<PipelineStage::Bucket> list_buckets(const Problem& problem, const PipelineStage& stage, int first, int last,
                                                int type) {
  std::vector<PipelineStage::Bucket> buckets;
  const double bytes = stage.parameter_bytes;
  if (bytes == 0) return buckets;
  Affine left = stage.backward;  // of the layers that are not done yet
  double done = 0;               // bytes of the layers that are done
  double started = 0;            // of the buckets that have begun
  for (int layer = last; layer >= first; --layer) {
    done += problem.layer(layer).parameter_bytes;
    left.fixed -= problem.at(layer, type).backward.fixed;
    left.per_sample -= problem.at(layer, type).backward.per_sample;
    const double bucket = started == 0 ? problem.first_bucket_bytes : problem.bucket_bytes;
    if (done == started || (done - started < bucket && layer > first)) continue;
    buckets.push_back(
        {.left = (bytes - started) / bytes, .backward = {std::max(0.0, left.fixed), std::max(0.0, left.per_sample)}});
    const double full = std::floor((done - started - bucket) / problem.bucket_bytes);
    started = layer == first ? done : started + bucket + std::max(0.0, full) * problem.bucket_bytes;
  }
  return buckets;
}

}  // namespace

PipelineStage pipeline_stage(const Problem& problem, int first, int last, int type, int next, int position,
                             int stages) {
  const Type& device = problem.type(type);
  PipelineStage stage;
  stage.samples = problem.micro_batch_samples();
  stage.update_seconds = device.step_seconds;
  stage.in_flight =
      static_cast<double>(count_warm_up(problem.schedule, index(position), index(stages), problem.micro_batches));
  double sparse_bytes = 0;
  for (int layer = first; layer <= last; ++layer) {
    const LayerOnType& times = problem.at(layer, type);
    const LayerSize& size = problem.layer(layer);
    stage.forward.fixed += times.forward.fixed;
    stage.forward.per_sample += times.forward.per_sample;
    stage.backward.fixed += times.backward.fixed;
    stage.backward.per_sample += times.backward.per_sample;
    stage.update_seconds += times.update_seconds;
    sparse_bytes += size.sparse_bytes;
    stage.parameter_bytes += size.parameter_bytes;
    stage.activation_bytes += size.activation_bytes;
  }
  stage.sparse_seconds = sparse_bytes / device.bytes_per_second;
  stage.distinct_lookups = problem.distinct_lookups;
  stage.input_bytes = problem.cut_bytes[index(first)];
  stage.state_bytes = problem.memory_per_parameter_byte * stage.parameter_bytes;
  if (next >= 0) {
    const Link& link = problem.link(type, next);
    const double bytes = stage.samples * problem.cut_bytes[index(last + 1)];
    stage.send_seconds = bytes / link.bytes_per_second;
    stage.send_latency = link.latency_seconds;
    stage.own_send_seconds = bytes / device.bytes_per_second;
    stage.next_send_seconds = bytes / problem.type(next).bytes_per_second;
  }
  stage.gradient_sync = device.gradient_sync;
  stage.link = {device.bytes_per_second, device.latency_seconds};
  stage.buckets = list_buckets(problem, stage, first, last, type);
  return stage;
}

double PipelineStage::memory_bytes(double k, bool recompute) const {
  const double share = samples / k;
  return state_bytes + share * (recompute ? in_flight * input_bytes + activation_bytes : in_flight * activation_bytes);
}

RearTime RearTime::behind(const StageCost& stage, std::int64_t micro_batches) const {
  const double forward = stage.forward_seconds;
  const double backward = stage.backward_seconds;
  const double transfer = stages > 0 ? stage.transfer_seconds : 0;
  const double closing = stage.exposed_sync_seconds + stage.update_seconds;
  const auto all = static_cast<double>(micro_batches);
  RearTime longer;
  longer.stages = stages + 1;
  const bool goes_back = longer.stages < micro_batches;  // before all have gone forward
  const auto warm_up = static_cast<double>(std::min(longer.stages, micro_batches));
  const double beyond = round_trip + 2 * transfer;
  longer.round_trip = forward + backward + beyond;
  // What the first micro-batch takes to the last stage and back, beyond the forward passes that are done meanwhile; and
  // the last micro-batch, beyond the backward passes.
  const double filling = std::max(0.0, beyond - (warm_up - 1) * forward);
  const double draining = std::max(0.0, beyond - (warm_up - 1) * backward);
  const double staying = all * (forward + backward) + (goes_back ? filling + draining : std::max(filling, draining));
  const double sending = longer.round_trip + (all - 1) * transfer;
  longer.makespan = std::max({staying, sending, stages > 0 ? forward + backward + 2 * transfer + makespan : 0});
  longer.exposed = std::max(longer.round_trip + closing, stages > 0 ? forward + transfer + exposed : 0);
  longer.exposed_makespan = longer.makespan + closing;
  if (stages > 0) {
    const double last_forward = all * forward + (all - warm_up) * backward + (goes_back ? filling : 0);
    longer.exposed_makespan =
        std::max({longer.exposed_makespan, forward + transfer + exposed_makespan, last_forward + transfer + exposed});
  }
  return longer;
}

double least_step_seconds(const Problem& problem, std::span<const StageCost> stages) {
  if (problem.schedule == PipelineSchedule::kGPipe) return pipeline_time(problem, stages).step;
  RearTime rear;
  for (std::size_t s = stages.size(); s-- > 0;) rear = rear.behind(stages[s], problem.micro_batches);
  return rear.exposed_makespan;
}

PipelineTime pipeline_time(const Problem& problem, std::span<const StageCost> stages) {
  PipelineTime time;
  double longest_transfer = 0;
  for (const StageCost& stage : stages) {
    time.fill += stage.forward_seconds + stage.backward_seconds + 2 * stage.transfer_seconds;
    time.longest_forward = std::max({time.longest_forward, stage.forward_seconds, stage.transfer_seconds});
    time.longest_backward = std::max({time.longest_backward, stage.backward_seconds, stage.transfer_seconds});
    longest_transfer = std::max(longest_transfer, stage.transfer_seconds);
  }
  time.interval = problem.schedule == PipelineSchedule::kGPipe ? time.longest_forward + time.longest_backward
                                                               : one_forward_one_backward(stages, longest_transfer);
  if (problem.schedule == PipelineSchedule::kOneForwardOneBackward) {
    time.step = replay_one_forward_one_backward(problem, stages, time.interval);
    return time;
  }
  const double filled_and_drained = time.fill + static_cast<double>(problem.micro_batches - 1) * time.interval;
  double earlier = 0;  // before the end, the last backward of the stage is done
  for (const StageCost& stage : stages) {
    time.step = std::max(time.step, filled_and_drained - earlier + stage.exposed_sync_seconds + stage.update_seconds);
    earlier += stage.backward_seconds + stage.transfer_seconds;
  }
  return time;
}

Evaluation evaluate(const Problem& problem, const Candidate& candidate, const Objective& objective,
                    std::optional<double> measured_step_seconds) {
  Evaluation evaluation;
  evaluation.stages.resize(candidate.size());
  evaluation.used.resize(problem.types.size());
  int next = 0;
  for (const StageChoice& choice : candidate) {
    MOTLEY_INVARIANT(choice.first == next && choice.last >= choice.first && choice.last < problem.layer_count() &&
                         choice.type >= 0 && choice.type < problem.type_count() && choice.replicas >= 1,
                     "a candidate's stage of layers {} to {} on {} devices of type {} is impossible after layer {}",
                     choice.first, choice.last, choice.replicas, choice.type, next);
    next = choice.last + 1;
    evaluation.used[index(choice.type)] += choice.replicas;
  }
  MOTLEY_INVARIANT(next == problem.layer_count(), "a candidate covers {} of {} layers", next, problem.layer_count());

  check_counts(problem, evaluation);
  if (problem.cost_model == CostModel::kHeterps) {
    evaluate_heterps(problem, candidate, evaluation);
  } else {
    evaluate_pipeline(problem, candidate, evaluation);
  }
  if (measured_step_seconds) {
    evaluation.step_seconds = *measured_step_seconds;
    evaluation.throughput = static_cast<double>(problem.batch) / *measured_step_seconds;
  }
  set_price(problem, evaluation);
  check_limits(objective, evaluation);
  return evaluation;
}

double value(const Evaluation& evaluation, Criterion criterion) {
  if (!evaluation.feasible) return kInfinity;
  switch (criterion) {
    case Criterion::kMinCost:
      return evaluation.cost;
    case Criterion::kMaxThroughput:
      return 1 / evaluation.throughput;
    case Criterion::kMinStepTime:
      return evaluation.step_seconds;
  }
  return kInfinity;
}

namespace {

// Devices of one type in a stage of a plan, each with this share of a micro-batch.
struct Group {
  int type;
  double count;
  double share;
};

Result<std::vector<std::vector<Group>>> list_groups(const Problem& problem, const Plan& plan) {
  std::vector<std::vector<Group>> stages;
  for (const Stage& stage : plan.stages) {
    std::vector<Group>& groups = stages.emplace_back();
    for (const Replicas& replicas : stage.replicas) {
      const auto type = std::ranges::find(problem.types, replicas.type, &Type::name);
      if (type == problem.types.end()) {
        return fail(ErrorCode::kInvalidInput, "the plan has devices of type '{}', which are not in the cluster",
                    replicas.type);
      }
      groups.push_back(
          {static_cast<int>(type - problem.types.begin()), static_cast<double>(replicas.count), replicas.share});
    }
  }
  return stages;
}

double count_devices(const std::vector<Group>& groups) {
  double count = 0;
  for (const Group& group : groups) count += group.count;
  return count;
}

// Nothing where a stage mixes types or shares.
std::optional<Candidate> to_candidate(const Plan& plan, const std::vector<std::vector<Group>>& stages) {
  Candidate candidate;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].size() > 1) return std::nullopt;
    const Stage& stage = plan.stages[s];
    candidate.push_back({stage.first_layer, stage.last_layer, stages[s].front().type,
                         static_cast<std::int64_t>(stages[s].front().count), stage.recompute});
  }
  return candidate;
}

StageCost mixed_stage_cost(const Problem& problem, const Plan& plan, const std::vector<std::vector<Group>>& stages,
                           std::size_t s) {
  const Stage& stage = plan.stages[s];
  StageCost cost;
  double sparse = 0;
  std::vector<int> types;
  std::vector<PipelineStage> times;
  for (const Group& group : stages[s]) {
    times.push_back(pipeline_stage(problem, stage.first_layer, stage.last_layer, group.type, -1, static_cast<int>(s),
                                   static_cast<int>(stages.size())));
    const PipelineStage& its = times.back();
    const double k = 1 / group.share;  // as if all were like this one
    const double seconds = its.forward_seconds(k) + its.backward_seconds(k, stage.recompute);
    if (seconds > cost.compute_seconds) {
      cost.compute_seconds = seconds;
      cost.forward_seconds = its.forward_seconds(k);
      cost.backward_seconds = its.backward_seconds(k, stage.recompute);
    }
    sparse = std::max(sparse, its.rows_seconds(its.samples / k));
    cost.update_seconds = std::max(cost.update_seconds, its.update_seconds);
    cost.memory_bytes = std::max(cost.memory_bytes, its.memory_bytes(k, stage.recompute));
    types.push_back(group.type);
  }
  cost.gradient_sync_seconds = gradient_sync_seconds(stage.gradient_sync, times.front().parameter_bytes,
                                                     count_devices(stages[s]), slowest_link(problem, types));
  // A gradient is there when it is on all replicas, of which those with less to do are done earlier.
  for (std::size_t group = 0; group < times.size(); ++group) {
    const double k = 1 / stages[s][group].share;
    const double earlier = cost.backward_seconds - times[group].backward_seconds(k, stage.recompute);
    cost.exposed_sync_seconds =
        std::max(cost.exposed_sync_seconds, times[group].exposed_seconds(cost.gradient_sync_seconds, k) - earlier);
  }
  if (s + 1 < stages.size()) {
    const double bytes = problem.micro_batch_samples() * problem.cut_bytes[index(stage.last_layer + 1)];
    const double senders = count_devices(stages[s]);
    const double receivers = count_devices(stages[s + 1]);
    for (const Group& from : stages[s]) {
      for (const Group& to : stages[s + 1]) {
        cost.transfer_seconds = std::max(cost.transfer_seconds,
                                         problem.link(from.type, to.type).latency_seconds +
                                             bytes * problem.seconds_per_byte(from.type, senders, to.type, receivers));
      }
    }
  }
  cost.communication_seconds = std::max(sparse, cost.transfer_seconds);
  return cost;
}

}  // namespace

Result<Evaluation> evaluate_plan(const Problem& problem, const Plan& plan, const Objective& objective) {
  if (plan.micro_batches != problem.micro_batches) {
    Problem its_problem = problem;
    its_problem.micro_batches = plan.micro_batches;
    return evaluate_plan(its_problem, plan, objective);
  }
  MOTLEY_ASSIGN(const auto stages, list_groups(problem, plan));
  if (const auto candidate = to_candidate(plan, stages)) return evaluate(problem, *candidate, objective);
  Evaluation evaluation;
  evaluation.used.resize(problem.types.size());
  double busiest = -1;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const Group& group : stages[s]) evaluation.used[index(group.type)] += static_cast<std::int64_t>(group.count);
    const StageCost& cost = evaluation.stages.emplace_back(mixed_stage_cost(problem, plan, stages, s));
    const double occupied = occupied_seconds(problem, cost);
    if (occupied > busiest) {
      busiest = occupied;
      evaluation.bottleneck = static_cast<int>(s);
    }
  }
  check_counts(problem, evaluation);
  evaluation.step_seconds = pipeline_time(problem, evaluation.stages).step;
  evaluation.throughput = static_cast<double>(problem.batch) / evaluation.step_seconds;
  set_price(problem, evaluation);
  check_limits(objective, evaluation);
  return evaluation;
}

Evaluation evaluate_data_parallel(const Problem& problem, const std::vector<std::int64_t>& counts, BatchSplit shares) {
  MOTLEY_INVARIANT(counts.size() == problem.types.size(), "{} counts for {} device types", counts.size(),
                   problem.types.size());
  const auto batch = static_cast<double>(problem.batch);
  double devices = 0;
  for (const std::int64_t count : counts) devices += static_cast<double>(count);
  MOTLEY_INVARIANT(devices > 0, "data parallelism needs a device");
  std::vector<Workers> all;
  std::vector<int> types;
  for (int t = 0; t < problem.type_count(); ++t) {
    if (counts[index(t)] == 0) continue;
    types.push_back(t);
    all.push_back({.type = t,
                   .count = static_cast<double>(counts[index(t)]),
                   .stage = pipeline_stage(problem, 0, problem.layer_count() - 1, t, -1, 0, 1),
                   .samples = batch / devices});
    all.back().row_seconds = all.back().stage.rows_seconds(batch / devices) / (batch / devices);
  }
  if (shares == BatchSplit::kBalanced) balance(all, batch);

  Evaluation evaluation;
  evaluation.used = counts;
  evaluation.stages.resize(1);
  StageCost& cost = evaluation.stages[0];
  for (const Workers& one : all) {
    if (one.forward() + one.backward() >= cost.compute_seconds) {  // the slowest ones
      cost.forward_seconds = one.forward();
      cost.backward_seconds = one.backward();
      cost.compute_seconds = one.forward() + one.backward();
      cost.communication_seconds = one.row_seconds * one.samples;
    }
    cost.update_seconds = std::max(cost.update_seconds, one.stage.update_seconds);
    const double memory = one.stage.state_bytes + one.samples * one.stage.activation_bytes;
    cost.memory_bytes = std::max(cost.memory_bytes, memory);
    const Type& type = problem.type(one.type);
    if (type.memory_bytes > 0 && exceeds(memory, type.memory_bytes)) {
      add_violation(evaluation,
                    fmt::format("a share of {} samples needs {} a device, {} has {}", format_number(one.samples),
                                format_bytes(memory), type.name, format_bytes(type.memory_bytes)));
    }
  }
  cost.gradient_sync_seconds = gradient_sync_seconds(GradientSync::kRing, all.back().stage.parameter_bytes, devices,
                                                     slowest_link(problem, types));
  cost.exposed_sync_seconds = cost.gradient_sync_seconds;
  check_counts(problem, evaluation);
  evaluation.step_seconds = cost.compute_seconds + cost.gradient_sync_seconds + cost.update_seconds;
  evaluation.throughput = batch / evaluation.step_seconds;
  set_price(problem, evaluation);
  evaluation.feasible = evaluation.violation.empty();
  return evaluation;
}

Plan to_plan(const Problem& problem, const Candidate& candidate, const Evaluation& evaluation,
             const Objective& objective, const std::string& method) {
  Plan plan;
  plan.model = problem.model;
  if (problem.merged_from > 0) plan.merged_from = problem.merged_from;
  for (const LayerSize& layer : problem.layers) {
    plan.layers.push_back(layer.name);
    plan.parameter_shapes.push_back(layer.parameter_shapes);
  }
  if (std::ranges::all_of(plan.parameter_shapes, &std::string::empty)) plan.parameter_shapes.clear();
  plan.batch = problem.batch;
  plan.micro_batches = problem.micro_batches;
  plan.schedule = problem.schedule;
  for (const StageChoice& choice : candidate) {
    const Type& type = problem.type(choice.type);
    plan.stages.push_back(
        {.first_layer = choice.first,
         .last_layer = choice.last,
         .replicas = {{.type = type.name, .count = choice.replicas, .share = 1 / static_cast<double>(choice.replicas)}},
         .gradient_sync = choice.replicas > 1 ? type.gradient_sync : GradientSync::kNone,
         .recompute = choice.recompute});
  }
  plan.cost_model = to_string(problem.cost_model);
  plan.method = method;
  plan.objective = describe(objective);
  plan.predicted = {.step_seconds = evaluation.step_seconds,
                    .throughput = evaluation.throughput,
                    .hourly_cost = evaluation.hourly_cost,
                    .cost = evaluation.cost};
  return plan;
}

}  // namespace motley::planning
