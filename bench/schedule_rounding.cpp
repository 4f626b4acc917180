// GADGET's relaxation and rounding beside the exact slot solver, on clusters as small as those for which the paper
// could compute the optimum: what it keeps of the optimum, what it exceeds, and what its theorems promise. Each way of
// solving slots plays on from what it has decided itself; all see the same jobs.
#include <cmath>

#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/policies/rounding.h"
#include "motley/scheduling/policies/slot.h"
#include "motley/scheduling/trace/job.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

using scheduling::Mappings;
using scheduling::Part;
using scheduling::Placement;
using scheduling::RelaxedSlot;
using scheduling::SlotProblem;

constexpr int kNodes = 12;
constexpr int kFewNodes = 4;  // on which jobs compete
constexpr int kSlots = 20;
constexpr int kDrawings =
    20;  // of which the first is taken that keeps what the theorem promises, or the best that fits

struct Sum {
  double total = 0;
  int count = 0;
  void add(double value) {
    total += value;
    ++count;
  }
  double mean() const { return count == 0 ? 0 : total / count; }
};

// What a way of solving slots came to, over all slots and seeds.
struct Record {
  double sum = 0, bound = 0;  // of all slots
  double worst_load = 0;      // of what a node has
  int exceeded = 0;           // nodes and slots in which there was more than it has
  int nodes = 0;              // times slots
  Sum utility;                // of what none can exceed, over the horizon
  int beyond = 0;             // nodes with more than beta times what they have
  double largest_beta = 0;
  int largest_ring = 0;
  double min_kept = 1;  // of the relaxation's optimum

  double share() const { return sum / bound; }
};

enum class Way { kOriginal, kWhatFits, kExact };

// The load of each node, of what it has.
std::vector<double> compute_loads(const SlotProblem& problem, const std::vector<Placement>& placements) {
  std::vector<double> loads(problem.topology.nodes.size());
  for (const Placement& placement : placements) {
    for (const Part& part : placement) loads[static_cast<std::size_t>(part.node)] += part.workers;
  }
  for (std::size_t i = 0; i < loads.size(); ++i) loads[i] /= problem.topology.nodes[i].devices;
  return loads;
}

double compute_utility(const SlotProblem& problem, const std::vector<Placement>& placements) {
  double utility = 0;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    utility += problem.jobs[i].value[0][static_cast<std::size_t>(scheduling::count_workers(placements[i]))];
  }
  return utility;
}

// beta of theorem 8: 1 + epsilon sqrt(2 Delta log |V|), Delta the largest sum over jobs of (the most that a mapping
// puts on a node over its largest single demand) squared, epsilon the largest demand over a node's capacity.
double compute_beta(const SlotProblem& problem, const RelaxedSlot& slot) {
  double delta = 0;
  for (const int workers : slot.workers) delta += workers * workers;
  int smallest = problem.topology.nodes[0].devices;
  for (const scheduling::Node& node : problem.topology.nodes) smallest = std::min(smallest, node.devices);
  const auto nodes = static_cast<double>(problem.topology.nodes.size());
  return 1 + std::sqrt(2 * delta * std::log(nodes)) / smallest;
}

// One slot, decided in this way.
Result<std::vector<Placement>> decide(Way way, const SlotProblem& problem, Random& random, Record& record) {
  if (way == Way::kExact) return scheduling::solve_slot(problem).placements;
  MOTLEY_ASSIGN(const RelaxedSlot slot,
                scheduling::relax_slot(problem, way == Way::kOriginal ? Mappings::kPartByPart : Mappings::kWhole));
  std::vector<Placement> taken;
  double most = -1;
  const double beta = compute_beta(problem, slot);
  record.largest_beta = std::max(record.largest_beta, beta);
  record.largest_ring = std::max(record.largest_ring, slot.largest_ring);
  for (int drawing = 0; drawing < kDrawings; ++drawing) {
    std::vector<Placement> placements = way == Way::kOriginal ? scheduling::round_at_random(slot, random)
                                                              : scheduling::round_what_fits(problem, slot, random);
    const double utility = compute_utility(problem, placements);
    if (way == Way::kOriginal) {
      const std::vector<double> loads = compute_loads(problem, placements);
      const bool is_good = utility >= slot.optimum / 3 && std::ranges::max(loads) < beta;
      record.beyond += static_cast<int>(std::ranges::count_if(loads, [&](double load) { return load >= beta; }));
      if (!is_good && drawing + 1 < kDrawings) continue;
      record.min_kept = std::min(record.min_kept, slot.optimum > 0 ? utility / slot.optimum : 1);
      return placements;
    }
    if (utility <= most) continue;
    most = utility;
    taken = std::move(placements);
  }
  return taken;
}

