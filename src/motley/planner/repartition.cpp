// The search works on sums that the layers' times have been put into once, so that what a stage takes is known in a
// moment for any run of layers and any workers: a candidate's step comes from the closed form of cost/stage.h. The few
// best are replayed event by event, and the shortest step wins.
#include "motley/planner/repartition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "motley/cost/stage.h"
#include "motley/simulate/simulate.h"

namespace motley::planner {
namespace {

constexpr std::size_t kReplayed = 8;       // of the candidates, the best by the closed form
constexpr int kBisections = 40;            // to find the slowest stage's least time
constexpr double kLeastPerSample = 1e-15;  // seconds: a layer that takes less is as good as free
constexpr double kLeastShare = 1e-6;       // of a worker that has nothing to do where shares are balanced
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// Which workers each stage has, and its first layer; one after the last stage.
struct Candidate {
  std::vector<std::vector<int>> workers;
  std::vector<int> begin;
  std::int64_t micro_batches = 1;
  double step_seconds = kInfinity;
};

class Repartition {
 public:
  Repartition(const cost::Problem& problem, const Placement& running, std::stop_token stop)
      : problem_(problem), running_(running.plan), stop_(std::move(stop)) {
    const std::size_t layers = problem.layers.size();
    const auto sum_up = [&](auto value) {
      std::vector<double> sums(layers + 1);
      for (std::size_t layer = 0; layer < layers; ++layer) sums[layer + 1] = sums[layer] + value(layer);
      return sums;
    };
    for (int worker = 0; worker < problem.type_count(); ++worker) {
      const auto times = [&](auto part) {
        return sum_up([&](std::size_t layer) { return part(problem.at(static_cast<int>(layer), worker)); });
      };
      sums_.push_back({times([](const cost::LayerOnType& time) { return time.forward.fixed; }),
                       times([](const cost::LayerOnType& time) { return time.forward.per_sample; }),
                       times([](const cost::LayerOnType& time) { return time.backward.fixed; }),
                       times([](const cost::LayerOnType& time) { return time.backward.per_sample; })});
    }
    parameter_bytes_ = sum_up([&](std::size_t layer) { return problem.layers[layer].parameter_bytes; });
    activation_bytes_ = sum_up([&](std::size_t layer) { return problem.layers[layer].activation_bytes; });
    for (const plan::Stage& stage : running_.stages) {
      recomputes_ = recomputes_ || stage.recompute;
      exchange_ = stage.exchange == plan::Exchange::kNone ? exchange_ : stage.exchange;
    }
  }

  // The best by the closed form, the best first.
  std::vector<Candidate> search(const std::vector<int>& places) {
    std::vector<int> stage_of(at(problem_.type_count()));
    std::size_t place = 0;
    for (std::size_t stage = 0; stage < running_.stages.size(); ++stage) {
      for (const plan::Replicas& replicas : running_.stages[stage].replicas) {
        for (std::int64_t i = 0; i < replicas.count; ++i) stage_of[at(places[place++])] = static_cast<int>(stage);
      }
    }
    const int most_stages = std::min(problem_.type_count(), problem_.layer_count());
    for (const std::int64_t micro_batches :
         {running_.micro_batches, 2 * running_.micro_batches, running_.micro_batches / 2}) {
      if (micro_batches < 1 || micro_batches > problem_.batch) continue;
      problem_.micro_batches = micro_batches;
      for (int stages = 1; stages <= most_stages; ++stages) {
        if (std::pow(stages, problem_.type_count()) <= kMostMaps) {
          every_map(stages);
        } else if (stages == static_cast<int>(running_.stages.size())) {
          improve(stage_of, stages);
        }
      }
    }
    return best_;
  }

  // Cut for these workers and micro-batches; infinite where that is impossible.
  Candidate cut(std::vector<std::vector<int>> workers, std::int64_t micro_batches) {
    Candidate candidate{std::move(workers), {}, micro_batches};
    problem_.micro_batches = micro_batches;
    double least = 0, most = 0;
    for (const std::vector<int>& of_stage : candidate.workers) {
      if (static_cast<double>(of_stage.size()) > samples()) return candidate;
      most = std::max(most, seconds(of_stage, 0, problem_.layer_count() - 1));
    }
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (least + most) / 2;
      (fits(candidate.workers, middle).empty() ? least : most) = middle;
    }
    candidate.begin = fits(candidate.workers, most);
    candidate.step_seconds = step_of(candidate);
    move_cuts(candidate);
    return candidate;
  }

