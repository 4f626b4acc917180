// Simulated workers for the bench `partition`. No time passes here: a step's seconds are computed from the settings
// below and seeded noise, which makes every row reproducible.
//
// The settings are fitted to the published measurements of the work compared with (arXiv 2110.08941 and its logs), of
// two workers and a global batch of 256:
//   ResNet50, 0.2 s delay on rank 1: t0 = 0.0017 b, t1 = 0.2074 + 0.0017 b seconds. Equal shares take 0.425 s, the
//     optimum 189/67 takes 0.321 s, and the original rule gives 0.425, 0.354, 0.335, 0.326, 0.323 s over its epochs;
//     measured were 0.426, 0.360, 0.340, 0.332, 0.329 s.
//   ResNet50 on an AWS P2 and a P3: 1.000 s and 0.193 s for 128 samples (through the origin), and 0.117 s of exchange
//     that nothing hides: 1.117 s equal, 0.441 s at best.
//   VGG16 with a delay of 0.01 or 0.02 s: the loader, which both ranks share and which reads 256 samples in 0.060 s
//     whatever their split, bounds the step; computing takes 0.006 + 0.00018 b, plus the delay on rank 1.
//   Random delay: ResNet50 without the constant one, and on rank 1 an exponential or gamma (shape 2) delay of 0.25 s
//   mean
//     at the start of each step.
// Measured times have 1% normal noise; the delays have none.
#include "bench/partition_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "motley/base/random.h"
#include "motley/data/local/ledger.h"
#include "motley/data/local/partition.h"

