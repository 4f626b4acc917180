// Nothing here is measured but the simulator's own speed: all other rows are simulated, and the same on every machine
// as far as the planners' time limits allow.
//
// The rows tapp-MODEL-LINK-BATCH set what TAPP (Applied Sciences 11(11):4785, 2021) compares, a pipeline whose layers a
// policy network allocates to heterogeneous nodes, against bulk-synchronous data parallelism with equal shares in one
// ring. TAPP's cluster and tables are not public, so the cluster is ours: four nodes of one device each at relative
// speeds 1, 1, 1/2 and 1/4, the fastest sustaining 4 Tflop/s and 300 GB/s, with 20 us a layer and direction, any two of
// them joined by a link of 1 or 10 Gb/s and 0.1 ms.
#include "bench/simulate_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "motley/base/clock.h"
#include "motley/base/statistics.h"
#include "motley/model/tables.h"
#include "motley/planning/cost/evaluation.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::bench {
namespace {

using planning::Timeline;

constexpr auto kPipelineSchedules = {planning::PipelineSchedule::kOneForwardOneBackward,
                                     planning::PipelineSchedule::kGPipe};

// Equal stages of one layer, each on `replicas` devices of one type: a micro-batch takes 1 s forward and 2 s backward.
struct Balanced {
  int stages = 1;
  std::int64_t replicas = 1;
  std::int64_t micro_batches = 1;
  double transfer_seconds = 0;
  planning::PipelineSchedule schedule = planning::PipelineSchedule::kOneForwardOneBackward;
};

planning::Problem balanced_problem(const Balanced& balanced) {
  const auto samples = static_cast<double>(balanced.replicas);
  planning::Problem problem;
  problem.model = "balanced";
  problem.cost_model = planning::CostModel::kPipeline;
  problem.batch = balanced.replicas * balanced.micro_batches;
  problem.micro_batches = balanced.micro_batches;
  problem.schedule = balanced.schedule;
  problem.types = {{.name = "device", .count = balanced.stages * balanced.replicas, .bytes_per_second = 1}};
  problem.links = {{.bytes_per_second = 1}};
  problem.cut_bytes.assign(static_cast<std::size_t>(balanced.stages) + 1, balanced.transfer_seconds);
  for (int s = 0; s < balanced.stages; ++s) {
    problem.layers.push_back({.name = fmt::format("layer{}", s), .parameter_bytes = samples});
    problem.table.push_back({.forward = {0, 1}, .backward = {0, 2}});
  }
  return problem;
}

planning::Candidate balanced_candidate(const Balanced& balanced) {
  planning::Candidate candidate;
  for (int s = 0; s < balanced.stages; ++s) {
    candidate.push_back({.first = s, .last = s, .type = 0, .replicas = balanced.replicas});
  }
  return candidate;
}

// How far the cost model's step is from the simulated one, as a share of this; links as the cost model has them.
Result<double> difference(const planning::Problem& problem, const planning::Candidate& candidate) {
  const planning::Evaluation evaluation = planning::evaluate(problem, candidate, {});
  const planning::Plan plan = planning::to_plan(problem, candidate, evaluation, {}, "given");
  MOTLEY_ASSIGN(const Timeline timeline, planning::simulate(problem, plan, {.keep_events = false}));
  return evaluation.step_seconds / timeline.step_seconds - 1;
}

Status add_balanced(std::vector<BenchRow>& rows) {
  // Eight micro-batches a stage, as pipelines are run to keep their bubble small; and fewer than stages.
  double worst = 0, worst_few = 0;
  for (const planning::PipelineSchedule schedule : kPipelineSchedules) {
    for (const int stages : {1, 2, 4, 8, 16, 32}) {
      for (const std::int64_t replicas : {1, 4}) {
        for (const double transfer : {0.0, 0.03, 0.3}) {
          const Balanced many{stages, replicas, 8 * stages, transfer, schedule};
          MOTLEY_ASSIGN(const double off, difference(balanced_problem(many), balanced_candidate(many)));
          worst = std::max(worst, std::abs(off));
          const Balanced few{stages, replicas, std::max(1, stages / 2), transfer, schedule};
          MOTLEY_ASSIGN(const double few_off, difference(balanced_problem(few), balanced_candidate(few)));
          worst_few = std::max(worst_few, std::abs(few_off));
        }
      }
    }
  }
  rows.push_back({.name = "balanced",
                  .metric = "difference_to_cost_model",
                  .value = worst,
                  .target = 0.01,
                  .note = "worst of both schedules, 1 to 32 stages, 1 or 4 replicas, transfers of 0, 1 and 10 % of a "
                          "micro-batch's computation; 8 micro-batches a stage"});
  rows.push_back({.name = "balanced-few-micro-batches",
                  .metric = "difference_to_cost_model",
                  .value = worst_few,
                  .note = "the same with half as many micro-batches as stages"});
  return {};
}

Status add_events(std::vector<BenchRow>& rows, const BenchOptions& options) {
  constexpr int kRounds = 9;
  const Balanced wide{16, 2, 1000, 0.1};
  const planning::Problem problem = balanced_problem(wide);
  const planning::Candidate candidate = balanced_candidate(wide);
  const planning::Plan plan =
      planning::to_plan(problem, candidate, planning::evaluate(problem, candidate, {}), {}, "given");
  std::vector<double> speeds;
  for (int round = 0; round < (options.quick ? kRounds : 3 * kRounds); ++round) {
    const double begin = monotonic_seconds();
    MOTLEY_ASSIGN(const Timeline timeline, planning::simulate(problem, plan, {.shared_links = true}));
    speeds.push_back(static_cast<double>(timeline.event_count) / (monotonic_seconds() - begin) / 1e6);
  }
  rows.push_back({.name = "events",
                  .metric = "millions_per_second",
                  .value = motley::median(speeds),
                  .unit = "million/s",
                  .more_is_better = true,
                  .target = 1,
                  .note = "16 stages of 2 replicas, 1000 micro-batches, contended links, all events kept; one thread, "
                          "median"});
  return {};
}

// Random candidates of random problems; what the planners see is the cost model, what would happen the simulation.
Status add_random(std::vector<BenchRow>& rows, const BenchOptions& options) {
  const std::uint64_t instances = options.quick ? 300 : 2000;
  for (const planning::PipelineSchedule schedule : kPipelineSchedules) {
    double sum = 0, worst = 0, sharing = 0;
    int count = 0;
    for (std::uint64_t seed = 0; seed < instances; ++seed) {
      planning::Problem problem = planning::random_problem(
          {.layers = 12, .types = 3, .cost_model = planning::CostModel::kPipeline, .links = true, .schedule = schedule},
          seed);
      problem.micro_batches = 16;
      const planning::Candidate candidate = planning::random_candidate(problem, seed);
      MOTLEY_ASSIGN(const double off, difference(problem, candidate));
      const planning::Plan plan =
          planning::to_plan(problem, candidate, planning::evaluate(problem, candidate, {}), {}, "given");
      MOTLEY_ASSIGN(const Timeline shared,
                    planning::simulate(problem, plan, {.shared_links = true, .keep_events = false}));
      MOTLEY_ASSIGN(const Timeline own, planning::simulate(problem, plan, {.keep_events = false}));
      sum += std::abs(off);
      worst = std::max(worst, std::abs(off));
      sharing += shared.step_seconds / own.step_seconds;
      ++count;
    }
    const std::string name = fmt::format("random-{}", planning::to_string(schedule));
    const std::string note = fmt::format("{} unbalanced plans of 12 layers on 3 types in 16 micro-batches", count);
    rows.push_back({.name = name, .metric = "mean_difference_to_cost_model", .value = sum / count, .note = note});
    rows.push_back({.name = name, .metric = "worst_difference_to_cost_model", .value = worst, .note = note});
    rows.push_back({.name = name,
                    .metric = "mean_slowdown_by_shared_links",
                    .value = sharing / count,
                    .unit = "x",
                    .note = "stages between the same two types share one link, which the cost model leaves out"});
  }
  return {};
}

constexpr std::array kSpeeds = {1.0, 1.0, 0.5, 0.25};

// The four nodes, each a type of its own, since a link belongs to a pair of types.
Result<planning::Problem> unequal_nodes(const model::Graph& graph, double bits_per_second, std::int64_t batch,
                                        std::int64_t micro_batches) {
  std::vector<model::DeviceSpeed> speeds;
  cluster::Cluster cluster;
  for (std::size_t i = 0; i < kSpeeds.size(); ++i) {
    const std::string name = fmt::format("node{}", i);
    speeds.push_back({.type = name,
                      .flops_per_second = 4e12 * kSpeeds[i],
                      .bytes_per_second = 300e9 * kSpeeds[i],
                      .layer_overhead_seconds = 20e-6 / kSpeeds[i]});
    cluster.device_types.push_back({.name = name, .kind = cluster::DeviceKind::kCuda});
    cluster.nodes.push_back({.name = name, .devices = {{.type = name}}});
    for (std::size_t j = 0; j < i; ++j) {
      cluster.links.push_back({.from = fmt::format("node{}", j),
                               .to = name,
                               .bytes_per_second = bits_per_second / 8,
                               .latency_seconds = 1e-4});
    }
  }
  const model::Profile profile = model::estimate(graph, speeds, static_cast<double>(batch));
  return planning::make_problem(profile, cluster,
                                {.cost_model = planning::CostModel::kPipeline,
                                 .total_samples = static_cast<double>(batch),
                                 .batch = batch,
                                 .micro_batches = micro_batches});
}

// One stage over all nodes with integers of samples; nodes without any are left out.
planning::Plan data_parallel(const planning::Problem& problem, const std::vector<std::int64_t>& samples) {
  planning::Plan plan;
  plan.model = problem.model;
  for (const planning::LayerSize& layer : problem.layers) {
    plan.layers.push_back(layer.name);
  }
  plan.batch = problem.batch;
  planning::Stage stage{
      .first_layer = 0, .last_layer = problem.layer_count() - 1, .gradient_sync = planning::GradientSync::kRing};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] > 0) {
      stage.replicas.push_back({.type = problem.types[i].name,
                                .share = static_cast<double>(samples[i]) / static_cast<double>(problem.batch)});
    }
  }
  plan.stages = {stage};
  return plan;
}