  plan::Plan plan_of(const Candidate& candidate) {
    problem_.micro_batches = candidate.micro_batches;
    plan::Plan plan = running_;
    plan.micro_batches = candidate.micro_batches;
    plan.method = "repartition";
    plan.bound.reset();
    plan.stages.clear();
    for (std::size_t s = 0; s < candidate.workers.size(); ++s) {
      plan::Stage stage;
      stage.first_layer = candidate.begin[s];
      stage.last_layer = candidate.begin[s + 1] - 1;
      std::vector<double> samples = shares(candidate.workers[s], stage.first_layer, stage.last_layer);
      for (double& own : samples) own = std::max(own, kLeastShare * this->samples());
      const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
      for (std::size_t i = 0; i < samples.size(); ++i) {
        stage.replicas.push_back({problem_.types[at(candidate.workers[s][i])].name, 1, samples[i] / sum});
      }
      stage.exchange = samples.size() > 1 ? exchange_ : plan::Exchange::kNone;
      stage.recompute = recomputes_;
      plan.stages.push_back(std::move(stage));
    }
    return plan;
  }

 private:
  struct Sums {  // of one worker, over the layers before each
    std::vector<double> forward_fixed, forward, backward_fixed, backward;
  };

  double samples() const {  // of a micro-batch
    return static_cast<double>(problem_.batch) / static_cast<double>(problem_.micro_batches);
  }

  static double over(const std::vector<double>& sums, int first, int last) {
    return sums[at(last + 1)] - sums[at(first)];
  }

