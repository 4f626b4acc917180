// Gavel's experiments on heterogeneous devices: average completion times and finish-time fairness of rigid jobs whose
// models are not as fast on each type, from its own table of throughputs, at two rates of arrival. Policies with the
// same objective know the same.
#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

constexpr int kJobs = 400;
constexpr int kSeeds = 5;
constexpr const char* kOurs = "gadget-exact";

using scheduling::Objective;

// By policy, over all draws.
struct Outcomes {
  std::vector<double> hours;
  std::vector<double> worst;
};

Result<Outcomes> compute_outcomes(const scheduling::Throughputs& table, const std::string& name, Objective objective,
                                  double per_hour, const BenchOptions& options) {
  Outcomes outcomes;
  for (int seed = 0; seed < (options.quick ? 1 : kSeeds); ++seed) {
    MOTLEY_ASSIGN(
        const scheduling::Setting setting,
        scheduling::gavel_setting(table, options.quick ? 60 : kJobs, per_hour, static_cast<std::uint64_t>(seed)));
    // The setting takes a job to be as fast on several nodes as on one: so all may divide one, as gadget-exact does.
    MOTLEY_ASSIGN(const auto policy,
                  scheduling::make_policy(name, {.placement = scheduling::PlacementStrategy::kCompact,
                                                 .slot_seconds = setting.slot_seconds,
                                                 .objective = objective}));
    MOTLEY_ASSIGN(const auto outcome, scheduling::simulate(setting.jobs, setting.topology, *policy));
    outcomes.hours.push_back(scheduling::compute_completion(setting.jobs, outcome).mean / 3600);
    outcomes.worst.push_back(scheduling::compute_fairness(setting.jobs, setting.topology, outcome).worst);
  }
  return outcomes;
}

Status compare(const scheduling::Throughputs& table, double per_hour, Objective objective, const BenchOptions& options,
               RowList& rows) {
  const bool is_fairness = objective == Objective::kFairness;
  const std::vector<const char*> peers = is_fairness ? std::vector<const char*>{"las", "themis", "gavel"}
                                                     : std::vector<const char*>{"fifo", "las", "srtf", "gavel", "sia"};
  const auto figure = [&](const Outcomes& outcomes) { return estimate(is_fairness ? outcomes.worst : outcomes.hours); };
  std::string note = is_fairness ? "worst finish-time ratio: " : "hours: ";
  double best = 0;
  for (const char* peer : peers) {
    const bool needs_programs = std::string_view(peer) == "gavel" || std::string_view(peer) == "sia";
    if (needs_programs && !scheduling::has_program_solver()) continue;
    MOTLEY_ASSIGN(const Outcomes outcomes, compute_outcomes(table, peer, objective, per_hour, options));
    const Estimate one = figure(outcomes);
    note += fmt::format("{} {:.2f} +- {:.2f}, ", peer, one.mean, one.half_interval);
    best = best == 0 ? one.mean : std::min(best, one.mean);
  }
  MOTLEY_ASSIGN(const Outcomes outcomes, compute_outcomes(table, kOurs, objective, per_hour, options));
  const Estimate ours = figure(outcomes);
  note += fmt::format("{} {:.2f} +- {:.2f}", kOurs, ours.mean, ours.half_interval);
  rows.add(fmt::format("gavel-settings-{:g}", per_hour),
           is_fairness ? "fairness_ratio_to_best_peer" : "jct_ratio_to_best_peer", ours.mean / best, "x", false, {}, {},
           best, note);
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> schedule_heterogeneous(const BenchOptions& options) {
  RowList rows(options);
  const std::filesystem::path file = shared_data(options) / "throughputs/gavel.json";
  if (!std::filesystem::exists(file)) {
    rows.left_out("gavel-settings-*", "needs " + file.string());
    return rows.take();
  }
  MOTLEY_ASSIGN(const scheduling::Throughputs table, scheduling::Throughputs::read(file));
  for (const double per_hour : {1.0, 2.0}) {
    for (const Objective objective : {Objective::kCompletion, Objective::kFairness}) {
      MOTLEY_TRY(compare(table, per_hour, objective, options, rows));
    }
  }
  return rows.take();
}

}  // namespace motley::bench