// Each sample goes to the node that would be done first with it: the shares whose slowest node is the fastest.
std::vector<std::int64_t> balanced_samples(const planning::Problem& problem) {
  std::vector<std::int64_t> samples(problem.types.size());
  const auto seconds = [&](std::size_t node, std::int64_t count) {
    double sum = 0;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      const planning::LayerOnType& times = problem.at(layer, static_cast<int>(node));
      sum += times.forward.at(static_cast<double>(count)) + times.backward.at(static_cast<double>(count));
    }
    return sum;
  };
  for (std::int64_t sample = 0; sample < problem.batch; ++sample) {
    std::size_t best = 0;
    for (std::size_t node = 1; node < samples.size(); ++node) {
      if (seconds(node, samples[node] + 1) < seconds(best, samples[best] + 1)) {
        best = node;
      }
    }
    ++samples[best];
  }
  return samples;
}

// What TAPP takes from real runs, its reward, comes from the simulator.
planning::Evaluation simulated(const planning::Problem& problem, const planning::Candidate& candidate,
                               const planning::Objective& objective) {
  planning::Evaluation evaluation = planning::evaluate(problem, candidate, objective);
  const Result<Timeline> timeline = planning::simulate(
      problem, planning::to_plan(problem, candidate, evaluation, objective, ""), {.keep_events = false});
  if (!timeline) {
    evaluation.feasible = false;
    evaluation.violation = timeline.error().message;
    return evaluation;
  }
  evaluation.step_seconds = timeline->step_seconds;
  evaluation.throughput = static_cast<double>(problem.batch) / timeline->step_seconds;
  return evaluation;
}

