// Real traces, made elastic, at several loads: gadget-exact with each objective beside all other policies in the same
// simulator, with slots of the same length, the same network and the same stopping rule.
#include <algorithm>
#include <cmath>
#include <map>

#include "bench/planning_cases.h"
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/trace.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

using scheduling::Objective;

constexpr const char* kOurs = "gadget-exact";
constexpr std::uint64_t kSeed = 1;
// 100 GB/s inside a node, 100 Gb/s between nodes, and the contention of SJF-BCO.
constexpr scheduling::Network kNetwork = {
    .intra_node_bandwidth = 100e9, .inter_node_bandwidth = 12.5e9, .contention = 0.5, .loss = 0.1};

struct Case {
  std::string name;
  std::string file;
  const char* topology;
  double days;  // the busiest; 0: all
  double slot_seconds;
  std::vector<std::string> peers;
};

const std::vector<std::string> kSorting = {"fifo", "las", "gittins", "srtf"};
const std::vector<std::string> kSlotted = {"drf", "themis", "optimus", "elasticflow", "gavel", "sia"};

std::vector<std::string> all_peers() {
  std::vector<std::string> peers = kSorting;
  for (const std::string& name : kSlotted) {
    if (scheduling::has_program_solver() || (name != "gavel" && name != "sia")) peers.push_back(name);
  }
  return peers;
}

struct Figures {
  double mean_hours = 0;
  double worst = 0;   // finish-time fairness
  double unfair = 0;  // share of jobs
  double seconds = 0;
};

class Traces {
 public:
  explicit Traces(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (const char* cluster : {"03", "05", "06"}) {
      if (options_.quick && std::string(cluster) != "05") continue;
      const Case one = {
          fmt::format("itp{}", cluster), fmt::format("itp/cluster{}.csv", cluster), "16x8", 0, 600, all_peers()};
      MOTLEY_TRY(compare(one));
    }
    if (!options_.quick) {
      MOTLEY_TRY(compare({"philly-14-days", "philly.csv", "47x8", 14, 3600, all_peers()}));
      MOTLEY_TRY(compare({"philly", "philly.csv", "47x8", 0, 3600, kSorting}));
    }
    MOTLEY_TRY(write_page());
    return rows_.take();
  }

 private:
  Status compare(const Case& one) {
    const std::filesystem::path file = shared_data(options_) / "traces" / one.file;
    if (!std::filesystem::exists(file)) {
      rows_.left_out(one.name + "*", "needs " + file.string());
      return {};
    }
    for (const double load : {0.7, 1.0, 1.3}) {
      if (options_.quick && load != 1) continue;
      const double begin = monotonic_seconds();
      MOTLEY_ASSIGN(std::vector<scheduling::Job> jobs, scheduling::read_trace(file));
      if (one.days > 0) jobs = scheduling::busiest(jobs, one.days);
      MOTLEY_ASSIGN(scheduling::ClusterTopology topology, scheduling::parse_topology(one.topology));
      topology.network = kNetwork;
      scheduling::set_load(jobs, topology, load);
      scheduling::make_elastic(jobs, kSeed);
      const double read_seconds = monotonic_seconds() - begin;
      MOTLEY_TRY(at_load(one, load, jobs, topology, read_seconds));
    }
    return {};
  }