namespace motley::bench {
namespace {

using data::Partition;
using data::PartitionOptions;
using data::Shares;
using data::WorkerCost;

constexpr std::uint32_t kBatch = 256;
constexpr std::uint64_t kStepsPerEpoch = 196;  // of 50,000 samples
constexpr double kNoise = 0.01;

enum class Delay { kNone, kExponential, kGamma };

struct Setting {
  std::vector<WorkerCost> costs;
  double common = 0;  // seconds of each step after the last worker, hidden by nothing
  double loader = 0;  // seconds in which the shared loader reads the batch; a worker's step takes at least that
  Delay delay = Delay::kNone;  // on rank 1, mean 0.25 s
};

// One step's draws, the same for every method at the same step.
struct Draws {
  std::vector<double> noise;  // factors
  double delay = 0;           // seconds on rank 1
};

Draws draw(const Setting& setting, std::uint64_t seed, std::uint64_t step) {
  Random random(mix({seed, step}));
  Draws draws;
  for (std::size_t i = 0; i < setting.costs.size(); ++i) {
    draws.noise.push_back(std::max(0.5, 1 + kNoise * random.normal()));
  }
  if (setting.delay == Delay::kExponential) {
    draws.delay = random.exponential(0.25);
  } else if (setting.delay == Delay::kGamma) {
    draws.delay = random.exponential(0.125) + random.exponential(0.125);
  }
  return draws;
}

struct StepTimes {
  std::vector<data::Observation> workers;
  double seconds = 0;
};

// Sets each worker's wait and the step's length from what the workers took.
StepTimes finished(const Setting& setting, std::vector<data::Observation> workers) {
  double last = 0;
  for (const data::Observation& worker : workers) {
    last = std::max(last, worker.seconds);
  }
  for (data::Observation& worker : workers) {
    worker.wait = last + setting.common - worker.seconds;
  }
  return {std::move(workers), last + setting.common};
}

StepTimes run_shares(const Setting& setting, const Draws& draws, const Shares& shares) {
  std::vector<data::Observation> workers;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double computed = setting.costs[i].seconds(shares[i]) * draws.noise[i] + (i == 1 ? draws.delay : 0);
    workers.push_back({shares[i], std::max(computed, setting.loader)});
  }
  return finished(setting, std::move(workers));
}

// Each shard pays the worker's fixed part again; the random delay comes once, before the first.
StepTimes run_pulled(const Setting& setting, const Draws& draws, std::uint32_t shards) {
  const data::PullPlan plan({0, kBatch}, shards);
  std::vector<data::Observation> workers(setting.costs.size());
  workers[1].seconds = draws.delay;
  for (std::uint32_t shard = 0; shard < plan.shards(); ++shard) {
    const auto first = std::min_element(workers.begin(), workers.end(),
                                        [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    const auto worker = static_cast<std::size_t>(first - workers.begin());
    first->samples += plan.shard(shard).size();
    first->seconds += setting.costs[worker].seconds(plan.shard(shard).size()) * draws.noise[worker];
  }
  for (data::Observation& worker : workers) {
    worker.seconds = std::max(worker.seconds, setting.loader);
  }
  return finished(setting, std::move(workers));
}

// A horizon: which setting holds from which step on.
struct Phase {
  std::uint64_t from;
  Setting setting;
};
using Horizon = std::vector<Phase>;

const Setting& setting_at(const Horizon& horizon, std::uint64_t step) {
  std::size_t phase = 0;
  while (phase + 1 < horizon.size() && horizon[phase + 1].from <= step) {
    ++phase;
  }
  return horizon[phase].setting;
}

double equal_seconds(const Horizon& horizon, std::uint64_t steps, std::uint64_t seed) {
  const std::size_t workers = horizon[0].setting.costs.size();
  const Shares equal(workers, kBatch / static_cast<std::uint32_t>(workers));
  double total = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Setting& setting = setting_at(horizon, step);
    total += run_shares(setting, draw(setting, seed, step), equal).seconds;
  }
  return total;
}

// The original rule: after each epoch p_i <- (p_i / t_i) / sum_j (p_j / t_j) with the epoch's mean times.
double original_rule_seconds(const Horizon& horizon, std::uint64_t steps, std::uint64_t seed) {
  const std::size_t workers = horizon[0].setting.costs.size();
  std::vector<double> parts(workers, 1.0 / static_cast<double>(workers)), times(workers, 0);
  double total = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    if (step > 0 && step % kStepsPerEpoch == 0) {
      double sum = 0;
      for (std::size_t i = 0; i < workers; ++i) {
        parts[i] /= times[i];
        sum += parts[i];
        times[i] = 0;
      }
      for (double& part : parts) {
        part /= sum;
      }
    }
    // Its rounding down would leave the batch short; the first rank gets the rest, so that all do the same work.
    Shares shares(workers);
    std::uint32_t rest = kBatch;
    for (std::size_t i = workers; i-- > 0;) {
      shares[i] = i == 0 ? rest : std::max(1U, static_cast<std::uint32_t>(parts[i] * kBatch));
      rest -= shares[i];
    }
    const Setting& setting = setting_at(horizon, step);
    const StepTimes result = run_shares(setting, draw(setting, seed, step), shares);
    for (std::size_t i = 0; i < workers; ++i) {
      times[i] += result.workers[i].seconds;
    }
    total += result.seconds;
  }
  return total;
}

struct Ours {
  double seconds = 0;
  std::uint64_t worst_settling = 0;  // steps after the start or a shift until the optimum is within 5% for good
};

Result<Ours> our_seconds(const Horizon& horizon, std::uint64_t steps, std::uint64_t seed) {
  PartitionOptions options;
  options.batch = kBatch;
  options.limits.resize(horizon[0].setting.costs.size());
  MOTLEY_ASSIGN(Partition partition, Partition::create(options));
  Ours ours;
  std::uint64_t phase_begin = 0, settled = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Setting& setting = setting_at(horizon, step);
    for (const Phase& phase : horizon) {
      if (phase.from == step) {
        phase_begin = settled = step;
      }
    }
    MOTLEY_ASSIGN(const data::StepPlan plan, partition.plan(step, kBatch));
    const Draws draws = draw(setting, seed, step);
    const StepTimes result =
        plan.pulls() ? run_pulled(setting, draws, plan.shards) : run_shares(setting, draws, plan.shares);
    ours.seconds += result.seconds;
    MOTLEY_ASSIGN(const data::MinMaxSplit best, data::solve_min_max(setting.costs, options.limits, kBatch));
    if (plan.pulls() || data::step_seconds(setting.costs, plan.shares) > 1.05 * best.seconds) {
      settled = step + 1;
    }
    ours.worst_settling = std::max(ours.worst_settling, settled - phase_begin);
    MOTLEY_TRY(partition.observe(step, result.workers));
  }
  return ours;
}

double optimum_seconds(const Setting& setting) {
  const std::vector<data::WorkerLimits> limits(setting.costs.size());
  return data::solve_min_max(setting.costs, limits, kBatch)->bound + setting.common;
}

double noiseless_equal_seconds(const Setting& setting) {
  const auto share = kBatch / static_cast<std::uint32_t>(setting.costs.size());
  return data::step_seconds(setting.costs, Shares(setting.costs.size(), share)) + setting.common;
}

}  // namespace

