// How long replays of 100,000 generated jobs on 100,000 devices take, by policy: rigid jobs of 1 to 64 devices that
// take a minute to 17 hours, the logarithms of both even, and arrive at random.
#include <cmath>

#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/clock.h"
#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

constexpr int kJobs = 100'000;
constexpr int kNodes = 12'500;
constexpr int kOnNode = 8;
constexpr double kTarget = 120;  // seconds
constexpr double kMost = 300;    // seconds, after which a replay is given up
constexpr const char* kPolicies[] = {"fifo", "las", "srtf", "gittins", "gadget-exact"};

std::vector<scheduling::Job> generate_jobs(const scheduling::ClusterTopology& topology, int count, double load) {
  Random random(1);
  std::vector<scheduling::Job> jobs;
  double now = 0;
  for (int i = 0; i < count; ++i) {
    scheduling::Job job;
    job.name = fmt::format("job{}", i);
    job.arrival = now;
    job.workers = 1 << random.below(7);
    job.duration = std::ceil(60 * std::pow(10, 3 * random.uniform()));
    now += random.exponential(1);
    jobs.push_back(std::move(job));
  }
  scheduling::set_load(jobs, topology, load);
  return jobs;
}

}  // namespace

Result<std::vector<BenchRow>> schedule_scale(const BenchOptions& options) {
  RowList rows(options);
  const int scale = options.quick ? 100 : 1;
  const scheduling::ClusterTopology topology = scheduling::uniform(kNodes / scale, kOnNode);
  for (const double load : {0.7, 1.0}) {
    const std::vector<scheduling::Job> jobs = generate_jobs(topology, kJobs / scale, load);
    double slowest = 0;
    std::string note;
    for (const char* name : kPolicies) {
      MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name));
      const double begin = monotonic_seconds();
      const auto outcome = scheduling::simulate(jobs, topology, *policy, {.deadline = Deadline::after(kMost)});
      if (!outcome && outcome.error().code != ErrorCode::kTimeout) return fail(outcome.error());
      const double seconds = monotonic_seconds() - begin;
      slowest = std::max(slowest, seconds);
      note += fmt::format("{}{} {:.1f} s{}", note.empty() ? "" : ", ", name, seconds, outcome ? "" : ", given up");
      rows.print(note);
    }
    rows.add(load < 1 ? fmt::format("scale-{}", jobs.size()) : fmt::format("scale-{}-load-{:g}", jobs.size(), load),
             "seconds", slowest, "s", false, load < 1 && !options.quick ? std::optional(kTarget) : std::nullopt, {}, {},
             fmt::format("measured; the slowest; {} generated jobs, load {:g}, {} x {} devices: {}", jobs.size(), load,
                         kNodes / scale, kOnNode, note));
  }
  return rows.take();
}

}  // namespace motley::bench
