// The search works on sums that the layers' times have been put into once, so that what a stage takes is known in a
// moment for any run of layers and any workers: a arrangement's step comes from the closed form of
// planning/cost/evaluation.h. The few best are replayed event by event, and the shortest step wins.
#include "motley/planning/replan/repartition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "motley/planning/simulate/simulate.h"

namespace motley::planning {
namespace {

constexpr std::size_t kReplayed = 8;     // of the candidates, the best by the closed form
constexpr int kBisections = 40;          // to find the slowest stage's least time
constexpr double kMinPerSample = 1e-15;  // seconds: a layer that takes less is as good as free
constexpr double kMinFraction = 1e-6;    // of a worker that has nothing to do where shares are balanced

// Which workers each stage has, and its first layer; one after the last stage.
struct Arrangement {
  std::vector<std::vector<int>> workers;
  std::vector<int> begin;
  std::int64_t micro_batches = 1;
  double step_seconds = kInfinity;
};

class Repartition {
 public:
  Repartition(const Problem& problem, const PlacedPlan& running, std::stop_token stop)
      : problem_(problem), running_(running.plan), stop_(std::move(stop)) {
    const std::size_t layers = problem.layers.size();
    const auto sum_up = [&](auto value) {
      std::vector<double> sums(layers + 1);
      for (std::size_t layer = 0; layer < layers; ++layer) sums[layer + 1] = sums[layer] + value(layer);
      return sums;
    };
    // A sample's rows, in those of one that is alone: as in the shares of the running plan.
    std::vector<double> distinct(layers, 1.0);
    for (const Stage& stage : running_.stages) {
      double count = 0;
      for (const Replicas& replicas : stage.replicas) count += static_cast<double>(replicas.count);
      const double share = static_cast<double>(problem.batch) / static_cast<double>(running_.micro_batches) / count;
      for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        distinct[index(layer)] = model::distinct_rows(problem.distinct_lookups, share) / share;
      }
    }
    for (int worker = 0; worker < problem.type_count(); ++worker) {
      const auto times = [&](auto part) {
        return sum_up([&](std::size_t layer) { return part(problem.at(static_cast<int>(layer), worker)); });
      };
      sums_.push_back(
          {times([](const LayerOnType& time) { return time.forward.fixed; }),
           times([](const LayerOnType& time) { return time.forward.per_sample; }),
           times([](const LayerOnType& time) { return time.backward.fixed; }),
           times([](const LayerOnType& time) { return time.backward.per_sample; }),
           times([](const LayerOnType& time) { return time.update_seconds; }), sum_up([&](std::size_t layer) {
             return distinct[layer] * problem.layers[layer].sparse_bytes / problem.type(worker).bytes_per_second;
           })});
    }
    parameter_bytes_ = sum_up([&](std::size_t layer) { return problem.layers[layer].parameter_bytes; });
    activation_bytes_ = sum_up([&](std::size_t layer) { return problem.layers[layer].activation_bytes; });
    for (const Stage& stage : running_.stages) {
      recomputes_ = recomputes_ || stage.recompute;
      gradient_sync_ = stage.gradient_sync == GradientSync::kNone ? gradient_sync_ : stage.gradient_sync;
    }
  }

  // The best by the closed form, the best first.
  std::vector<Arrangement> search(const std::vector<int>& places) {
    std::vector<int> worker_stage(index(problem_.type_count()));
    std::size_t place = 0;
    for (int stage = 0; stage < std::ssize(running_.stages); ++stage) {
      for (const Replicas& replicas : running_.stages[index(stage)].replicas) {
        for (std::int64_t i = 0; i < replicas.count; ++i) worker_stage[index(places[place++])] = stage;
      }
    }
    const int max_stages = std::min(problem_.type_count(), problem_.layer_count());
    for (const std::int64_t micro_batches :
         {running_.micro_batches, 2 * running_.micro_batches, running_.micro_batches / 2}) {
      if (micro_batches < 1 || micro_batches > problem_.batch) continue;
      problem_.micro_batches = micro_batches;
      for (int stages = 1; stages <= max_stages; ++stages) {
        if (std::pow(stages, problem_.type_count()) <= kMaxMaps) {
          every_map(stages);
        } else if (stages == static_cast<int>(running_.stages.size())) {
          improve(worker_stage, stages);
        }
      }
    }
    return best_;
  }