Result<std::vector<BenchRow>> partition_bench(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  const int seeds = options.quick ? 5 : 20;
  const auto announce = [&](const std::string& line) {
    if (options.progress) {
      options.progress(line);
    }
  };

  const Setting resnet = {{{0, 0.0017}, {0.2074, 0.0017}}};
  announce("simulated-resnet50-delay: how fast the optimum is found again");
  // The delay moves to rank 0, halves, goes away; then rank 0 is half as fast; then all is as at the start.
  const Horizon shifts = {{0, resnet},
                          {100, {{{0.2074, 0.0017}, {0, 0.0017}}}},
                          {200, {{{0.1074, 0.0017}, {0, 0.0017}}}},
                          {300, {{{0.0074, 0.0017}, {0, 0.0017}}}},
                          {400, {{{0.0074, 0.0034}, {0, 0.0017}}}},
                          {500, resnet}};
  double worst_settling = 0, ours = 0, equal = 0, original = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    MOTLEY_ASSIGN(const Ours run, our_seconds(shifts, 600, static_cast<std::uint64_t>(seed)));
    worst_settling = std::max(worst_settling, static_cast<double>(run.worst_settling));
  }
  rows.push_back({"simulated-resnet50-delay",
                  "steps_to_5pct_of_optimum",
                  worst_settling,
                  "steps",
                  false,
                  10.0,
                  {},
                  {},
                  fmt::format("simulated; worst of {} seeds, start and five shifts", seeds)});

  // Averages ours, the peer and equal shares over the seeds.
  const auto compare = [&](const Horizon& horizon, std::uint64_t steps) -> Status {
    ours = equal = original = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      const auto number = static_cast<std::uint64_t>(seed);
      MOTLEY_ASSIGN(const Ours run, our_seconds(horizon, steps, number));
      ours += run.seconds;
      equal += equal_seconds(horizon, steps, number);
      original += original_rule_seconds(horizon, steps, number);
    }
    return {};
  };
  MOTLEY_TRY(compare({{0, resnet}}, 10 * kStepsPerEpoch));
  rows.push_back({"simulated-resnet50-delay", "speedup_over_equal", equal / ours, "x", true, 1.30,
                  noiseless_equal_seconds(resnet) / optimum_seconds(resnet), equal / original,
                  "simulated; 10 epochs; peer: the original rule, once an epoch"});

  announce("simulated-p2-p3");
  const Setting p2_p3 = {{{0, 1.0 / 128}, {0, 0.193 / 128}}, 0.117};
  MOTLEY_TRY(compare({{0, p2_p3}}, 5 * kStepsPerEpoch));
  rows.push_back({"simulated-p2-p3", "speedup_over_equal", equal / ours, "x", true, 2.4,
                  noiseless_equal_seconds(p2_p3) / optimum_seconds(p2_p3), equal / original,
                  "simulated; 5 epochs; peer: the original rule, once an epoch"});

  announce("simulated-vgg16-delay and simulated-random-delay");
  // Each seed alone must not be slower than equal shares with the same draws.
  const auto worst_slowdown = [&](const std::vector<Setting>& settings, const std::string& name,
                                  const std::string& note) -> Status {
    double worst = 0, peer = 0;
    for (const Setting& setting : settings) {
      for (int seed = 1; seed <= seeds; ++seed) {
        const auto number = static_cast<std::uint64_t>(seed);
        const Horizon horizon = {{0, setting}};
        const double same = equal_seconds(horizon, 10 * kStepsPerEpoch, number);
        MOTLEY_ASSIGN(const Ours run, our_seconds(horizon, 10 * kStepsPerEpoch, number));
        worst = std::max(worst, run.seconds / same);
        peer = std::max(peer, original_rule_seconds(horizon, 10 * kStepsPerEpoch, number) / same);
      }
    }
    rows.push_back({name,
                    "slowdown_against_equal",
                    worst,
                    "x",
                    false,
                    1.0,
                    {},
                    peer,
                    fmt::format("simulated; worst of {} seeds a setting; {}", seeds, note)});
    return {};
  };
  const auto vgg = [](double delay) { return Setting{{{0.006, 0.00018}, {0.006 + delay, 0.00018}}, 0.012, 0.060}; };
  MOTLEY_TRY(worst_slowdown({vgg(0.01), vgg(0.02)}, "simulated-vgg16-delay", "bound by the loader"));
  const std::vector<WorkerCost> no_delay = {{0, 0.0017}, {0.0074, 0.0017}};
  MOTLEY_TRY(worst_slowdown({{no_delay, 0, 0, Delay::kExponential}, {no_delay, 0, 0, Delay::kGamma}},
                            "simulated-random-delay", "exponential and gamma delays of 0.25 s mean"));
  return rows;
}

}  // namespace motley::bench
