// GADGET's experiments: the utility that every policy gets, as a share of what none can exceed. All policies stop a job
// at the same work done, and rings have the uplinks that they reserve or do not run.
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/estimate.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/settings.h"

namespace motley::bench {
namespace {

constexpr int kSeeds = 30;
constexpr const char* kOurs = "gadget-exact";

// Of utility, of what none can exceed.
Result<scheduling::Estimate> share_of(const std::string& name, int servers, int jobs, int seeds) {
  std::vector<double> shares;
  for (int seed = 0; seed < seeds; ++seed) {
    const scheduling::Setting setting = scheduling::gadget_setting(servers, jobs, static_cast<std::uint64_t>(seed));
    MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, {.packing = scheduling::Packing::kRing,
                                                                    .slot_seconds = setting.slot_seconds}));
    MOTLEY_ASSIGN(const auto outcome,
                  scheduling::simulate(setting.jobs, setting.machines, *policy, {.horizon = setting.horizon}));
    shares.push_back(outcome.utility / scheduling::utility_bound(setting.jobs, setting.machines, setting.horizon));
  }
  return scheduling::estimate(shares);
}

Status setting(const BenchOptions& options, const std::string& name, int servers, int jobs, RowList& rows) {
  std::string note;
  scheduling::Estimate ours;
  double best_other = 0;
  std::vector<std::string> policies = scheduling::online_policy_names();
  std::erase(policies, kOurs);
  if (scheduling::has_program_solver()) policies.emplace_back("gadget");
  policies.insert(policies.begin(), kOurs);
  for (const std::string& policy : policies) {
    MOTLEY_ASSIGN(const scheduling::Estimate share, share_of(policy, servers, jobs, options.quick ? 3 : kSeeds));
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
Status makespans(const BenchOptions& options, int servers, RowList& rows) {
  const int seeds = options.quick ? 3 : kSeeds;
  std::vector<std::pair<std::string, double>> means;
  for (const char* name : {"gadget-exact", "sjf-bco", "list-scheduling", "random-devices"}) {
    double sum = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const scheduling::Setting setting = scheduling::sjf_bco_setting(servers, static_cast<std::uint64_t>(seed));
      MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, {.slot_seconds = setting.slot_seconds * 10,
                                                                      .objective = scheduling::Objective::kMakespan}));
      MOTLEY_ASSIGN(const auto outcome, scheduling::simulate(setting.jobs, setting.machines, *policy));
      sum += outcome.end / setting.slot_seconds;
    }
    means.emplace_back(name, sum / seeds);
  }
  for (const auto& [policy, mean] : means) {
    rows.add(fmt::format("sjf-bco-settings-{}", servers), "makespan_" + policy, mean, "slots", false, {}, {},
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
  for (const int servers : {4, 3, 2}) {
    MOTLEY_TRY(setting(options, fmt::format("gadget-settings-100-on-{}-servers", servers), servers, 100, rows));
  }
  for (const int servers : {10, 15, 20}) MOTLEY_TRY(makespans(options, servers, rows));
  return rows.take();
}

}  // namespace motley::bench
