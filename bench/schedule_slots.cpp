// The slot solver on its own: against the bound of a mixed-integer program, never over what there is, and how long
// decisions take as clusters grow.
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/child_process.h"
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/scheduling/policies/slot.h"

namespace motley::bench {
namespace {

using scheduling::ClusterTopology;
using scheduling::Node;
using scheduling::Part;
using scheduling::Placement;
using scheduling::SlotAnswer;
using scheduling::SlotJob;
using scheduling::SlotProblem;

constexpr double kMipSeconds = 60;
constexpr int kSlots = 10'000;
constexpr int kDecisions = 31;

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

int whole(Random& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

// A job whose utility rises with its workers, less and less, and is less where its ring is longer.
SlotJob random_job(Random& random, int most) {
  SlotJob job;
  const double power = between(random, 0.4, 1);
  const double scale = between(random, 0.2, 3);
  double kept = 1;
  for (auto& values : job.value) {
    values = {0};
    for (int workers = 1; workers <= most; ++workers) values.push_back(kept * scale * std::pow(workers, power));
    kept *= between(random, 0.7, 1);
  }
  job.reserve = between(random, 0.1, 5);
  return job;
}

// GADGET's settings: nodes of 1 to 8 devices in two to five racks; here uplinks are so thin that they bind.
SlotProblem random_problem(Random& random, int nodes, int jobs, int most) {
  SlotProblem problem;
  ClusterTopology& topology = problem.topology;
  topology.racks = std::min(nodes, whole(random, 2, 5));
  for (int i = 0; i < nodes; ++i) {
    topology.nodes.push_back({"", 1 << whole(random, 0, 3), i % topology.racks, between(random, 1, 20)});
  }
  for (int i = 0; i < topology.racks; ++i) topology.rack_uplinks.push_back(between(random, 2, 40));
  for (int i = 0; i < jobs; ++i) problem.jobs.push_back(random_job(random, whole(random, 1, most)));
  return problem;
}

nlohmann::json as_json(const SlotProblem& problem) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Node& node : problem.topology.nodes) nodes.push_back({node.devices, node.uplink, node.rack});
  nlohmann::json jobs = nlohmann::json::array();
  for (const SlotJob& job : problem.jobs) jobs.push_back({job.reserve, job.value});
  return {{"servers", nodes}, {"racks", problem.topology.rack_uplinks}, {"jobs", jobs}};
}

// Capacities that placements exceed, added up anew from nothing but them.
int violations(const SlotProblem& problem, const std::vector<Placement>& placements) {
  const auto index = [](int number) { return static_cast<std::size_t>(number); };
  const ClusterTopology& topology = problem.topology;
  std::vector<int> devices(topology.nodes.size());
  std::vector<double> uplinks(topology.nodes.size());
  std::vector<double> racks(index(topology.racks));
  int found = 0;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    std::vector<int> by_rack(index(topology.racks));
    const int workers = scheduling::count_workers(placements[i]);
    found += workers > problem.jobs[i].max_workers();
    for (const Part& part : placements[i]) {
      devices[index(part.node)] += part.workers;
      by_rack[index(topology.nodes[index(part.node)].rack)] += part.workers;
      if (part.workers < workers) uplinks[index(part.node)] += problem.jobs[i].reserve;
    }
    for (std::size_t rack = 0; rack < racks.size(); ++rack) {
      if (0 < by_rack[rack] && by_rack[rack] < workers) racks[rack] += problem.jobs[i].reserve;
    }
  }
  constexpr double kRounding = 1 + 1e-6;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    found += devices[i] > topology.nodes[i].devices;
    found += uplinks[i] > topology.nodes[i].uplink * kRounding;
  }
  for (std::size_t i = 0; i < racks.size(); ++i) found += racks[i] > topology.rack_uplinks[i] * kRounding;
  return found;
}

struct Size {
  int nodes;
  int jobs;
  int most;
};

Status ratio(const BenchOptions& options, RowList& rows) {
  if (!has_module(options.python, "highspy")) {
    rows.left_out("slot-ratio", "needs the Python module highspy (pip install highspy)");
    return {};
  }
  const std::vector<Size> sizes =
      options.quick ? std::vector<Size>{{3, 8, 5}}
                    : std::vector<Size>{{4, 10, 5}, {8, 20, 5}, {12, 50, 5}, {20, 40, 8}, {50, 100, 5}};
  MOTLEY_ASSIGN(const auto peer, ChildProcess::start({options.python.string(),
                                                      (options.source_folder / "bench/peers/slot_mip.py").string(),
                                                      fmt::format("{}", kMipSeconds)}));
  Random random(1);
  double worst = 1;
  std::string shares;
  for (const Size& size : sizes) {
    const SlotProblem problem = random_problem(random, size.nodes, size.jobs, size.most);
    const SlotAnswer answer = scheduling::solve_slot(problem);
    MOTLEY_TRY(peer->write_line(as_json(problem).dump()));
    MOTLEY_ASSIGN(const std::string line, peer->read_line(Deadline::after(kMipSeconds * 3)));
    const double bound = std::strtod(line.c_str(), nullptr);
    if (!(bound > 0)) {
      return fail(ErrorCode::kInternal, "bench/peers/slot_mip.py answers '{}'; accepted: a bound", line);
    }
    const double share = answer.value / bound;
    worst = std::min(worst, share);
    shares += fmt::format("{}{} nodes, {} jobs: {:.4f} (own bound {:.4f})", shares.empty() ? "" : "; ", size.nodes,
                          size.jobs, share, answer.value / answer.bound);
    rows.print(shares);
  }
  rows.add("slot-ratio", "worst_share_of_mip_bound", worst, "share", true, 0.98, 1, {},
           fmt::format("bound of HiGHS after {:g} s; {}", kMipSeconds, shares));
  return {};
}

