// GADGET's experiment where jobs compete: for GPUs, CPUs and memory, and for the uplinks that their rings reserve.
// Total utility, as in the paper, of its greedy choice and of its two kinds of peers, on the same jobs, with the same
// stopping rule and the same placement for all.
#include "bench/row_list.h"
#include "bench/schedule_bench.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::bench {
namespace {

constexpr int kServers = 50;
constexpr int kRoundingSeeds = 3;  // of `gadget`, whose programs take most of the time
constexpr const char* kOurs = "gadget-exact";

// What Figure 4 shows, in GADGET's utility over that of the peer.
struct Published {
  int jobs;
  double to_drf, to_fifo;
};
constexpr Published kPublished[] = {{40, 1.43, 2.41}, {100, 2.08, 3.84}};

Result<double> find_utility(const scheduling::Setting& setting, const std::string& name) {
  MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, {.placement = scheduling::PlacementStrategy::kCompact,
                                                                  .slot_seconds = setting.slot_seconds}));
  MOTLEY_ASSIGN(const auto outcome,
                scheduling::simulate(setting.jobs, setting.topology, *policy, {.horizon = setting.horizon}));
  return outcome.utility;
}

// The printed ranges with equation (3) to the letter: a job goes on until it has had F worker-slots, though its utility
// stops rising after F iterations, which are tens or hundreds of times as few.
scheduling::Setting setting_to_the_letter(int jobs, std::uint64_t seed) {
  scheduling::Setting setting = scheduling::gadget_setting(kServers, jobs, seed);
  for (scheduling::Job& job : setting.jobs) {
    const double iterations_per_slot = setting.slot_seconds / job.elastic->compute_seconds;
    job.iterations *= iterations_per_slot;
    job.duration *= iterations_per_slot;
  }
  return setting;
}

// Ratios of the utilities of one draw.
struct Ratios {
  std::vector<double> to_drf, to_fifo, gadget_to_drf, gadget_to_fifo;  // `gadget` rounds, as published
  std::vector<double> share;                                           // of what no schedule exceeds
  std::vector<double> limit_to_drf, limit_to_fifo;
};

Status play(const scheduling::Setting& setting, bool with_rounding, Ratios& ratios) {
  MOTLEY_ASSIGN(const double ours, find_utility(setting, kOurs));
  MOTLEY_ASSIGN(const double drf, find_utility(setting, "drf"));
  MOTLEY_ASSIGN(const double fifo, find_utility(setting, "fifo"));
  ratios.to_drf.push_back(ours / drf);
  ratios.to_fifo.push_back(ours / fifo);
  const double bound = scheduling::utility_bound(setting.jobs, setting.topology, setting.horizon);
  ratios.share.push_back(ours / bound);
  ratios.limit_to_drf.push_back(bound / drf);
  ratios.limit_to_fifo.push_back(bound / fifo);
  if (!with_rounding || !scheduling::has_program_solver()) return {};
  const auto gadget = find_utility(setting, "gadget");
  if (!gadget) return {};  // HiGHS did not solve one of its programs: the note counts the draws that it has
  ratios.gadget_to_drf.push_back(*gadget / drf);
  ratios.gadget_to_fifo.push_back(*gadget / fifo);
  return {};
}

std::string describe(const std::vector<double>& draws) {
  if (draws.empty()) return "not measured without HiGHS";
  const Estimate mean = estimate(draws);
  return fmt::format("{:.3f} +- {:.3f} ({} draws)", mean.mean, mean.half_interval, draws.size());
}

Status contended(const BenchOptions& options, const Published& published, RowList& rows) {
  const int seeds = options.quick ? 3 : 20;
  Ratios ratios, to_the_letter;
  for (int i = 0; i < seeds; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    const bool with_rounding = i < kRoundingSeeds;
    MOTLEY_TRY(play(scheduling::gadget_contended_setting(kServers, published.jobs, seed), with_rounding, ratios));
    MOTLEY_TRY(play(setting_to_the_letter(published.jobs, seed), false, to_the_letter));
  }
  const std::string name = fmt::format("gadget-contended-{}", published.jobs);
  const auto add = [&](const std::string& peer, const std::vector<double>& ours, const std::vector<double>& rounded,
                       const std::vector<double>& limit, const std::vector<double>& letter, double figure) {
    rows.add(name, "ratio_to_" + peer, estimate(ours).mean, "ratio", true, {}, estimate(limit).mean, figure,
             fmt::format("simulated, total utility of {} over {}'s, mean of {} seeds with a 95 % interval: {}; {} jobs "
                         "on {} servers as in the paper's settings, GPUs, CPUs and memory, rings that reserve uplinks "
                         "of 10 Gb/s; inputs: drawn by GADGET's ranges, work, links and resources as "
                         "gadget_contended_setting says. gadget, which rounds: {}; {} has {} of what no schedule "
                         "exceeds. Published, Figure 4: {:.2f}. With the printed ranges and equation (3) to the "
                         "letter: {}",
                         kOurs, peer, seeds, describe(ours), published.jobs, kServers, describe(rounded), kOurs,
                         describe(ratios.share), figure, describe(letter)));
  };
  add("drf", ratios.to_drf, ratios.gadget_to_drf, ratios.limit_to_drf, to_the_letter.to_drf, published.to_drf);
  add("fifo", ratios.to_fifo, ratios.gadget_to_fifo, ratios.limit_to_fifo, to_the_letter.to_fifo, published.to_fifo);
  return {};
}

}  // namespace

Result<std::vector<BenchRow>> schedule_gadget_contended(const BenchOptions& options) {
  RowList rows(options);
  for (const Published& published : kPublished) MOTLEY_TRY(contended(options, published, rows));
  return rows.take();
}

}  // namespace motley::bench