  // Cut for these workers and micro-batches; infinite where that is impossible.
  Arrangement cut(std::vector<std::vector<int>> workers, std::int64_t micro_batches) {
    Arrangement arrangement{std::move(workers), {}, micro_batches};
    problem_.micro_batches = micro_batches;
    double least = 0, most = 0;
    for (const std::vector<int>& of_stage : arrangement.workers) {
      if (static_cast<double>(of_stage.size()) > problem_.micro_batch_samples()) return arrangement;
      most = std::max(most, seconds(of_stage, 0, problem_.layer_count() - 1));
    }
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (least + most) / 2;
      (fits(arrangement.workers, middle).empty() ? least : most) = middle;
    }
    arrangement.begin = fits(arrangement.workers, most);
    arrangement.step_seconds = compute_step(arrangement);
    move_cuts(arrangement);
    return arrangement;
  }

  Plan build_plan(const Arrangement& arrangement) {
    problem_.micro_batches = arrangement.micro_batches;
    Plan plan = running_;
    plan.micro_batches = arrangement.micro_batches;
    plan.method = "repartition";
    plan.bound.reset();
    plan.stages.clear();
    for (std::size_t s = 0; s < arrangement.workers.size(); ++s) {
      Stage stage;
      stage.first_layer = arrangement.begin[s];
      stage.last_layer = arrangement.begin[s + 1] - 1;
      std::vector<double> samples = shares(arrangement.workers[s], stage.first_layer, stage.last_layer);
      for (double& own : samples) own = std::max(own, kMinFraction * problem_.micro_batch_samples());
      const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
      for (std::size_t i = 0; i < samples.size(); ++i) {
        stage.replicas.push_back({problem_.types[index(arrangement.workers[s][i])].name, 1, samples[i] / sum});
      }
      stage.gradient_sync = samples.size() > 1 ? gradient_sync_ : GradientSync::kNone;
      stage.recompute = recomputes_;
      plan.stages.push_back(std::move(stage));
    }
    return plan;
  }

 private:
  struct Sums {  // of one worker, over the layers before each
    std::vector<double> forward_fixed, forward, backward_fixed, backward, update, sparse;
  };

  static double over(const std::vector<double>& sums, int first, int last) {
    return sums[index(last + 1)] - sums[index(first)];
  }

  // Each direction with the rows of embeddings that it pulls or pushes (equations 8 and 9 of cost/evaluation.h).
  Affine forward(int worker, int first, int last) const {
    const Sums& sums = sums_[index(worker)];
    return {over(sums.forward_fixed, first, last), over(sums.forward, first, last) + over(sums.sparse, first, last)};
  }
  Affine backward(int worker, int first, int last) const {
    const Sums& sums = sums_[index(worker)];
    Affine both{over(sums.backward_fixed, first, last),
                over(sums.backward, first, last) + over(sums.sparse, first, last)};
    if (recomputes_) {
      both.fixed += over(sums.forward_fixed, first, last);
      both.per_sample += over(sums.forward, first, last);
    }
    return both;
  }

