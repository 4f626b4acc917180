// Elastic policies at their best on real traces made elastic: those that decide at events do, those that decide by
// rounds of a slot have the slots of the case, all have the completion objective where they have one, the same
// knowledge of durations, and the same restarts to pay for. Of the same replays come mean completion times and the
// worst finish-time ratios.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/trace.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

using scheduling::Job;

constexpr int kSeeds = 3;         // which models the jobs train
constexpr double kHorizon = 600;  // seconds for which a decision at an event is made
constexpr double kWrong = 3;      // times, of durations that are told wrongly
constexpr double kMaxFairness = 1.05;

// 100 GB/s inside a node, 100 Gb/s between nodes, and the contention of SJF-BCO.
constexpr scheduling::Network kNetwork = {
    .intra_node_bandwidth = 100e9, .inter_node_bandwidth = 12.5e9, .contention = 0.5, .loss = 0.1};

struct Case {
  const char* name;
  const char* file;
  const char* topology;
  double days;  // the busiest; 0: all
  double slot_seconds;
};
constexpr Case kCases[] = {{"itp03", "itp/cluster03.csv", "16x8", 0, 600},
                           {"itp05", "itp/cluster05.csv", "16x8", 0, 600},
                           {"itp06", "itp/cluster06.csv", "16x8", 0, 600},
                           {"philly-14-days", "philly.csv", "47x8", 14, 3600}};

struct Contender {
  const char* policy;
  bool at_events;
  scheduling::Objective objective = scheduling::Objective::kCompletion;
};
constexpr Contender kOurs = {"gadget-exact", true};
// Gavel with both of its objectives: for completion times its max-min is the better one.
constexpr Contender kPeers[] = {{"elastic-srsf", true},
                                {"afs", true},
                                {"optimus", true},
                                {"drf", true},
                                {"sia", false},
                                {"gavel", false},
                                {"gavel", false, scheduling::Objective::kUtility},
                                {"srsf", false}};

struct Figures {
  std::vector<double> hours, worst;  // by seed
};

class ElasticRows {
 public:
  explicit ElasticRows(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    std::vector<double> ratios;
    for (const Case& one : kCases) {
      if (options_.quick && std::string_view(one.name) != "itp05") continue;
      const std::filesystem::path file = shared_data(options_) / "traces" / one.file;
      if (!std::filesystem::exists(file)) {
        rows_.left_out(one.name, "needs " + file.string());
        continue;
      }
      MOTLEY_ASSIGN(const double ratio, compare(one, file, 1));
      ratios.push_back(ratio);
      if (one.days == 0) MOTLEY_TRY(compare(one, file, kWrong));
    }
    if (ratios.size() == std::size(kCases)) {
      double logarithms = 0;
      for (const double ratio : ratios) logarithms += std::log(ratio);
      rows_.add("elastic-geomean", "jct_ratio_to_best_elastic_peer",
                std::exp(logarithms / static_cast<double>(ratios.size())), "ratio", false, 0.95, {}, 1,
                "simulated; of the four traces' means over seeds");
    }
    return rows_.take();
  }

 private:
  // The mean ratio of completion times.
  Result<double> compare(const Case& one, const std::filesystem::path& file, double duration_error) {
    const int seeds = options_.quick ? 1 : kSeeds;
    std::vector<double> best_hours(static_cast<std::size_t>(seeds), std::numeric_limits<double>::infinity());
    std::vector<double> best_worst = best_hours;
    std::string note;
    for (const Contender& peer : kPeers) {
      const bool needs_programs = std::string_view(peer.policy) == "gavel" || std::string_view(peer.policy) == "sia";
      if (needs_programs && !scheduling::has_program_solver()) continue;
      MOTLEY_ASSIGN(const Figures figures, replay(one, file, peer, duration_error, seeds, note));
      for (std::size_t seed = 0; seed < best_hours.size(); ++seed) {
        best_hours[seed] = std::min(best_hours[seed], figures.hours[seed]);
        best_worst[seed] = std::min(best_worst[seed], figures.worst[seed]);
      }
    }
    MOTLEY_ASSIGN(const Figures ours, replay(one, file, kOurs, duration_error, seeds, note));
    const Estimate sooner = estimate(divide(ours.hours, best_hours));
    const Estimate fairness = estimate(divide(ours.worst, best_worst));
    const bool is_told = duration_error == 1;
    const std::string name = is_told ? one.name : fmt::format("{}-durations-{:g}x", one.name, duration_error);
    rows_.add(name, "jct_ratio_to_best_elastic_peer", sooner.mean, "ratio", false,
              is_told ? std::optional(1.0) : std::nullopt, {}, 1,
              fmt::format("simulated; +- {:.4f} (95 %) over {} seeds, each with its best peer; {}; mean hours / worst "
                          "finish-time ratio: {}",
                          sooner.half_interval, seeds, one.file, note));
    if (one.days > 0) {
      rows_.add(
          name, "fairness_ratio_to_best_peer", fairness.mean, "ratio", false, kMaxFairness, {}, 1,
          fmt::format("simulated; +- {:.4f} (95 %); worst finish-time ratios of the same replays as the row above",
                      fairness.half_interval));
    }
    return sooner.mean;
  }

  Result<Figures> replay(const Case& one, const std::filesystem::path& file, const Contender& contender,
                         double duration_error, int seeds, std::string& note) const {
    Figures figures;
    for (int seed = 1; seed <= seeds; ++seed) {
      MOTLEY_ASSIGN(std::vector<Job> jobs, scheduling::read_trace(file));
      if (one.days > 0) jobs = scheduling::busiest(jobs, one.days);
      MOTLEY_ASSIGN(scheduling::ClusterTopology topology, scheduling::parse_topology(one.topology));
      topology.network = kNetwork;
      scheduling::set_load(jobs, topology, 1);
      scheduling::make_elastic(jobs, static_cast<std::uint64_t>(seed));
      MOTLEY_ASSIGN(
          const auto policy,
          scheduling::make_policy(contender.policy, {.placement = scheduling::PlacementStrategy::kCompact,
                                                     .slot_seconds = contender.at_events ? kHorizon : one.slot_seconds,
                                                     .at_events = contender.at_events,
                                                     .objective = contender.objective}));
      MOTLEY_ASSIGN(const auto outcome, scheduling::simulate(jobs, topology, *policy,
                                                             {.duration_error = duration_error,
                                                              .duration_seed = static_cast<std::uint64_t>(seed)}));
      figures.hours.push_back(scheduling::compute_completion(jobs, outcome).mean / 3600);
      figures.worst.push_back(scheduling::compute_fairness(jobs, topology, outcome).worst);
    }
    const bool is_max_min =
        std::string_view(contender.policy) == "gavel" && contender.objective == scheduling::Objective::kUtility;
    const std::string line = fmt::format("{}{}{} {:.3f} / {:.2f}", contender.policy, is_max_min ? " (max-min)" : "",
                                         contender.at_events ? " at events" : "", estimate(figures.hours).mean,
                                         estimate(figures.worst).mean);
    rows_.print(fmt::format("{} {}", one.name, line));
    note += (note.empty() ? "" : ", ") + line;
    return figures;
  }

  static std::vector<double> divide(const std::vector<double>& ours, const std::vector<double>& best) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / best[i]);
    return ratios;
  }

  const BenchOptions& options_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> schedule_elastic(const BenchOptions& options) {
  return ElasticRows(options).run();
}

}  // namespace motley::bench
