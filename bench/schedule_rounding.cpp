// GADGET's relaxation and rounding beside the exact slot solver, on clusters as small as those for which the paper
// could compute the optimum: what it keeps of the optimum, what it exceeds, and what its theorems promise. Each way of
// solving slots plays on from what it has decided itself; all see the same jobs.
#include <cmath>

#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/policies/rounding.h"
#include "motley/scheduling/policies/slot_worth.h"
#include "motley/scheduling/simulator/speed.h"
#include "motley/scheduling/trace/settings.h"

namespace motley::bench {
namespace {

using scheduling::Mappings;
using scheduling::Part;
using scheduling::Placement;
using scheduling::RelaxedSlot;
using scheduling::SlotProblem;

constexpr int kServers = 12;
constexpr int kFewServers = 4;  // on which jobs compete
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
  double worth = 0, bound = 0;  // of all slots
  double worst_load = 0;        // of what a server has
  int exceeded = 0;             // servers and slots in which there was more than it has
  int servers = 0;              // times slots
  Sum utility;                  // of what none can exceed, over the horizon
  int beyond = 0;               // servers with more than beta times what they have
  double largest_beta = 0;
  int largest_ring = 0;
  double least_kept = 1;  // of the relaxation's optimum

  double share() const { return worth / bound; }
};

enum class Way { kOriginal, kWhatFits, kExact };

// The load of each server, of what it has.
std::vector<double> loads_of(const SlotProblem& problem, const std::vector<Placement>& placements) {
  std::vector<double> loads(problem.machines.servers.size());
  for (const Placement& placement : placements) {
    for (const Part& part : placement) loads[static_cast<std::size_t>(part.server)] += part.workers;
  }
  for (std::size_t i = 0; i < loads.size(); ++i) loads[i] /= problem.machines.servers[i].devices;
  return loads;
}

double worth_of(const SlotProblem& problem, const std::vector<Placement>& placements) {
  double worth = 0;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    worth += problem.jobs[i].value[0][static_cast<std::size_t>(scheduling::workers_of(placements[i]))];
  }
  return worth;
}

// beta of theorem 8: 1 + epsilon sqrt(2 Delta log |V|), Delta the largest sum over jobs of (the most that a mapping
// puts on a server over its largest single demand) squared, epsilon the largest demand over a server's capacity.
double beta_of(const SlotProblem& problem, const RelaxedSlot& slot) {
  double delta = 0;
  for (const int workers : slot.workers) delta += workers * workers;
  int smallest = problem.machines.servers[0].devices;
  for (const scheduling::Server& server : problem.machines.servers) smallest = std::min(smallest, server.devices);
  const auto servers = static_cast<double>(problem.machines.servers.size());
  return 1 + std::sqrt(2 * delta * std::log(servers)) / smallest;
}