Result<Timeline> find_best(const planning::Planner& planner, const planning::Request& request) {
  MOTLEY_ASSIGN(const planning::Answer answer, planner.plan(request));
  if (!answer.best) {
    return fail(ErrorCode::kInternal, "'{}' found no plan of '{}'", planner.name, request.problem.model);
  }
  return planning::simulate(
      request.problem,
      planning::to_plan(request.problem, *answer.best, answer.evaluation, request.objective, planner.name),
      {.keep_events = false});
}

Status add_unequal_nodes(std::vector<BenchRow>& rows, const BenchOptions& options) {
  const planning::Objective objective{.criterion = planning::Criterion::kMinStepTime};
  const double learning_seconds = options.quick ? 1 : 5;
  const planning::Planner exact{"exact", planning::plan_exact};
  const planning::Planner learned{"rl-attention", planning::plan_rl_attention};
  for (const char* const table : {"alexnet", "vgg16", "resnet50"}) {
    MOTLEY_ASSIGN(const model::Graph graph, model::table(table));
    for (const int gigabits : {1, 10}) {
      for (const std::int64_t batch : {8, 32, 128}) {
        const std::string name = fmt::format("tapp-{}-{}Gbps-{}", table, gigabits, batch);
        if (options.progress) {
          options.progress(name);
        }
        const double link = 1e9 * gigabits;
        MOTLEY_ASSIGN(const planning::Problem whole, unequal_nodes(graph, link, batch, 1));
        // Bulk-synchronous: all compute, and then exchange.
        const std::vector<std::int64_t> equal(kSpeeds.size(), batch / kSpeeds.size());
        MOTLEY_ASSIGN(const Timeline bsp,
                      planning::simulate(whole, data_parallel(whole, equal), {.gradient_sync_overlaps = false}));
        MOTLEY_ASSIGN(const Timeline balanced,
                      planning::simulate(whole, data_parallel(whole, balanced_samples(whole))));
        // Micro-batches are not the methods' to choose: as many as serve the exact plan best.
        Timeline best{.step_seconds = std::numeric_limits<double>::infinity()};
        planning::Problem cut = whole;
        for (std::int64_t micro_batches = 1; micro_batches <= batch; micro_batches *= 2) {
          MOTLEY_ASSIGN(planning::Problem problem, unequal_nodes(graph, link, batch, micro_batches));
          MOTLEY_ASSIGN(Timeline timeline, find_best(exact, {.problem = problem, .objective = objective}));
          if (timeline.step_seconds < best.step_seconds) {
            best = std::move(timeline);
            cut = std::move(problem);
          }
        }
        // A policy that starts among plans with more stages than nodes may find none in its time.
        const Result<Timeline> attention = find_best(learned, {.problem = cut,
                                                               .objective = objective,
                                                               .seconds = learning_seconds,
                                                               .evaluator = [&](const planning::Candidate& candidate) {
                                                                 return simulated(cut, candidate, objective);
                                                               }});
        const auto add = [&](const std::string& metric, double value, const char* unit, std::optional<double> peer,
                             const std::string& note) {
          rows.push_back({.name = name,
                          .metric = metric,
                          .value = value,
                          .unit = unit,
                          .more_is_better = true,
                          .peer = peer,
                          .note = note});
        };
        const auto simulation = [&](const Timeline& timeline) {
          return fmt::format("simulated; nodes at speeds 1, 1, 1/2, 1/4, of which {} used; {} micro-batches",
                             timeline.devices.size(), cut.micro_batches);
        };
        const auto share_reduction = [&](const Timeline& timeline) {
          return 1 - timeline.communication_fraction / bsp.communication_fraction;
        };
        if (attention) {
          const std::string published = "peer: TAPP's published mean, on its own cluster; " + simulation(*attention);
          add("step_ratio_bsp_over_rl-attention", bsp.step_seconds / attention->step_seconds, "x", 1.37, published);
          add("communication_share_reduction", share_reduction(*attention), "", 0.4892, published);
        } else {
          const double none = std::numeric_limits<double>::quiet_NaN();
          add("step_ratio_bsp_over_rl-attention", none, "x", 1.37, "no plan in time: " + attention.error().message);
          add("communication_share_reduction", none, "", 0.4892, "no plan in time: " + attention.error().message);
        }
        add("step_ratio_bsp_over_exact", bsp.step_seconds / best.step_seconds, "x", {}, simulation(best));
        add("communication_share_reduction_exact", share_reduction(best), "", {}, simulation(best));
        add("step_ratio_bsp_over_balanced", bsp.step_seconds / balanced.step_seconds, "x", {},
            "simulated; data parallelism whose nodes finish together");
        add("communication_share_reduction_balanced", share_reduction(balanced), "", {},
            "simulated; data parallelism whose nodes finish together");
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> simulate_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  MOTLEY_TRY(add_balanced(rows));
  MOTLEY_TRY(add_events(rows, options));
  MOTLEY_TRY(add_random(rows, options));
  MOTLEY_TRY(add_unequal_nodes(rows, options));
  return rows;
}

}  // namespace motley::bench
