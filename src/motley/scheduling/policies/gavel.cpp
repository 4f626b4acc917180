// Gavel (Narayanan et al., OSDI 2020): a linear program says which share X of the time each job m should run with the
// workers that it asks for on each type t of devices,
//
//     sum over m of workers_m X_mt <= devices_t,    sum over t of X_mt <= 1,    0 <= X_mt,
//
// and rounds follow it: in each, those go first whose share is largest beside what they have had of their time there so
// far. Its heterogeneity-aware max-min policy maximises the least
//
//     workers_m sum over t of speed_mt X_mt / speed_m,
//
// where speed_m is what a job would have if it ran on each type in proportion to its devices, and, with the completion
// objective, its max-sum policy the sum of throughputs. What its program leaves free is given by the same order. A job
// that is as fast on all devices has one share, of devices of any type.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/policies/ranking.h"
#include "motley/scheduling/policies/slot_policy.h"
#include "motley/scheduling/trace/speed.h"

namespace motley::scheduling {
namespace {

constexpr double kFilling = 1e-3;  // what the sum of shares counts beside the least, so that nothing stays free

class Gavel final : public SlotPolicy {
 public:
  explicit Gavel(const PolicyOptions& options) : SlotPolicy("gavel", options), ranking_(options.placement) {}

 private:
  Status take_in(const State& state) override {
    for (const int job : state.finished) run_seconds_.erase(job);
    return {};
  }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    Decision decision;
    if (state.topology->devices() > 0) {
      count_run_seconds(state);
      MOTLEY_ASSIGN(const std::vector<Share> shares, solve(state));
      order_.clear();
      for (const Share& share : shares) {
        const double age = std::max(slots_.seconds(), state.now - state.job(share.job).arrival);
        const double run =
            share.type == kAnyType ? state.run_seconds(share.job) : run_seconds_on(share.job, share.type);
        const double had = (run + slots_.seconds()) / (age + slots_.seconds());
        order_.emplace_back(-share.part / had, share.job, share.type);
      }
      std::ranges::sort(order_);
      ranking_.begin(state);
      for (const auto& [rank, job, type] : order_) {
        if (ranking_.is_full()) break;
        if (!ranking_.got(job)) ranking_.offer(job, type);
      }
      ranking_.end(decision);
    }
    return decision.changes;
  }

  // The part of its time that a job should run on devices of a type.
  struct Share {
    int job = 0;
    int type = kAnyType;
    double part = 0;
  };

  Result<std::vector<Share>> solve(const State& state) const {
    Program program;
    const bool is_max_min = options_.objective != Objective::kCompletion;
    const int least = is_max_min ? program.add_variable(1, 0, Program::kUnlimited) : 0;
    const ClusterTopology& topology = *state.topology;
    std::vector<Share> shares;
    std::vector<int> variables;  // of each share
    Program::Terms all_devices;
    std::vector<Program::Terms> devices(static_cast<std::size_t>(topology.type_count()));
    for (const int number : active_.jobs()) {
      const Job& job = state.job(number);
      Program::Terms parts, throughput;
      const double usual = usual_speed(job, topology);
      for (const int type : list_types(job)) {
        const double filling = kFilling * job.workers / topology.devices();
        const int share = program.add_variable(is_max_min ? filling : job.workers / seconds(job, topology, type), 0, 1);
        shares.push_back({number, type});
        variables.push_back(share);
        parts.emplace_back(share, 1);
        throughput.emplace_back(share, job.workers * job.speed_on(type) / usual);
        all_devices.emplace_back(share, job.workers);
        if (type != kAnyType) devices[static_cast<std::size_t>(type)].emplace_back(share, job.workers);
      }
      if (parts.size() > 1) program.add_limit(parts, 0, 1);
      if (is_max_min) {
        throughput.emplace_back(least, -1);
        program.add_limit(throughput, 0, Program::kUnlimited);
      }
    }
    program.add_limit(all_devices, 0, topology.devices());
    for (int type = 0; type < topology.type_count(); ++type) {
      const Program::Terms& terms = devices[static_cast<std::size_t>(type)];
      if (!terms.empty()) program.add_limit(terms, 0, topology.devices(type));
    }
    MOTLEY_ASSIGN(const Program::Answer answer, program.maximise());
    for (std::size_t i = 0; i < shares.size(); ++i) {
      shares[i].part = answer.values[static_cast<std::size_t>(variables[i])];
    }
    return shares;
  }

  // If it runs on each type in proportion to its devices.
  static double usual_speed(const Job& job, const ClusterTopology& topology) {
    if (job.type_speeds.empty()) return 1;
    double speed = 0;
    for (const int type : list_types(job)) speed += job.speed_on(type) * topology.devices(type);
    return speed > 0 ? speed / topology.devices() : 1;
  }

  // Of an iteration.
  static double seconds(const Job& job, const ClusterTopology& topology, int type) {
    const double asked = job.elastic ? iteration_seconds(*job.elastic, topology.network, {job.workers}) : 1;
    return asked / speed(job, topology.network, {.workers = job.workers, .type = type});
  }

  // Jobs run where they are from slot to slot.
  void count_run_seconds(const State& state) {
    for (const int job : state.running) {
      if (state.job(job).type_speeds.empty()) continue;
      std::vector<double>& by_type = run_seconds_[job];
      by_type.resize(static_cast<std::size_t>(state.topology->type_count()));
      const double counted = std::accumulate(by_type.begin(), by_type.end(), 0.0);
      const int type = find_type(*state.topology, state.placement(job));
      if (type != kAnyType) by_type[static_cast<std::size_t>(type)] += state.run_seconds(job) - counted;
    }
  }

  double run_seconds_on(int job, int type) const {
    const auto found = run_seconds_.find(job);
    return found == run_seconds_.end() ? 0 : found->second[static_cast<std::size_t>(type)];
  }

  Ranking ranking_;
  std::unordered_map<int, std::vector<double>> run_seconds_;  // by type, of jobs to which types matter
  std::vector<std::tuple<double, int, int>> order_;           // rank, job, type; kept for its memory
};

}  // namespace

std::unique_ptr<Policy> make_gavel(const PolicyOptions& options) {
  return std::make_unique<Gavel>(options);
}

}  // namespace motley::scheduling