// One slot, decided in this way.
Result<std::vector<Placement>> decide(Way way, const SlotProblem& problem, Random& random, Record& record) {
  if (way == Way::kExact) return scheduling::solve_slot(problem).placements;
  MOTLEY_ASSIGN(const RelaxedSlot slot,
                scheduling::relax_slot(problem, way == Way::kOriginal ? Mappings::kPartByPart : Mappings::kWhole));
  std::vector<Placement> taken;
  double most = -1;
  const double beta = beta_of(problem, slot);
  record.largest_beta = std::max(record.largest_beta, beta);
  record.largest_ring = std::max(record.largest_ring, slot.largest_ring);
  for (int drawing = 0; drawing < kDrawings; ++drawing) {
    std::vector<Placement> placements = way == Way::kOriginal ? scheduling::round_at_random(slot, random)
                                                              : scheduling::round_what_fits(problem, slot, random);
    const double worth = worth_of(problem, placements);
    if (way == Way::kOriginal) {
      const std::vector<double> loads = loads_of(problem, placements);
      const bool is_good = worth >= slot.optimum / 3 && std::ranges::max(loads) < beta;
      record.beyond += static_cast<int>(std::ranges::count_if(loads, [&](double load) { return load >= beta; }));
      if (!is_good && drawing + 1 < kDrawings) continue;
      record.least_kept = std::min(record.least_kept, slot.optimum > 0 ? worth / slot.optimum : 1);
      return placements;
    }
    if (worth <= most) continue;
    most = worth;
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
    state.machines = &setting.machines;
    const SlotProblem problem = scheduling::slot_problem(state, active, active.size(), setting.machines,
                                                         now + setting.slot_seconds, scheduling::Objective::kUtility);
    const double bound = scheduling::solve_slot(problem).bound;
    MOTLEY_ASSIGN(const std::vector<Placement> placements, decide(way, problem, random, record));
    record.bound += bound;
    record.worth += worth_of(problem, placements);
    for (const double load : loads_of(problem, placements)) {
      record.worst_load = std::max(record.worst_load, load);
      record.exceeded += load > 1 ? 1 : 0;
      ++record.servers;
    }
    for (std::size_t i = 0; i < active.size(); ++i) {
      const auto number = static_cast<std::size_t>(active[i]);
      const scheduling::Job& job = setting.jobs[number];
      const int workers = scheduling::workers_of(placements[i]);
      if (workers == 0) continue;
      progress[number].done_seconds = std::min(
          job.duration, progress[number].done_seconds +
                            setting.slot_seconds * scheduling::speed(job, setting.machines.network, {workers}));
    }
  }
  double utility = 0;
  for (std::size_t i = 0; i < setting.jobs.size(); ++i) {
    utility += setting.jobs[i].worth_after(progress[i].done_seconds);
  }
  record.utility.add(utility / scheduling::utility_bound(setting.jobs, setting.machines, setting.horizon));
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
  const int seeds = options.quick ? 1 : 5;
  Record all;
  double least_horizon = 1;
  for (const int servers : {kServers, kFewServers}) {
    for (const auto& [jobs, published] : kPublished) {
      Record original, fitting, exact;
      for (int seed = 0; seed < seeds; ++seed) {
        const scheduling::Setting setting =
            scheduling::gadget_setting(servers, jobs, static_cast<std::uint64_t>(seed), kSlots);
        for (const auto& [way, record] : {std::pair(Way::kOriginal, &original), std::pair(Way::kWhatFits, &fitting),
                                          std::pair(Way::kExact, &exact)}) {
          MOTLEY_TRY(play(way, setting, static_cast<std::uint64_t>(seed), *record));
        }
      }
      rows.add(
          fmt::format("rounding-{}{}", jobs, servers == kServers ? "" : fmt::format("-on-{}-servers", servers)),
          "share_of_slot_bound", fitting.share(), "share", true, {}, 1, published,
          fmt::format("what fits of the lots drawn; all lots, as published: {:.4f}, with more than a server has in "
                      "{:.1f} % of servers and slots, {:.1f} times as much at most; gadget-exact {:.4f}. Utility "
                      "over {} slots, of what none can exceed: {:.4f}, {:.4f}, {:.4f}",
                      original.share(), 100.0 * original.exceeded / std::max(1, original.servers), original.worst_load,
                      exact.share(), kSlots, fitting.utility.mean(), original.utility.mean(), exact.utility.mean()));
      all.beyond += original.beyond;
      all.servers += original.servers;
      all.least_kept = std::min(all.least_kept, original.least_kept);
      all.largest_beta = std::max(all.largest_beta, original.largest_beta);
      all.largest_ring = std::max(all.largest_ring, original.largest_ring);
      least_horizon = std::min(least_horizon, original.utility.total / std::max(1e-9, exact.utility.total));
    }
  }
  rows.add("rounding-theorems", "least_share_of_relaxation", all.least_kept, "share", true, 1.0 / 3, 1, {},
           "theorem 8: at least a third, in all slots");
  rows.add("rounding-theorems", "servers_beyond_beta", all.beyond, "servers", false, 0, {}, {},
           fmt::format("of {} servers and slots; theorem 8: as seldom as {:.0e}; beta up to {:.0f} times what a server "
                       "has, so that it says little",
                       all.servers, std::pow(kServers, -4), all.largest_beta));
  rows.add(
      "rounding-theorems", "least_horizon_share_of_exact", least_horizon, "share", true,
      1.0 / (3 * all.largest_ring + 1), {}, {},
      fmt::format("theorem 10: at least 1/(3 Gamma + 1), Gamma up to {}; beside gadget-exact, over capacity and all",
                  all.largest_ring));
  return rows.take();
}

}  // namespace motley::bench
