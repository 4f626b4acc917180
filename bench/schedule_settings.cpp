// GADGET's experiments: the utility that every policy gets, as a share of what none can exceed. All policies stop a job
// at the same work done, and rings have the uplinks that they reserve or do not run.
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

constexpr int kSeeds = 30;
constexpr const char* kOurs = "gadget-exact";

// Of utility, of what none can exceed.
Result<Estimate> measure_share(const std::string& name, int nodes, int jobs, int repetitions) {
  std::vector<double> shares;
  for (int seed = 0; seed < repetitions; ++seed) {
    const scheduling::Setting setting = scheduling::gadget_setting(nodes, jobs, static_cast<std::uint64_t>(seed));
    MOTLEY_ASSIGN(const auto policy,
                  scheduling::make_policy(name, {.placement = scheduling::PlacementStrategy::kCompact,
                                                 .slot_seconds = setting.slot_seconds}));
    MOTLEY_ASSIGN(const auto outcome,
                  scheduling::simulate(setting.jobs, setting.topology, *policy, {.horizon = setting.horizon}));
    shares.push_back(outcome.utility / scheduling::utility_bound(setting.jobs, setting.topology, setting.horizon));
  }
  return estimate(shares);
}

Status setting(const BenchOptions& options, const std::string& name, int nodes, int jobs, RowList& rows) {
  std::string note;
  Estimate ours;
  double best_other = 0;
  std::vector<std::string> policies = scheduling::online_policy_names();
  std::erase(policies, kOurs);
  if (scheduling::has_program_solver()) policies.emplace_back("gadget");
  policies.insert(policies.begin(), kOurs);
  for (const std::string& policy : policies) {
    MOTLEY_ASSIGN(const Estimate share, measure_share(policy, nodes, jobs, options.quick ? 3 : kSeeds));
    note += fmt::format("{}{} {:.4f} +- {:.4f}", note.empty() ? "" : ", ", policy, share.mean, share.half_interval);
    if (policy == kOurs) {
      ours = share;
    } else {
      best_other = std::max(best_other, share.mean);
    }
  }
  rows.add(name, "share_of_bound", ours.mean, "share", true, {}, 1, best_other, note);
  return {};
}

// The mean makespan of SJF-BCO's settings, by policy, in the order of what is published.
Status makespans(const BenchOptions& options, int nodes, RowList& rows) {
  const int repetitions = options.quick ? 3 : kSeeds;
  std::vector<std::pair<std::string, double>> means;
  for (const char* name : {"gadget-exact", "sjf-bco", "list-scheduling", "random-devices"}) {
    double sum = 0;
    for (int seed = 0; seed < repetitions; ++seed) {
      const scheduling::Setting setting = scheduling::sjf_bco_setting(nodes, static_cast<std::uint64_t>(seed));
      MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, {.slot_seconds = setting.slot_seconds * 10,
                                                                      .objective = scheduling::Objective::kMakespan}));
      MOTLEY_ASSIGN(const auto outcome, scheduling::simulate(setting.jobs, setting.topology, *policy));
      sum += outcome.end / setting.slot_seconds;
    }
    means.emplace_back(name, sum / repetitions);
  }
  for (const auto& [policy, mean] : means) {
    rows.add(fmt::format("sjf-bco-settings-{}", nodes), "makespan_" + policy, mean, "slots", false, {}, {},
             means[1].second, "peer: sjf-bco");
  }
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> schedule_settings(const BenchOptions& options) {
  RowList rows(options);
  for (const int jobs : {40, 60, 80, 100}) {
    MOTLEY_TRY(setting(options, fmt::format("gadget-settings-{}", jobs), 50, jobs, rows));
  }
  for (const int nodes : {4, 3, 2}) {
    MOTLEY_TRY(setting(options, fmt::format("gadget-settings-100-on-{}-servers", nodes), nodes, 100, rows));
  }
  for (const int nodes : {10, 15, 20}) MOTLEY_TRY(makespans(options, nodes, rows));
  return rows.take();
}

}  // namespace motley::bench