void feasible(const BenchOptions& options, RowList& rows) {
  Random random(2);
  const int slots = options.quick ? kSlots / 10 : kSlots;
  int found = 0;
  for (int slot = 0; slot < slots; ++slot) {
    const SlotProblem problem = random_problem(random, whole(random, 2, 12), whole(random, 1, 40), 8);
    found += violations(problem, scheduling::solve_slot(problem, {.rounds = 20}).placements);
  }
  rows.add("slot-feasible", "violations", found, "capacities", false, 0, {}, {}, fmt::format("{} random slots", slots));
}

struct DecisionTimes {
  double devices, median_ms, p95_ms;
};

// Slot after slot of one cluster: jobs have run on, a tenth of them are others, those that move lose something.
DecisionTimes decisions(RowList& rows, int devices, int jobs, std::optional<double> target_ms,
                        std::optional<double> p95_target_ms = {}) {
  constexpr int kOnNode = 8;
  Random random(3);
  SlotProblem problem;
  problem.topology = scheduling::uniform(devices / kOnNode, kOnNode, 16);
  for (Node& node : problem.topology.nodes) node.uplink = 25;
  problem.topology.rack_uplinks.assign(static_cast<std::size_t>(problem.topology.racks), 200);
  const auto new_job = [&] { return random_job(random, 1 << whole(random, 0, 6)); };
  for (int i = 0; i < jobs; ++i) problem.jobs.push_back(new_job());
  std::vector<double> milliseconds;
  double min_share = 1;
  for (int decision = 0; decision < kDecisions; ++decision) {
    const double begin = monotonic_seconds();
    const SlotAnswer answer = scheduling::solve_slot(problem);
    milliseconds.push_back(1e3 * (monotonic_seconds() - begin));
    min_share = std::min(min_share, answer.value / answer.bound);
    for (std::size_t i = 0; i < problem.jobs.size(); ++i) {
      SlotJob& job = problem.jobs[i];
      if (random.below(10) == 0) {
        job = new_job();
        continue;
      }
      const double factor = between(random, 0.8, 1);
      for (auto& values : job.value) {
        for (double& value : values) value *= factor;
      }
      job.now = answer.placements[i];
      job.moving = 0.05;
    }
  }
  std::ranges::sort(milliseconds);
  const auto p95 = static_cast<std::size_t>(std::ceil(0.95 * kDecisions)) - 1;
  const std::string note =
      fmt::format("{} active jobs, {} nodes; least share of its own bound {:.4f}", jobs, devices / kOnNode, min_share);
  rows.add(fmt::format("decision-{}", devices), "median_ms", milliseconds[kDecisions / 2], "ms", false, target_ms, {},
           {}, note);
  rows.add(fmt::format("decision-{}", devices), "p95_ms", milliseconds[p95], "ms", false, p95_target_ms, {}, {}, note);
  return {static_cast<double>(devices), milliseconds[kDecisions / 2], milliseconds[p95]};
}

// How they grow, as a page.
Status write_growth(const BenchOptions& options, const std::vector<DecisionTimes>& all) {
  if (options.pages.empty()) return {};
  report::LineChart chart;
  chart.title = "Time of a decision";
  chart.summary = "How long a slot's decision takes as clusters grow: median and 95th percentile.";
  chart.x_label = "devices, log10";
  chart.y_label = "milliseconds, log10";
  chart.series = {{"median", 0, report::LineStyle::kMarked}, {"95th percentile", 1, report::LineStyle::kMarked}};
  for (const DecisionTimes& one : all) {
    for (report::Series& series : chart.series) series.x.push_back(std::log10(one.devices));
    chart.series[0].y.push_back(std::log10(one.median_ms));
    chart.series[1].y.push_back(std::log10(one.p95_ms));
  }
  MOTLEY_TRY(make_folders(options.pages));
  return write_file(
      options.pages / "schedule-decisions.html",
      report::document("Time of a decision",
                       "<header><h1>How decisions of gadget-exact grow</h1></header><main>"
                       "<div class=\"cards\">" +
                           report::card(chart.title, chart.summary, report::line_chart(chart)) + "</div></main>"));
}

}  // namespace

Result<std::vector<BenchRow>> schedule_slots(const BenchOptions& options) {
  RowList rows(options);
  feasible(options, rows);
  MOTLEY_TRY(write_growth(
      options, {decisions(rows, 64, 100, 12, 5), decisions(rows, 512, 250, {}), decisions(rows, 2048, 500, 150, 60),
                decisions(rows, 8192, 2000, {}), decisions(rows, 16384, 4000, 1000, 60)}));
  MOTLEY_TRY(ratio(options, rows));
  return rows.take();
}

}  // namespace motley::bench