  // The samples of a micro-batch that each of a stage's workers takes for all to finish together. With both directions
  // of a worker a_i + b_i n_i = T, the sum of (T - a_i) / b_i over those with a_i < T is all samples; T grows with
  // every worker that is left out, slowest start first.
  std::vector<double> shares(const std::vector<int>& workers, int first, int last) const {
    struct Line {
      double fixed, per_sample;
    };
    std::vector<Line> lines;
    for (const int worker : workers) {
      const Affine ahead = forward(worker, first, last), back = backward(worker, first, last);
      lines.push_back({ahead.fixed + back.fixed, std::max(kMinPerSample, ahead.per_sample + back.per_sample)});
    }
    std::vector<bool> works(workers.size(), true);
    std::vector<double> samples(workers.size());
    for (bool settled = false; !settled;) {
      double rate = 0, started = 0;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        if (!works[i]) continue;
        rate += 1 / lines[i].per_sample;
        started += lines[i].fixed / lines[i].per_sample;
      }
      const double together = (problem_.micro_batch_samples() + started) / rate;
      settled = true;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        samples[i] = works[i] ? (together - lines[i].fixed) / lines[i].per_sample : 0;
        if (samples[i] < 0) works[i] = settled = false;
      }
    }
    return samples;
  }

  StageCost compute_cost(const std::vector<int>& workers, int first, int last) const {
    const std::vector<double> samples = shares(workers, first, last);
    StageCost cost;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (samples[i] == 0) continue;
      cost.forward_seconds = std::max(cost.forward_seconds, forward(workers[i], first, last).at(samples[i]));
      cost.backward_seconds = std::max(cost.backward_seconds, backward(workers[i], first, last).at(samples[i]));
      cost.update_seconds = std::max(cost.update_seconds, problem_.type(workers[i]).step_seconds +
                                                              over(sums_[index(workers[i])].update, first, last));
    }
    return cost;
  }

  // Of the exchange, after the last backward of the slowest worker.
  double exposed_seconds(const std::vector<int>& workers, int first, int last) const {
    const double exchange = gradient_sync_seconds(gradient_sync_, over(parameter_bytes_, first, last),
                                                  static_cast<double>(workers.size()), slowest_link(problem_, workers));
    if (exchange == 0) return 0;
    const std::vector<double> samples = shares(workers, first, last);
    double longest = 0;  // backward
    double last_end = 0;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (samples[i] == 0) continue;
      const PipelineStage stage = pipeline_stage(problem_, first, last, workers[i], -1, 0, 1);
      const double own = backward(workers[i], first, last).at(samples[i]);
      longest = std::max(longest, own);
      last_end = std::max(last_end, own + stage.exposed_seconds(exchange, stage.samples / samples[i]));
    }
    return std::max(0.0, last_end - longest);
  }

  double seconds(const std::vector<int>& workers, int first, int last) const {
    const StageCost cost = compute_cost(workers, first, last);
    return cost.forward_seconds + cost.backward_seconds;
  }

  // The stages' first layers where none takes longer than this; none where that is impossible. Each stage takes as many
  // layers as it can, which leaves the later ones the least to do.
  std::vector<int> fits(const std::vector<std::vector<int>>& workers, double most) const {
    std::vector<int> begin = {0};
    for (std::size_t s = 0; s < workers.size(); ++s) {
      const int last_possible = problem_.layer_count() - static_cast<int>(workers.size() - s);
      const int first = begin.back();
      int last = first - 1;
      while (last < last_possible && seconds(workers[s], first, last + 1) <= most * (1 + kTolerance)) ++last;
      if (last < first) return {};
      begin.push_back(last + 1);
    }
    return begin.back() == problem_.layer_count() ? begin : std::vector<int>();
  }

  // The slowest of the links between any worker of one stage and any of the other.
  double transfer_seconds(const std::vector<int>& from, const std::vector<int>& to, int layer) const {
    const double bytes = problem_.micro_batch_samples() * problem_.cut_bytes[index(layer)];
    const auto senders = static_cast<double>(from.size());
    const auto receivers = static_cast<double>(to.size());
    double slowest = 0;
    for (const int sender : from) {
      for (const int receiver : to) {
        slowest = std::max(slowest, problem_.link(sender, receiver).latency_seconds +
                                        bytes * problem_.seconds_per_byte(sender, senders, receiver, receivers));
      }
    }
    return slowest;
  }

  bool fits_memory(const Arrangement& arrangement, std::size_t stage) const {
    const int first = arrangement.begin[stage], last = arrangement.begin[stage + 1] - 1;
    const double state = problem_.memory_per_parameter_byte * over(parameter_bytes_, first, last);
    const auto in_flight = static_cast<double>(
        count_warm_up(problem_.schedule, stage, arrangement.workers.size(), arrangement.micro_batches));
    const double inside = over(activation_bytes_, first, last);
    const double a_sample = recomputes_ ? in_flight * problem_.cut_bytes[index(first)] + inside : in_flight * inside;
    const std::vector<double> samples = shares(arrangement.workers[stage], first, last);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const double memory = problem_.types[index(arrangement.workers[stage][i])].memory_bytes;
      if (memory > 0 && state + samples[i] * a_sample > memory * (1 + kTolerance)) return false;
    }
    return true;
  }

  // Whether all workers of the stage have a sample of each micro-batch to do.
  bool uses_all(const Arrangement& arrangement, std::size_t stage) const {
    return std::ranges::all_of(
        shares(arrangement.workers[stage], arrangement.begin[stage], arrangement.begin[stage + 1] - 1),
        [](double samples) { return samples >= 1; });
  }

  double compute_step(const Arrangement& arrangement) const {
    if (arrangement.begin.empty()) return kInfinity;
    std::vector<StageCost> stages;
    for (std::size_t s = 0; s < arrangement.workers.size(); ++s) {
      if (!uses_all(arrangement, s) || !fits_memory(arrangement, s)) return kInfinity;
      const int first = arrangement.begin[s], end = arrangement.begin[s + 1];
      stages.push_back(compute_cost(arrangement.workers[s], first, end - 1));
      stages.back().exposed_sync_seconds = exposed_seconds(arrangement.workers[s], first, end - 1);
      if (s + 1 < arrangement.workers.size()) {
        stages.back().transfer_seconds = transfer_seconds(arrangement.workers[s], arrangement.workers[s + 1], end);
      }
    }
    return pipeline_time(problem_, stages).step;
  }

  void move_cuts(Arrangement& arrangement) const {
    for (bool moved = true; moved && !arrangement.begin.empty();) {
      moved = false;
      for (std::size_t s = 1; s + 1 < arrangement.begin.size(); ++s) {
        for (const int by : {-1, 1}) {
          Arrangement other = arrangement;
          other.begin[s] += by;
          if (other.begin[s] <= other.begin[s - 1] || other.begin[s] >= other.begin[s + 1]) continue;
          other.step_seconds = compute_step(other);
          if (other.step_seconds < arrangement.step_seconds * (1 - kTolerance)) {
            arrangement = std::move(other);
            moved = true;
          }
        }
      }
    }
  }

  // Cuts for the map, and keeps it where it is among the best; the step's seconds.
  double consider(const std::vector<int>& worker_stage, int stages) {
    std::vector<std::vector<int>> workers(index(stages));
    for (std::size_t worker = 0; worker < worker_stage.size(); ++worker) {
      workers[index(worker_stage[worker])].push_back(static_cast<int>(worker));
    }
    if (std::ranges::any_of(workers, [](const std::vector<int>& of_stage) { return of_stage.empty(); })) {
      return kInfinity;
    }
    Arrangement arrangement = cut(std::move(workers), problem_.micro_batches);
    const double seconds = arrangement.step_seconds;
    if (std::isfinite(seconds)) {
      const auto place = std::ranges::upper_bound(best_, seconds, {}, &Arrangement::step_seconds);
      best_.insert(place, std::move(arrangement));
      if (best_.size() > kReplayed) best_.pop_back();
    }
    return seconds;
  }

  // In times, memory and links to all others.
  bool alike(std::size_t one, std::size_t other) const {
    const Sums &a = sums_[one], &b = sums_[other];
    const Type &type = problem_.types[one], &other_type = problem_.types[other];
    if (a.forward != b.forward || a.backward != b.backward || a.forward_fixed != b.forward_fixed ||
        a.backward_fixed != b.backward_fixed || a.update != b.update || type.memory_bytes != other_type.memory_bytes ||
        type.step_seconds != other_type.step_seconds || type.bytes_per_second != other_type.bytes_per_second ||
        type.latency_seconds != other_type.latency_seconds) {
      return false;
    }
    const auto link = [&](std::size_t from, std::size_t to) {
      const Link& between = problem_.links[from * problem_.types.size() + to];
      return std::pair(between.bytes_per_second, between.latency_seconds);
    };
    for (std::size_t third = 0; third < problem_.types.size(); ++third) {
      if (third != one && third != other && link(one, third) != link(other, third)) return false;
    }
    return true;
  }

  // All ways to give the workers to stages; of neighbours that are alike the later one is in no earlier stage.
  void every_map(int stages) {
    std::vector<int> worker_stage(index(problem_.type_count()));
    const std::function<void(std::size_t)> place = [&](std::size_t worker) {
      if (stop_.stop_requested()) return;
      if (worker == worker_stage.size()) {
        consider(worker_stage, stages);
        return;
      }
      const int least = worker > 0 && alike(worker - 1, worker) ? worker_stage[worker - 1] : 0;
      for (int stage = least; stage < stages; ++stage) {
        worker_stage[worker] = stage;
        place(worker + 1);
      }
    };
    place(0);
  }

  // From one map to the best of those where one worker is in another stage, or two have changed places, until none is
  // better.
  void improve(std::vector<int> worker_stage, int stages) {
    double best = consider(worker_stage, stages);
    for (bool better = true; better && !stop_.stop_requested();) {
      better = false;
      std::vector<int> next = worker_stage;
      const auto look_at = [&](const std::vector<int>& other) {
        const double seconds = consider(other, stages);
        if (seconds < best * (1 - kTolerance)) {
          best = seconds;
          next = other;
          better = true;
        }
      };
      for (std::size_t worker = 0; worker < worker_stage.size() && !stop_.stop_requested(); ++worker) {
        std::vector<int> other = worker_stage;
        for (int stage = 0; stage < stages; ++stage) {
          other[worker] = stage;
          if (stage != worker_stage[worker]) look_at(other);
        }
        for (std::size_t second = worker + 1; second < worker_stage.size(); ++second) {
          other = worker_stage;
          std::swap(other[worker], other[second]);
          if (other != worker_stage) look_at(other);
        }
      }
      worker_stage = next;
    }
  }

  Problem problem_;
  const Plan& running_;
  const std::stop_token stop_;
  std::vector<Sums> sums_;
  std::vector<double> parameter_bytes_, activation_bytes_;
  bool recomputes_ = false;
  GradientSync gradient_sync_ = GradientSync::kRing;
  std::vector<Arrangement> best_;
};

