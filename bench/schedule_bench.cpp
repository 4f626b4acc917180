// Traces are not part of this repository: rows whose trace is not in ../shared/data are left out by name.
#include "bench/schedule_bench.h"

#include <algorithm>
#include <cmath>

#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "motley/base/clock.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::bench {
namespace {

constexpr double kPhillyLoad = 1;  // device-seconds that jobs ask for, of those that there are

// What the simulator of Tiresias (NSDI 2019) prints for the trace of cluster 6 of Microsoft ITP, 2,396 jobs.
struct Anchor {
  const char* name;
  const char* policy;
  const char* topology;
  scheduling::PlacementStrategy strategy;
  double hours;  // from arrival to completion, on average
};
constexpr Anchor kAnchors[] = {
    {"anchor-itp06-fifo", "fifo", "128", scheduling::PlacementStrategy::kAny, 22.56},
    {"anchor-itp06-las", "las", "128", scheduling::PlacementStrategy::kAny, 10.09},
    {"anchor-itp06-fifo-consolidated", "fifo", "16x8", scheduling::PlacementStrategy::kConsolidated, 23.32},
};

Result<scheduling::Outcome> replay(const std::vector<scheduling::Job>& jobs,
                                   const scheduling::ClusterTopology& topology, const std::string& name,
                                   scheduling::PlacementStrategy strategy) {
  MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, {strategy}));
  return scheduling::simulate(jobs, topology, *policy);
}

// Empty, and said, where it is not here.
std::filesystem::path find_trace(const BenchOptions& options, const std::string& name, const std::string& rows) {
  const std::filesystem::path file = shared_data(options) / "traces" / name;
  if (std::filesystem::exists(file)) return file;
  RowList(options).left_out(rows, "needs " + file.string());
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> schedule_anchors(const BenchOptions& options) {
  RowList rows(options);
  const std::filesystem::path file = find_trace(options, "itp/cluster06.csv", "anchor-itp06-*");
  if (file.empty()) return rows.take();
  MOTLEY_ASSIGN(const auto jobs, scheduling::read_trace(file));
  for (const Anchor& anchor : kAnchors) {
    MOTLEY_ASSIGN(const scheduling::ClusterTopology topology, scheduling::parse_topology(anchor.topology));
    MOTLEY_ASSIGN(const auto outcome, replay(jobs, topology, anchor.policy, anchor.strategy));
    const double hours = scheduling::compute_completion(jobs, outcome).mean / 3600;
    rows.add(anchor.name, "difference_to_published", std::abs(hours / anchor.hours - 1), "share", false, 0.01, {}, {},
             fmt::format("average completion {:.4f} h, published {} h; {} devices, rigid jobs, no slowdown", hours,
                         anchor.hours, anchor.topology));
  }
  return rows.take();
}

Result<std::vector<BenchRow>> schedule_speed(const BenchOptions& options) {
  RowList rows(options);
  const std::filesystem::path file = find_trace(options, "philly.csv", "philly-las");
  if (file.empty()) return rows.take();
  const double begin = monotonic_seconds();
  MOTLEY_ASSIGN(const auto jobs, scheduling::read_trace(file));
  double device_seconds = 0;
  for (const scheduling::Job& job : jobs) device_seconds += job.device_seconds();
  const double span = jobs.back().arrival - jobs.front().arrival;
  const auto devices = static_cast<int>(std::ceil(device_seconds / (kPhillyLoad * span)));
  MOTLEY_ASSIGN(const auto outcome,
                replay(jobs, scheduling::pool(devices), "las", scheduling::PlacementStrategy::kAny));
  const scheduling::Completion completion = scheduling::compute_completion(jobs, outcome);
  rows.add(
      "philly-las", "seconds", monotonic_seconds() - begin, "s", false, 5, {}, {},
      fmt::format("reading included; {} jobs on {} devices (load {:g}), {} decisions; average completion {:.2f} h, "
                  "median {:.0f} s, p99 {:.1f} h",
                  jobs.size(), devices, kPhillyLoad, outcome.decisions, completion.mean / 3600, completion.median,
                  completion.p99 / 3600));
  return rows.take();
}

}  // namespace motley::bench
