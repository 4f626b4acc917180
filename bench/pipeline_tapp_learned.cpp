// TAPP as published (Mao et al. 2021): its partition and allocation networks learn from the measured steps of real
// processes alone. They begin from random weights; no plan of another method, no cost model and no number of an exact
// search is given to them. Four heterogeneous machines on links of 1 Gb/s (bench/heterogeneous_machines.h), each with
// so little memory that no two of them hold the network; what does not fit is turned down without a run, and what fails
// is as bad as ten times the slowest that ran. The plan that the policy ends with is then measured beside data
// parallelism with equal shares (bulk-synchronous and overlapped, Gloo) and with shares by speed (our ring), neither of
// which is held to the memory, and beside the exact pipeline and that of PipeDream's program for equal machines.
//
// How much memory a machine has: between what two machines need at least, each holding a run of layers, and what three
// need, the geometric mean. Where two need no more than three (one layer is too large), the limit is what three need,
// and the case does not count as one that needs three machines.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "bench/heterogeneous_machines.h"
#include "bench/pipeline_bench.h"
#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/learned/policy_gradient.h"
#include "motley/planning/methods.h"

namespace motley::bench {
namespace {

constexpr int kMachines = HeterogeneousMachines::kMachines;
constexpr std::int64_t kBatch = 8;  // a machine, so that a run takes seconds
constexpr std::int64_t kMicroBatches = 8;
constexpr const char* kNetworks[] = {"alexnet", "vgg16", "resnet18", "resnet50"};
constexpr double kLearnSeconds = 900;     // of measured steps, a case
constexpr std::int64_t kLearnPlans = 40;  // at most
constexpr int kLearnSteps = 3;
constexpr int kSteps = 6;
constexpr int kSettledStep = 1;  // before the first that counts
constexpr int kRounds = 2;       // of the comparison, in turns
constexpr double kRunSeconds = 120;
constexpr double kExactSeconds = 30;
constexpr std::uint64_t kSeed = 1;
constexpr double kMuch = 1e15;  // bytes
constexpr double kLargestWithoutThree = 0.97;

// The least memory with which so many machines, one run of layers on each, hold the network under 1F1B: by bisection,
// each machine taking as many layers as it can from the last on, as stages hold the fewer micro-batches the later they
// stand.
double least_memory(const planning::Problem& problem, int machines) {
  const double samples = problem.micro_batch_samples();
  const auto fits = [&](double memory) {
    int left = problem.layer_count();
    for (int stage = 1; stage <= machines && left > 0; ++stage) {
      const auto held = static_cast<double>(std::min<std::int64_t>(problem.micro_batches, stage));
      for (double used = 0; left > 0; --left) {
        const planning::LayerSize& layer = problem.layer(left - 1);
        used += problem.memory_per_parameter_byte * layer.parameter_bytes + held * samples * layer.activation_bytes;
        if (used > memory) break;
      }
    }
    return left == 0;
  };
  double low = 0;
  double high = kMuch;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

// All machines as one type with their mean times, as PipeDream's program takes them to be.
planning::Problem equalised(const planning::Problem& problem) {
  planning::Problem equal = problem;
  equal.types.resize(1);
  equal.types[0].count = kMachines;
  equal.types[0].memory_bytes = 0;
  equal.links = {*std::ranges::min_element(problem.links, {}, &planning::Link::bytes_per_second)};
  equal.table.clear();
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    planning::LayerOnType mean = problem.at(layer, 0);
    const auto average = [&](auto&& value) {
      double sum = 0;
      for (int type = 0; type < problem.type_count(); ++type) sum += value(problem.at(layer, type));
      return sum / problem.type_count();
    };
    using planning::LayerOnType;
    mean.forward.fixed = average([](const LayerOnType& of) { return of.forward.fixed; });
    mean.forward.per_sample = average([](const LayerOnType& of) { return of.forward.per_sample; });
    mean.backward.fixed = average([](const LayerOnType& of) { return of.backward.fixed; });
    mean.backward.per_sample = average([](const LayerOnType& of) { return of.backward.per_sample; });
    equal.table.push_back(mean);
  }
  return equal;
}

// The stages of a candidate over equal machines, on these machines in their order.
planning::Plan placed_in_order(const planning::Problem& problem, const planning::Candidate& equal,
                               planning::Plan plan) {
  plan.stages.clear();
  std::size_t next = 0;
  for (const planning::StageChoice& choice : equal) {
    planning::Stage stage{.first_layer = choice.first, .last_layer = choice.last};
    for (std::int64_t i = 0; i < choice.replicas; ++i) {
      stage.replicas.push_back({problem.types[next++].name, 1, 1.0 / static_cast<double>(choice.replicas)});
    }
    if (choice.replicas > 1) stage.gradient_sync = planning::GradientSync::kRing;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

double largest_memory(const planning::Evaluation& evaluation) {
  double most = 0;
  for (const planning::StageCost& stage : evaluation.stages) most = std::max(most, stage.memory_bytes);
  return most;
}

// Of a machine that holds the whole network and trains an equal share of the batch at once.
double memory_of_share(const planning::Problem& problem) {
  double bytes = 0;
  for (const planning::LayerSize& layer : problem.layers) {
    bytes += problem.memory_per_parameter_byte * layer.parameter_bytes + kBatch * layer.activation_bytes;
  }
  return bytes;
}

class LearnedPlans {
 public:
  LearnedPlans(const BenchOptions& options, HeterogeneousMachines machines)
      : rows_(options), machines_(std::move(machines)) {}

  Result<std::vector<BenchRow>> run() {
    for (const char* network : kNetworks) MOTLEY_TRY(run_case(network));
    const auto add_median = [&](const std::string& metric, double target) {
      const std::vector<double>& values = counted_[metric];
      rows_.add("tapp-rl-measured", metric, values.empty() ? 0 : median(values), "ratio", true, target, {}, {},
                fmt::format("median of the {} cases that need at least three machines", values.size()));
    };
    add_median("step_ratio_balanced", 1.0);
    add_median("step_ratio_bsp", 1.37);
    add_median("communication_share_reduction", 0.4892);
    return rows_.take();
  }

 private:
  struct Learned {
    planning::Answer answer;
    std::int64_t plans = 0;   // that were run
    std::int64_t failed = 0;  // of them
    double seconds = 0;
  };

  Status run_case(const std::string& network) {
    MOTLEY_TRY(machines_.use(network, kMachines * kBatch));
    MOTLEY_ASSIGN(planning::Problem problem, planning::make_problem(machines_.profile(), machines_.cluster(),
                                                                    {.cost_model = planning::CostModel::kPipeline,
                                                                     .batch = kMachines * kBatch,
                                                                     .micro_batches = kMicroBatches}));
    const double of_one = least_memory(problem, 1), of_two = least_memory(problem, 2),
                 of_three = least_memory(problem, 3);
    const bool needs_three = of_three < kLargestWithoutThree * of_two;
    const double memory = needs_three ? std::sqrt(of_two * of_three) : of_three;
    for (planning::Type& type : problem.types) type.memory_bytes = memory;

    MOTLEY_ASSIGN(const Learned learned, learn(problem));
    const std::string name = "tapp-rl-" + network;
    const std::string effort =
        fmt::format("{} plans run in {} ({} failed)", learned.plans, format_seconds(learned.seconds), learned.failed);
    std::map<std::string, double> values = {
        {"step_ratio_balanced", 0}, {"step_ratio_bsp", 0}, {"communication_share_reduction", 0}};
    std::string note = "no plan";
    if (learned.answer.best) MOTLEY_TRY(compare(name, problem, learned, values, note));
    note += fmt::format("; {}; emulated devices, {} of memory each, where one machine would need {} and two {}", effort,
                        format_bytes(memory), format_bytes(of_one), format_bytes(of_two));
    for (const auto& [metric, value] : values) {
      rows_.add(name, metric, value, "ratio", true, {}, {}, {}, metric == "step_ratio_balanced" ? note : "");
      if (needs_three) counted_[metric].push_back(value);
    }
    return {};
  }

  Result<Learned> learn(const planning::Problem& problem) {
    Learned learned;
    const double begin = SteadyClock::instance().now();
    const Deadline deadline = Deadline::after(kLearnSeconds);
    planning::Request request{.problem = problem,
                              .objective = kObjective,
                              .seed = kSeed,
                              .seconds = kLearnSeconds,
                              .max_evaluations = kLearnPlans};
    request.evaluator = [&](const planning::Candidate& candidate) {
      const planning::Evaluation by_cost_model = planning::evaluate(problem, candidate, kObjective);
      if (!by_cost_model.feasible) return by_cost_model;
      const planning::Plan plan = planning::to_plan(problem, candidate, by_cost_model, kObjective, "rl-attention");
      const Result<double> seconds =
          machines_.run(plan, kLearnSteps, kSettledStep, std::min(kRunSeconds, deadline.remaining()));
      ++learned.plans;
      if (!seconds) {
        ++learned.failed;
        planning::Evaluation failed = by_cost_model;
        failed.feasible = false;
        failed.violation = seconds.error().message;
        return failed;
      }
      rows_.print(fmt::format("  {}: {} a step: {}", learned.plans, format_seconds(*seconds), describe_stages(plan)));
      return planning::evaluate(problem, candidate, kObjective, *seconds);
    };
    MOTLEY_ASSIGN(learned.answer,
                  planning::plan_by_policy_gradient(request, planning::make_attention_policy, {.pre_trains = false}));
    learned.seconds = SteadyClock::instance().now() - begin;
    return learned;
  }

  // Measures the learned plan and its peers in turns.
  Status compare(const std::string& name, const planning::Problem& problem, const Learned& learned,
                 std::map<std::string, double>& values, std::string& note) {
    const auto write_plan = [&](const planning::Candidate& candidate, const std::string& method) {
      return planning::to_plan(problem, candidate, planning::evaluate(problem, candidate, kObjective), kObjective,
                               method);
    };
    const planning::Plan plan = write_plan(*learned.answer.best, "rl-attention");
    std::vector<std::pair<std::string, planning::Plan>> pipelines = {{"rl-attention", plan}};
    MOTLEY_ASSIGN(planning::Plan balanced, machines_.balanced_data_parallelism(plan));
    pipelines.emplace_back("balanced", std::move(balanced));
    const planning::Request request{.problem = problem, .objective = kObjective, .seconds = kExactSeconds};
    MOTLEY_ASSIGN(const planning::Answer exact, planning::plan_exact(request));
    if (exact.best) pipelines.emplace_back("exact", write_plan(*exact.best, "exact"));
    const planning::Problem equal = equalised(problem);
    const planning::Request of_equal{.problem = equal, .objective = kObjective, .seconds = kExactSeconds};
    MOTLEY_ASSIGN(const planning::Answer pipedream, planning::plan_pipedream(of_equal));
    if (pipedream.best) pipelines.emplace_back("pipedream", placed_in_order(problem, *pipedream.best, plan));

    std::map<std::string, std::vector<double>> times;
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& [method, its] : pipelines) {
        MOTLEY_ASSIGN(const double seconds, machines_.run(its, kSteps, kSettledStep, kRunSeconds));
        times[method].push_back(seconds);
      }
      for (const char* mode : {"bsp", "ddp"}) {
        MOTLEY_ASSIGN(const double seconds, machines_.run_on_gloo(mode, kSteps));
        times[mode].push_back(seconds);
      }
    }
    const double step = median(times["rl-attention"]), bsp = median(times["bsp"]);
    MOTLEY_ASSIGN(const double computing, machines_.seconds_without_links(plan));
    const double share = std::max(0.0, 1 - computing / step), bsp_share = 1 - machines_.slowest_seconds() / bsp;
    values["step_ratio_balanced"] = median(times["balanced"]) / step;
    values["step_ratio_bsp"] = bsp / step;
    values["communication_share_reduction"] = 1 - share / bsp_share;
    for (const char* peer : {"ddp", "exact", "pipedream"}) {
      const double ratio = times[peer].empty() ? 0 : median(times[peer]) / step;
      rows_.add(name, fmt::format("step_ratio_{}", peer), ratio, "ratio", true, {}, {}, {},
                times[peer].empty() ? "no plan" : "");
    }
    note = fmt::format(
        "{} a step by {}; {:.3f} of it would go with links that take no time, {:.3f} of bulk-synchronous steps",
        format_seconds(step), describe_stages(plan), share, bsp_share);
    for (const auto& [method, its] : pipelines) {
      if (method == "rl-attention") continue;
      MOTLEY_ASSIGN(const planning::Evaluation evaluation, planning::evaluate_plan(problem, its, kObjective));
      const double excess = largest_memory(evaluation) / problem.types[0].memory_bytes;
      MOTLEY_ASSIGN(const double without_links, machines_.seconds_without_links(its));
      note += fmt::format("; {} {} by {}, {:.3f} of it communication{}", method, format_seconds(median(times[method])),
                          describe_stages(its), std::max(0.0, 1 - without_links / median(times[method])),
                          excess > 1 + planning::kTolerance ? fmt::format(", {:.2f} times the memory", excess) : "");
    }
    note += fmt::format("; equal shares on Gloo {}, overlapped {}, {:.2f} times the memory", format_seconds(bsp),
                        format_seconds(median(times["ddp"])), memory_of_share(problem) / problem.types[0].memory_bytes);
    return {};
  }

  static constexpr planning::Objective kObjective = {.criterion = planning::Criterion::kMinStepTime};

  RowList rows_;
  HeterogeneousMachines machines_;
  std::map<std::string, std::vector<double>> counted_;  // by metric, of the cases that need three machines
};

}  // namespace

Result<std::vector<BenchRow>> pipeline_tapp_learned(const BenchOptions& options) {
  const auto left_out = [&](const std::string& why) {
    RowList(options).left_out("tapp-rl-measured", why);
    return std::vector<BenchRow>();
  };
  if (options.quick) return left_out("it takes most of an hour");
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  auto machines = HeterogeneousMachines::create(options, folder.path());
  if (!machines) return left_out(machines.error().message);
  return LearnedPlans(options, std::move(*machines)).run();
}

}  // namespace motley::bench
