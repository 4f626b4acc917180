// Fashion-MNIST on four workers of unequal speed, each of whose steps is delayed at random: shares even out the speeds,
// and what is left is that the last one is another in every step. The same seeds with every consistency, in turn, at
// half the example's learning rate: what is stale costs the more, the further weights move meanwhile.
#include "bench/consistency_bench.h"

#include <numeric>
#include <optional>
#include <span>

#include "bench/job_run.h"

namespace motley::bench {
namespace {

constexpr const char* kCluster = R"(version: 2
device_types: [{name: core, kind: cpu, count: 4}]
workers:
  - {name: fast-a, device: core, seconds_per_sample: 0.0002 s, delay: {distribution: exponential, mean: 0.02 s}}
  - {name: fast-b, device: core, seconds_per_sample: 0.0002 s, delay: {distribution: exponential, mean: 0.02 s}}
  - {name: half, device: core, seconds_per_sample: 0.0004 s, delay: {distribution: exponential, mean: 0.02 s}}
  - {name: quarter, device: core, seconds_per_sample: 0.0008 s, delay: {distribution: exponential, mean: 0.02 s}}
)";

struct Way {
  const char* name;
  std::vector<std::string> flags;
  std::vector<double> accuracies;  // by seed
  std::vector<double> seconds;     // of a step, by seed
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Status run(const BenchOptions& options, int seed, Way& way) {
  std::vector<std::string> flags = {"--model.name",
                                    "mlp",
                                    "--gradient-sync.method",
                                    "parameter-server",
                                    "--optimizer.learning-rate",
                                    "0.05",
                                    "--evaluate.every-epochs",
                                    "0",
                                    "--seed",
                                    std::to_string(seed)};
  flags.insert(flags.end(), way.flags.begin(), way.flags.end());
  const std::vector<std::string> length =
      options.quick ? std::vector<std::string>{"--steps", "100"} : std::vector<std::string>{"--epochs", "4"};
  flags.insert(flags.end(), length.begin(), length.end());
  MOTLEY_ASSIGN(const JobRun job,
                run_job(options, options.source_folder / "examples/fashion-mnist/job.yaml", kCluster, flags));
  way.seconds.push_back(mean(job.balanced_seconds));
  for (const BenchRow& row : job.summary) {
    if (row.metric == "test_accuracy") way.accuracies.push_back(row.value);
    if (row.metric == "samples_not_used_exactly_once" && row.value > 0) {
      return fail(ErrorCode::kInternal, "{}: {} samples were lost or duplicated", way.name, row.value);
    }
  }
  if (options.progress) {
    options.progress(fmt::format("{} seed {}: accuracy {:.4f}, {:.1f} ms a step", way.name, seed, way.accuracies.back(),
                                 1e3 * way.seconds.back()));
  }
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> consistency_bench(const BenchOptions& options) {
  std::vector<Way> ways = {{"bsp", {}, {}, {}},
                           {"ssp-3", {"--gradient-sync.consistency", "ssp", "--gradient-sync.staleness", "3"}, {}, {}},
                           {"async", {"--gradient-sync.consistency", "async"}, {}, {}}};
  const int seeds = options.quick ? 1 : 3;
  for (int seed = 1; seed <= seeds; ++seed) {
    for (Way& way : ways) MOTLEY_TRY(run(options, seed, way));
  }
  std::vector<BenchRow> rows;
  const double accuracy = mean(ways[0].accuracies);
  const double seconds = mean(ways[0].seconds);
  for (const Way& way : std::span(ways).subspan(1)) {
    const std::string note =
        fmt::format("accuracy {:.4f}, bsp {:.4f}; mean of {} seeds, {}; speeds and delays emulated",
                    mean(way.accuracies), accuracy, seeds, options.quick ? "100 steps" : "4 epochs");
    rows.push_back({way.name, "accuracy_loss_to_bsp", accuracy - mean(way.accuracies), "share", false,
                    options.quick ? std::nullopt : std::optional(0.005), std::nullopt, std::nullopt, note});
    rows.push_back({way.name, "step_speedup_over_bsp", seconds / mean(way.seconds), "ratio", true, std::nullopt,
                    std::nullopt, std::nullopt,
                    fmt::format("{:.1f} ms a step, bsp {:.1f} ms", 1e3 * mean(way.seconds), 1e3 * seconds)});
  }
  return rows;
}

}  // namespace motley::bench