  cost::Affine forward(int worker, int first, int last) const {
    const Sums& sums = sums_[at(worker)];
    return {over(sums.forward_fixed, first, last), over(sums.forward, first, last)};
  }
  cost::Affine backward(int worker, int first, int last) const {
    const Sums& sums = sums_[at(worker)];
    const cost::Affine again = recomputes_ ? forward(worker, first, last) : cost::Affine{};
    return {over(sums.backward_fixed, first, last) + again.fixed, over(sums.backward, first, last) + again.per_sample};
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
      const cost::Affine ahead = forward(worker, first, last), back = backward(worker, first, last);
      lines.push_back({ahead.fixed + back.fixed, std::max(kLeastPerSample, ahead.per_sample + back.per_sample)});
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
      const double together = (this->samples() + started) / rate;
      settled = true;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        samples[i] = works[i] ? (together - lines[i].fixed) / lines[i].per_sample : 0;
        if (samples[i] < 0) works[i] = settled = false;
      }
    }
    return samples;
  }

  cost::StageCost cost_of(const std::vector<int>& workers, int first, int last) const {
    const std::vector<double> samples = shares(workers, first, last);
    cost::StageCost cost;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (samples[i] == 0) continue;
      cost.forward_seconds = std::max(cost.forward_seconds, forward(workers[i], first, last).at(samples[i]));
      cost.backward_seconds = std::max(cost.backward_seconds, backward(workers[i], first, last).at(samples[i]));
    }
    return cost;
  }

  double seconds(const std::vector<int>& workers, int first, int last) const {
    const cost::StageCost cost = cost_of(workers, first, last);
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
      while (last < last_possible && seconds(workers[s], first, last + 1) <= most * (1 + cost::kTolerance)) ++last;
      if (last < first) return {};
      begin.push_back(last + 1);
    }
    return begin.back() == problem_.layer_count() ? begin : std::vector<int>();
  }

  // The slowest of the links between any worker of one stage and any of the other.
  double transfer_seconds(const std::vector<int>& from, const std::vector<int>& to, int layer) const {
    const double bytes =
        samples() * problem_.cut_bytes[at(layer)] / static_cast<double>(std::min(from.size(), to.size()));
    double slowest = 0;
    for (const int sender : from) {
      for (const int receiver : to) {
        const cost::Link& link = problem_.link(sender, receiver);
        slowest = std::max(slowest, link.latency_seconds + bytes / link.bytes_per_second);
      }
    }
    return slowest;
  }

  double exchange_seconds(const std::vector<int>& workers, int first, int last) const {
    if (workers.size() < 2) return 0;
    double bandwidth = kInfinity, latency = 0;
    for (const int one : workers) {
      bandwidth = std::min(bandwidth, problem_.types[at(one)].bytes_per_second);
      latency = std::max(latency, problem_.types[at(one)].latency_seconds);
      for (const int other : workers) {
        if (one == other) continue;
        bandwidth = std::min(bandwidth, problem_.link(one, other).bytes_per_second);
        latency = std::max(latency, problem_.link(one, other).latency_seconds);
      }
    }
    const double bytes = over(parameter_bytes_, first, last);
    const auto count = static_cast<double>(workers.size());
    return exchange_ == plan::Exchange::kRing ? 2 * (count - 1) * (bytes / (count * bandwidth) + latency)
                                              : 2 * (bytes / bandwidth + latency);
  }

  bool fits_memory(const Candidate& candidate, std::size_t stage) const {
    const int first = candidate.begin[stage], last = candidate.begin[stage + 1] - 1;
    const double state = problem_.memory_per_parameter_byte * over(parameter_bytes_, first, last);
    const auto behind = static_cast<std::int64_t>(candidate.workers.size() - stage);
    const auto in_flight = static_cast<double>(problem_.schedule == plan::Schedule::kFillDrain
                                                   ? candidate.micro_batches
                                                   : std::min(candidate.micro_batches, behind));
    const double inside = over(activation_bytes_, first, last);
    const double a_sample = recomputes_ ? in_flight * problem_.cut_bytes[at(first)] + inside : in_flight * inside;
    const std::vector<double> samples = shares(candidate.workers[stage], first, last);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const double memory = problem_.types[at(candidate.workers[stage][i])].memory_bytes;
      if (memory > 0 && state + samples[i] * a_sample > memory * (1 + cost::kTolerance)) return false;
    }
    return true;
  }

  // Whether all workers of the stage have a sample of each micro-batch to do.
  bool uses_all(const Candidate& candidate, std::size_t stage) const {
    return std::ranges::all_of(shares(candidate.workers[stage], candidate.begin[stage], candidate.begin[stage + 1] - 1),
                               [](double samples) { return samples >= 1; });
  }

  double step_of(const Candidate& candidate) const {
    if (candidate.begin.empty()) return kInfinity;
    std::vector<cost::StageCost> stages;
    for (std::size_t s = 0; s < candidate.workers.size(); ++s) {
      if (!uses_all(candidate, s) || !fits_memory(candidate, s)) return kInfinity;
      const int first = candidate.begin[s], end = candidate.begin[s + 1];
      stages.push_back(cost_of(candidate.workers[s], first, end - 1));
      stages.back().exchange_seconds = exchange_seconds(candidate.workers[s], first, end - 1);
      if (s + 1 < candidate.workers.size()) {
        stages.back().transfer_seconds = transfer_seconds(candidate.workers[s], candidate.workers[s + 1], end);
      }
    }
    return cost::pipeline_time(problem_, stages).step;
  }

  void move_cuts(Candidate& candidate) const {
    for (bool moved = true; moved && !candidate.begin.empty();) {
      moved = false;
      for (std::size_t s = 1; s + 1 < candidate.begin.size(); ++s) {
        for (const int by : {-1, 1}) {
          Candidate other = candidate;
          other.begin[s] += by;
          if (other.begin[s] <= other.begin[s - 1] || other.begin[s] >= other.begin[s + 1]) continue;
          other.step_seconds = step_of(other);
          if (other.step_seconds < candidate.step_seconds * (1 - cost::kTolerance)) {
            candidate = std::move(other);
            moved = true;
          }
        }
      }
    }
  }

  // Cuts for the map, and keeps it where it is among the best; the step's seconds.
  double consider(const std::vector<int>& stage_of, int stages) {
    std::vector<std::vector<int>> workers(at(stages));
    for (std::size_t worker = 0; worker < stage_of.size(); ++worker) {
      workers[at(stage_of[worker])].push_back(static_cast<int>(worker));
    }
    if (std::ranges::any_of(workers, [](const std::vector<int>& of_stage) { return of_stage.empty(); })) {
      return kInfinity;
    }
    Candidate candidate = cut(std::move(workers), problem_.micro_batches);
    const double seconds = candidate.step_seconds;
    if (std::isfinite(seconds)) {
      const auto place = std::ranges::upper_bound(best_, seconds, {}, &Candidate::step_seconds);
      best_.insert(place, std::move(candidate));
      if (best_.size() > kReplayed) best_.pop_back();
    }
    return seconds;
  }

  bool alike(std::size_t one, std::size_t other) const {
    const Sums &a = sums_[one], &b = sums_[other];
    return a.forward == b.forward && a.backward == b.backward && a.forward_fixed == b.forward_fixed &&
           a.backward_fixed == b.backward_fixed;
  }

  // All ways to give the workers to stages; of neighbours that are alike the later one is in no earlier stage.
  void every_map(int stages) {
    std::vector<int> stage_of(at(problem_.type_count()));
    const std::function<void(std::size_t)> place = [&](std::size_t worker) {
      if (stop_.stop_requested()) return;
      if (worker == stage_of.size()) {
        consider(stage_of, stages);
        return;
      }
      const int least = worker > 0 && alike(worker - 1, worker) ? stage_of[worker - 1] : 0;
      for (int stage = least; stage < stages; ++stage) {
        stage_of[worker] = stage;
        place(worker + 1);
      }
    };
    place(0);
  }

  // From one map to the best of those where one worker is in another stage, or two have changed places, until none is
  // better.
  void improve(std::vector<int> stage_of, int stages) {
    double best = consider(stage_of, stages);
    for (bool better = true; better && !stop_.stop_requested();) {
      better = false;
      std::vector<int> next = stage_of;
      const auto look_at = [&](const std::vector<int>& other) {
        const double seconds = consider(other, stages);
        if (seconds < best * (1 - cost::kTolerance)) {
          best = seconds;
          next = other;
          better = true;
        }
      };
      for (std::size_t worker = 0; worker < stage_of.size() && !stop_.stop_requested(); ++worker) {
        std::vector<int> other = stage_of;
        for (int stage = 0; stage < stages; ++stage) {
          other[worker] = stage;
          if (stage != stage_of[worker]) look_at(other);
        }
        for (std::size_t second = worker + 1; second < stage_of.size(); ++second) {
          other = stage_of;
          std::swap(other[worker], other[second]);
          if (other != stage_of) look_at(other);
        }
      }
      stage_of = next;
    }
  }

  cost::Problem problem_;
  const plan::Plan& running_;
  const std::stop_token stop_;
  std::vector<Sums> sums_;
  std::vector<double> parameter_bytes_, activation_bytes_;
  bool recomputes_ = false;
  plan::Exchange exchange_ = plan::Exchange::kRing;
  std::vector<Candidate> best_;
};