Result<double> replay(const Problem& problem, const Plan& plan) {
  MOTLEY_ASSIGN(const Timeline timeline, simulate(problem, plan, {.keep_events = false}));
  return timeline.step_seconds;
}

}  // namespace

Problem problem_of_workers(const Problem& types, const std::vector<WorkerSpeed>& workers) {
  Problem problem = types;
  problem.types.clear();
  problem.table.clear();
  problem.links.clear();
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    problem.types.push_back(types.types[index(workers[worker].type)]);
    problem.types.back().name = fmt::format("worker-{}", worker);
    problem.types.back().count = 1;
    problem.types.back().step_seconds *= workers[worker].slowdown;
    for (const WorkerSpeed& other : workers) problem.links.push_back(types.link(workers[worker].type, other.type));
  }
  for (int layer = 0; layer < types.layer_count(); ++layer) {
    for (const WorkerSpeed& worker : workers) {
      LayerOnType time = types.at(layer, worker.type);
      for (Affine* part : {&time.forward, &time.backward, &time.overhead}) {
        part->fixed *= worker.slowdown;
        part->per_sample *= worker.slowdown;
      }
      time.update_seconds *= worker.slowdown;
      problem.table.push_back(time);
    }
  }
  return problem;
}

Result<PlacedPlan> make_placement(const Problem& workers, const Plan& plan, const std::vector<int>& places) {
  PlacedPlan placement{plan, places};
  Arrangement arrangement{{}, {0}, plan.micro_batches};
  std::size_t place = 0;
  for (const Stage& stage : plan.stages) {
    arrangement.workers.emplace_back();
    arrangement.begin.push_back(stage.last_layer + 1);
    for (const Replicas& replicas : stage.replicas) {
      for (std::int64_t i = 0; i < replicas.count; ++i) arrangement.workers.back().push_back(places[place++]);
    }
  }
  Problem problem = workers;
  problem.micro_batches = plan.micro_batches;
  placement.plan = Repartition(problem, placement, {}).build_plan(arrangement);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) placement.plan.stages[s].recompute = plan.stages[s].recompute;
  MOTLEY_ASSIGN(placement.step_seconds, replay(problem, placement.plan));
  return placement;
}

Result<PlacedPlan> repartition(const Problem& workers, const PlacedPlan& running, const std::stop_token& stop) {
  Repartition search(workers, running, stop);
  PlacedPlan best = running;
  for (const Arrangement& arrangement : search.search(running.workers)) {
    PlacedPlan placement{search.build_plan(arrangement), {}};
    for (const std::vector<int>& of_stage : arrangement.workers) {
      placement.workers.insert(placement.workers.end(), of_stage.begin(), of_stage.end());
    }
    Problem problem = workers;
    problem.micro_batches = arrangement.micro_batches;
    MOTLEY_ASSIGN(placement.step_seconds, replay(problem, placement.plan));
    if (placement.step_seconds < best.step_seconds * (1 - kTolerance)) best = std::move(placement);
  }
  best.plan.predicted = {.step_seconds = best.step_seconds,
                         .throughput = static_cast<double>(workers.batch) / best.step_seconds};
  return best;
}

}  // namespace motley::planning