  Status at_load(const Case& one, double load, const std::vector<scheduling::Job>& jobs,
                 const scheduling::ClusterTopology& topology, double read_seconds) {
    const std::string name = load == 1 ? one.name : fmt::format("{}-load-{:g}", one.name, load);
    std::string note = fmt::format(
        "{} jobs, {} devices, slots of {:g} s, at whose begin alone all decide that solve for one but "
        "gadget-exact, which also starts who waits when another ends; mean hours / worst finish-time ratio / "
        "unfair:",
        jobs.size(), topology.devices(), one.slot_seconds);
    report::LineChart chart;
    chart.title = name;
    chart.summary = "Mean hours to completion and the worst finish-time ratio, a mark a policy.";
    chart.x_label = "mean hours to completion, log10";
    chart.y_label = "worst finish-time ratio, log10";
    const auto add = [&](const std::string& label, const Figures& result) {
      note += fmt::format(" {} {:.2f} / {:.2f} / {:.3f},", label, result.mean_hours, result.worst, result.unfair);
      chart.series.push_back({label,
                              static_cast<int>(chart.series.size()),
                              report::LineStyle::kMarks,
                              {std::log10(result.mean_hours)},
                              {std::log10(result.worst)}});
      rows_.print(name + " " + label);
    };
    Figures best;
    best.mean_hours = best.worst = std::numeric_limits<double>::infinity();
    for (const std::string& peer : one.peers) {
      MOTLEY_ASSIGN(const Figures result, replay(one, jobs, topology, peer, Objective::kUtility));
      add(peer, result);
      best.mean_hours = std::min(best.mean_hours, result.mean_hours);
      best.worst = std::min(best.worst, result.worst);
    }
    std::map<Objective, Figures> ours;
    for (const auto& [objective, label] : {std::pair(Objective::kUtility, "utility"),
                                           {Objective::kCompletion, "completion"},
                                           {Objective::kFairness, "fairness"}}) {
      MOTLEY_ASSIGN(ours[objective], replay(one, jobs, topology, kOurs, objective));
      add(fmt::format("{} ({})", kOurs, label), ours[objective]);
    }
    note.pop_back();
    const bool has_target = load == 1 && one.days == 0 && one.name != "philly";
    const Figures& sooner = ours[Objective::kCompletion];
    rows_.add(name, "jct_ratio_to_best_peer", sooner.mean_hours / best.mean_hours, "ratio", false,
              has_target ? std::optional(1.0) : std::nullopt, {}, 1, note);
    // That of Philly's 14 days is measured in the replays of its completion row (schedule_elastic.cpp).
    if (name != "philly-14-days")
      rows_.add(name, "fairness_ratio_to_best_peer", ours[Objective::kFairness].worst / best.worst, "ratio", false,
                has_target ? std::optional(1.05) : std::nullopt, {}, 1, "worst finish-time ratio; see the row above");
    if (one.name == "philly" && load == 1) {
      rows_.add("philly-gadget-exact", "seconds", read_seconds + sooner.seconds, "s", false, 120, {}, {},
                fmt::format("reading included; {} jobs on {} devices, slots of an hour, completion objective",
                            jobs.size(), topology.devices()));
    }
    charts_ += report::card(name, "", report::line_chart(chart));
    return {};
  }

  static Result<Figures> replay(const Case& one, const std::vector<scheduling::Job>& jobs,
                                const scheduling::ClusterTopology& topology, const std::string& name,
                                Objective objective) {
    MOTLEY_ASSIGN(const auto policy,
                  scheduling::make_policy(name, {.placement = scheduling::PlacementStrategy::kCompact,
                                                 .slot_seconds = one.slot_seconds,
                                                 .objective = objective}));
    const double begin = monotonic_seconds();
    MOTLEY_ASSIGN(const auto outcome, scheduling::simulate(jobs, topology, *policy));
    Figures result;
    result.seconds = monotonic_seconds() - begin;
    result.mean_hours = scheduling::compute_completion(jobs, outcome).mean / 3600;
    const scheduling::Fairness fairness = scheduling::compute_fairness(jobs, topology, outcome);
    result.worst = fairness.worst;
    result.unfair = fairness.unfair;
    return result;
  }

  Status write_page() const {
    if (options_.pages.empty()) return {};
    MOTLEY_TRY(make_folders(options_.pages));
    return write_file(options_.pages / "schedule.html",
                      report::document("Soon or fair",
                                       "<header><h1>Soon or fair: policies on real traces</h1></header>"
                                       "<main><div class=\"cards\">" +
                                           charts_ + "</div></main>"));
  }

  const BenchOptions& options_;
  RowList rows_;
  std::string charts_;
};

}  // namespace

Result<std::vector<BenchRow>> schedule_traces(const BenchOptions& options) {
  return Traces(options).run();
}

}  // namespace motley::bench