Result<double> replay(const cost::Problem& problem, const plan::Plan& plan) {
  MOTLEY_ASSIGN(const simulate::Timeline timeline, simulate::simulate(problem, plan, {.keep_events = false}));
  return timeline.step_seconds;
}

}  // namespace

cost::Problem problem_of_workers(const cost::Problem& types, const std::vector<WorkerSpeed>& workers) {
  cost::Problem problem = types;
  problem.types.clear();
  problem.table.clear();
  problem.links.clear();
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    problem.types.push_back(types.types[at(workers[worker].type)]);
    problem.types.back().name = fmt::format("worker-{}", worker);
    problem.types.back().count = 1;
    for (const WorkerSpeed& other : workers) problem.links.push_back(types.link(workers[worker].type, other.type));
  }
  for (int layer = 0; layer < types.layer_count(); ++layer) {
    for (const WorkerSpeed& worker : workers) {
      cost::LayerOnType time = types.at(layer, worker.type);
      for (cost::Affine* part : {&time.forward, &time.backward}) {
        part->fixed *= worker.slowdown;
        part->per_sample *= worker.slowdown;
      }
      problem.table.push_back(time);
    }
  }
  return problem;
}

Result<Placement> placement_of(const cost::Problem& workers, const plan::Plan& plan, const std::vector<int>& places) {
  Placement placement{plan, places};
  Candidate candidate{{}, {0}, plan.micro_batches};
  std::size_t place = 0;
  for (const plan::Stage& stage : plan.stages) {
    candidate.workers.emplace_back();
    candidate.begin.push_back(stage.last_layer + 1);
    for (const plan::Replicas& replicas : stage.replicas) {
      for (std::int64_t i = 0; i < replicas.count; ++i) candidate.workers.back().push_back(places[place++]);
    }
  }
  cost::Problem problem = workers;
  problem.micro_batches = plan.micro_batches;
  placement.plan = Repartition(problem, placement, {}).plan_of(candidate);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) placement.plan.stages[s].recompute = plan.stages[s].recompute;
  MOTLEY_ASSIGN(placement.step_seconds, replay(problem, placement.plan));
  return placement;
}

Result<Placement> repartition(const cost::Problem& workers, const Placement& running, const std::stop_token& stop) {
  Repartition search(workers, running, stop);
  Placement best = running;
  for (const Candidate& candidate : search.search(running.workers)) {
    Placement placement{search.plan_of(candidate), {}};
    for (const std::vector<int>& of_stage : candidate.workers) {
      placement.workers.insert(placement.workers.end(), of_stage.begin(), of_stage.end());
    }
    cost::Problem problem = workers;
    problem.micro_batches = candidate.micro_batches;
    MOTLEY_ASSIGN(placement.step_seconds, replay(problem, placement.plan));
    if (placement.step_seconds < best.step_seconds * (1 - cost::kTolerance)) best = std::move(placement);
  }
  best.plan.predicted = {.step_seconds = best.step_seconds,
                         .throughput = static_cast<double>(workers.batch) / best.step_seconds};
  return best;
}

}  // namespace motley::planner
