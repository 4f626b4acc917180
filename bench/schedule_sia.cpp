// Sia's own workloads, with the applications that its artifact measured: our `sia` and `gavel` beside what its
// simulator prints for them, and our best policy beside `sia`, also where both know of a job what others of its
// application have shown of their speeds, which is no part of Sia as published. The artifact is no part of this
// repository: MOTLEY_SIA_ARTIFACT names its folder, and without it the rows are left out.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <span>

#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::bench {
namespace {

using scheduling::Objective;

constexpr const char* kCluster = "6x4:aws,2x8:dgx-ext,3x8:rtx";
constexpr double kSiaRound = 60;     // seconds
constexpr double kGavelRound = 360;  // likewise
// Ours, as does best on workloads 4 to 8.
constexpr const char* kOurs = "gadget-exact";
constexpr double kOurSlot = 720;  // for which a decision at an event is made
constexpr Objective kOurObjective = Objective::kUtility;
constexpr double kLeastToGo = 2400;  // seconds that a job of unknown duration is told to have to go, at least

// What the artifact's simulator prints for workloads/philly/workload-1 to -3 with the flags of its run_experiment.sh
// (and CBC in one thread): average completion times in seconds.
constexpr double kSiaPrints[] = {1949.75, 2651.66, 2049.46};
constexpr double kGavelPrints[] = {6016.46, 7572.36, 4781.43};

struct Contender {
  const char* policy;
  bool is_adaptive = true;
  double slot_seconds = kSiaRound;
  bool at_events = false;
  Objective objective = Objective::kUtility;
  bool applications_share_speeds = false;
};

class SiaRows {
 public:
  SiaRows(const BenchOptions& options, std::filesystem::path artifact)
      : options_(options), rows_(options), artifact_(std::move(artifact)) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_ASSIGN(topology_, scheduling::parse_topology(kCluster));
    MOTLEY_ASSIGN(const auto applications,
                  scheduling::Applications::read(artifact_ / "sia-simulator/traces", topology_));
    const int count = options_.quick ? 1 : static_cast<int>(std::size(kSiaPrints));
    for (int number = 1; number <= count; ++number) {
      for (const bool is_adaptive : {false, true}) {
        const auto file = artifact_ / fmt::format("sia-simulator/workloads/philly/workload-{}.csv", number);
        MOTLEY_ASSIGN(workloads_[is_adaptive ? 1 : 0].emplace_back(),
                      scheduling::read_trace(file, {.applications = &applications, .is_adaptive = is_adaptive}));
      }
    }
    MOTLEY_ASSIGN(const auto sia, replay({"sia"}));
    MOTLEY_ASSIGN(const auto gavel, replay({"gavel", false, kGavelRound, false, Objective::kCompletion}));
    MOTLEY_ASSIGN(const auto shared_sia, replay({.policy = "sia", .applications_share_speeds = true}));
    MOTLEY_ASSIGN(const auto ours, replay({kOurs, true, kOurSlot, true, kOurObjective, true}));
    MOTLEY_ASSIGN(const auto alone, replay({kOurs, true, kOurSlot, true, kOurObjective}));
    add_anchor("sia", sia, kSiaPrints);
    add_anchor("gavel", gavel, kGavelPrints);
    std::vector<double> best_sia;
    for (std::size_t i = 0; i < sia.size(); ++i) best_sia.push_back(std::min(sia[i], shared_sia[i]));
    add_ratio("sia-philly", 0.95, ours, best_sia,
              "told no durations, and of a job's speeds what jobs of its application have shown; sia likewise or, "
              "where that is better, told what each job has shown of its own, as published");
    add_ratio("sia-philly-each-by-itself", {}, alone, sia,
              "told no durations, and of a job's speeds what it has shown itself, as sia is");
    return rows_.take();
  }

 private:
  static std::vector<double> divide(const std::vector<double>& ours, std::span<const double> theirs) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
    return ratios;
  }

  void add_ratio(const std::string& name, std::optional<double> target, const std::vector<double>& ours,
                 const std::vector<double>& sia, const std::string& knowledge) {
    const Estimate ratio = estimate(divide(ours, sia));
    rows_.add(
        name, "jct_ratio_to_sia", ratio.mean, "ratio", false, target, {}, 1,
        fmt::format("simulated; {} at events, {}; its slot, objective and least time to go were chosen on "
                    "workloads 4 to 8; {} workloads, +- {:.3f}; seconds {:.0f}, sia {:.0f}",
                    kOurs, knowledge, ours.size(), ratio.half_interval, fmt::join(ours, " "), fmt::join(sia, " ")));
  }

  void add_anchor(const std::string& policy, const std::vector<double>& ours, std::span<const double> theirs) {
    double difference = 0;
    for (const double ratio : divide(ours, theirs))
      difference += std::abs(ratio - 1) / static_cast<double>(ours.size());
    rows_.add(policy == "sia" ? "sia-philly-anchor" : "sia-philly-anchor-" + policy, "difference", difference, "share",
              false, 0.05, {}, {},
              fmt::format("simulated; {} beside the artifact's own simulator, mean over {} workloads; seconds {:.0f}, "
                          "the artifact's {:.0f}; {}",
                          policy, ours.size(), fmt::join(ours, " "), fmt::join(theirs.first(ours.size()), " "),
                          policy == "sia" ? "batches as the tables promise, not as a fit of what each job has seen does"
                                          : "rigid jobs with the workload's workers and batches"));
  }

  // Average completion times by workload.
  Result<std::vector<double>> replay(const Contender& contender) const {
    std::vector<double> seconds;
    for (const std::vector<scheduling::Job>& jobs : workloads_[contender.is_adaptive ? 1 : 0]) {
      MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(
                                           contender.policy, {.placement = scheduling::PlacementStrategy::kConsolidated,
                                                              .slot_seconds = contender.slot_seconds,
                                                              .at_events = contender.at_events,
                                                              .objective = contender.objective}));
      MOTLEY_ASSIGN(const auto outcome,
                    scheduling::simulate(jobs, topology_, *policy,
                                         {.hidden_duration_seconds = contender.is_adaptive ? kLeastToGo : 0,
                                          .hide_speeds = contender.is_adaptive,
                                          .applications_share_speeds = contender.applications_share_speeds,
                                          .first_start_costs = true}));
      seconds.push_back(scheduling::compute_completion(jobs, outcome).mean);
      rows_.print(fmt::format("{}: {:.1f} s", contender.policy, seconds.back()));
    }
    return seconds;
  }

  const BenchOptions& options_;
  RowList rows_;
  const std::filesystem::path artifact_;
  scheduling::ClusterTopology topology_;
  std::vector<std::vector<scheduling::Job>> workloads_[2];  // rigid jobs, and such as adapt
};

}  // namespace

Result<std::vector<BenchRow>> schedule_sia(const BenchOptions& options) {
  const char* artifact = std::getenv("MOTLEY_SIA_ARTIFACT");
  if (artifact == nullptr || !scheduling::has_program_solver()) {
    RowList(options).left_out("sia-philly*", artifact == nullptr
                                                 ? "needs MOTLEY_SIA_ARTIFACT, the folder of Sia's artifact"
                                                 : "needs HiGHS (tools/setup)");
    return std::vector<BenchRow>();
  }
  return SiaRows(options, artifact).run();
}

}  // namespace motley::bench