// A horizon of slots.
Status play(Way way, const scheduling::Setting& setting, std::uint64_t seed, Record& record) {
  Random random(seed);
  std::vector<scheduling::Progress> progress(setting.jobs.size());
  for (int slot = 0; slot < kSlots; ++slot) {
    const double now = slot * setting.slot_seconds;
    std::vector<int> active;
    for (std::size_t i = 0; i < setting.jobs.size(); ++i) {
      progress[i].since = now;
      if (setting.jobs[i].arrival <= now && progress[i].done_seconds < setting.jobs[i].duration) {
        active.push_back(static_cast<int>(i));
      }
    }
    if (active.empty()) continue;
    scheduling::State state;
    state.now = now;
    state.jobs = setting.jobs;
    state.progress = progress;
    state.topology = &setting.topology;
    state.active = active;
    const SlotProblem problem = scheduling::slot_problem(state, active, setting.topology, now + setting.slot_seconds,
                                                         scheduling::Objective::kUtility);
    const double bound = scheduling::solve_slot(problem).bound;
    MOTLEY_ASSIGN(const std::vector<Placement> placements, decide(way, problem, random, record));
    record.bound += bound;
    record.sum += compute_utility(problem, placements);
    for (const double load : compute_loads(problem, placements)) {
      record.worst_load = std::max(record.worst_load, load);
      record.exceeded += load > 1 ? 1 : 0;
      ++record.nodes;
    }
    for (std::size_t i = 0; i < active.size(); ++i) {
      const auto number = static_cast<std::size_t>(active[i]);
      const scheduling::Job& job = setting.jobs[number];
      const int workers = scheduling::count_workers(placements[i]);
      if (workers == 0) continue;
      progress[number].done_seconds = std::min(
          job.duration, progress[number].done_seconds +
                            setting.slot_seconds * scheduling::speed(job, setting.topology.network, {workers}));
    }
  }
  double utility = 0;
  for (std::size_t i = 0; i < setting.jobs.size(); ++i) {
    utility += setting.jobs[i].utility_after(progress[i].done_seconds);
  }
  record.utility.add(utility / scheduling::utility_bound(setting.jobs, setting.topology, setting.horizon));
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> schedule_rounding(const BenchOptions& options) {
  RowList rows(options);
  if (!scheduling::has_program_solver()) {
    rows.left_out("rounding", "needs HiGHS, and this Motley was built without it");
    return rows.take();
  }
  constexpr std::pair<int, double> kPublished[] = {{10, 0.613}, {20, 0.679}, {30, 0.734}, {40, 0.767}, {50, 0.781}};
  const int repetitions = options.quick ? 1 : 5;
  Record all;
  double min_horizon = 1;
  for (const int nodes : {kNodes, kFewNodes}) {
    for (const auto& [jobs, published] : kPublished) {
      Record original, fitting, exact;
      for (int seed = 0; seed < repetitions; ++seed) {
        const scheduling::Setting setting =
            scheduling::gadget_setting(nodes, jobs, static_cast<std::uint64_t>(seed), kSlots);
        for (const auto& [way, record] : {std::pair(Way::kOriginal, &original), std::pair(Way::kWhatFits, &fitting),
                                          std::pair(Way::kExact, &exact)}) {
          MOTLEY_TRY(play(way, setting, static_cast<std::uint64_t>(seed), *record));
        }
      }
      rows.add(fmt::format("rounding-{}{}", jobs, nodes == kNodes ? "" : fmt::format("-on-{}-servers", nodes)),
               "share_of_slot_bound", fitting.share(), "share", true, {}, 1, published,
               fmt::format(
                   "what fits of the placements drawn; all of them, as published: {:.4f}, with more than a node has in "
                   "{:.1f} % of nodes and slots, {:.1f} times as much at most; gadget-exact {:.4f}. Utility "
                   "over {} slots, of what none can exceed: {:.4f}, {:.4f}, {:.4f}",
                   original.share(), 100.0 * original.exceeded / std::max(1, original.nodes), original.worst_load,
                   exact.share(), kSlots, fitting.utility.mean(), original.utility.mean(), exact.utility.mean()));
      all.beyond += original.beyond;
      all.nodes += original.nodes;
      all.min_kept = std::min(all.min_kept, original.min_kept);
      all.largest_beta = std::max(all.largest_beta, original.largest_beta);
      all.largest_ring = std::max(all.largest_ring, original.largest_ring);
      min_horizon = std::min(min_horizon, original.utility.total / std::max(1e-9, exact.utility.total));
    }
  }
  rows.add("rounding-theorems", "least_share_of_relaxation", all.min_kept, "share", true, 1.0 / 3, 1, {},
           "theorem 8: at least a third, in all slots");
  rows.add("rounding-theorems", "servers_beyond_beta", all.beyond, "servers", false, 0, {}, {},
           fmt::format("of {} nodes and slots; theorem 8: as seldom as {:.0e}; beta up to {:.0f} times what a node "
                       "has, so that it says little",
                       all.nodes, std::pow(kNodes, -4), all.largest_beta));
  rows.add(
      "rounding-theorems", "least_horizon_share_of_exact", min_horizon, "share", true, 1.0 / (3 * all.largest_ring + 1),
      {}, {},
      fmt::format("theorem 10: at least 1/(3 Gamma + 1), Gamma up to {}; beside gadget-exact, over capacity and all",
                  all.largest_ring));
  return rows.take();
}

}  // namespace motley::bench
