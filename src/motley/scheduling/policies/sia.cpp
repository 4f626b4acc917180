// Sia (Jayaram Subramanya et al., SOSP 2023): in each round every job is offered, of each type of devices on which it
// can run, numbers of workers that are powers of two within a node or whole nodes, and a mixed-integer program
// gives it one of them or none,
//
//     minimise  sum over jobs i and offers j of A_ij G_ij^p  +  lambda sum_i (1 - sum_j A_ij),    p = -1/2, lambda
//     = 1.1,
//
// G its goodput by offer over that of the smallest one. An offer that would restart the job counts for less, by
// (age - restarts * restart_cost_seconds) / (age + restart_cost_seconds); jobs begin with the fewest workers that they
// can run with, and have twice as many in the next round at most. Goodput is throughput here: no batch sizes are
// adapted.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/program.h"
#include "motley/scheduling/policies/sharing.h"
#include "motley/scheduling/policies/slot_policy.h"
#include "motley/scheduling/trace/speed.h"

namespace motley::scheduling {
namespace {

constexpr double kPower = -0.5;
constexpr double kWaiting = 1.1;      // lambda
constexpr double kMinGoodput = 1e-3;  // beside the smallest offer's, however often the job restarted
constexpr Program::Limits kLimits = {.seconds = 10, .gap = 1e-3};

class Sia final : public SlotPolicy {
 public:
  explicit Sia(const PolicyOptions& options) : SlotPolicy("sia", options) {}

 private:
  Status take_in(const State& state) override {
    for (const int job : state.finished) restarts_.erase(job);
    return {};
  }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    MOTLEY_ASSIGN(const Given given, solve(state));
    std::vector<Change> changes = share(state, active_.jobs(), given.workers, options_.placement, given.types);
    for (const Change& change : changes) {
      if (!change.placement.empty() && state.run_seconds(change.job) > 0) ++restarts_[change.job];
    }
    return changes;
  }

  struct Offer {
    std::size_t place;  // among active jobs
    int workers;
    int type;
  };
  struct Given {
    std::vector<int> workers, types;  // of each active job
  };

  Result<Given> solve(const State& state) const {
    Program program;
    std::vector<Offer> offers;
    Program::Terms all_devices;
    std::vector<Program::Terms> devices(static_cast<std::size_t>(state.topology->type_count()));
    for (std::size_t i = 0; i < active_.jobs().size(); ++i) {
      const int number = active_.jobs()[i];
      std::vector<Offer> own;
      for (const int type : list_types(state.job(number))) {
        for (const int workers : compute_sizes(state, number, type)) own.push_back({i, workers, type});
      }
      double smallest = std::numeric_limits<double>::infinity();
      for (const Offer& offer : own) smallest = std::min(smallest, goodput(state, number, offer));
      Program::Terms one;
      for (const Offer& offer : own) {
        const double ratio = goodput(state, number, offer) / smallest * keeping(state, number, offer);
        const double cost = std::pow(std::max(kMinGoodput, ratio), kPower);
        one.emplace_back(program.add_variable(kWaiting - cost, 0, 1, true), 1);
        all_devices.emplace_back(one.back().first, offer.workers);
        if (offer.type != kAnyType) {
          devices[static_cast<std::size_t>(offer.type)].emplace_back(one.back().first, offer.workers);
        }
        offers.push_back(offer);
      }
      if (!one.empty()) program.add_limit(one, 0, 1);
    }
    program.add_limit(all_devices, 0, state.topology->devices());
    for (int type = 0; type < state.topology->type_count(); ++type) {
      const Program::Terms& terms = devices[static_cast<std::size_t>(type)];
      if (!terms.empty()) program.add_limit(terms, 0, state.topology->devices(type));
    }
    MOTLEY_ASSIGN(const Program::Answer answer, program.maximise(kLimits));
    Given given{std::vector<int>(active_.jobs().size()), std::vector<int>(active_.jobs().size(), kAnyType)};
    for (std::size_t i = 0; i < offers.size(); ++i) {
      if (answer.values[i] <= 0.5) continue;
      given.workers[offers[i].place] = offers[i].workers;
      given.types[offers[i].place] = offers[i].type;
    }
    return given;
  }

  // Powers of two within a node, whole nodes, and what the job runs with or asks for.
  std::vector<int> compute_sizes(const State& state, int number, int type) const {
    const Job& job = state.job(number);
    const int now = count_workers(state.placement(number));
    const int largest = std::max(1, state.topology->largest_node(type));
    int most = std::min(job.max_workers(), state.topology->devices(type));
    if (state.run_seconds(number) == 0) most = job.min_workers();  // as it is to be measured first
    if (now > 0) most = std::min(most, 2 * now);
    std::vector<int> sizes;
    const auto add = [&](int size) {
      if (job.min_workers() <= size && size <= most) sizes.push_back(size);
    };
    for (int size = 1; size < largest; size *= 2) add(size);
    for (int size = largest; size <= most; size += largest) add(size);
    add(job.min_workers());
    add(now);
    add(job.workers);
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
  }

  static double goodput(const State& state, int number, const Offer& offer) {
    RingPlace place = on_fewest_nodes(offer.workers, state.topology->largest_node(offer.type));
    place.type = offer.type;
    return speed(state.job(number), state.topology->network, place);
  }

  // What remains of an offer's goodput where it means a restart.
  double keeping(const State& state, int number, const Offer& offer) const {
    const Job& job = state.job(number);
    const Placement& now = state.placement(number);
    const bool stays = offer.workers == count_workers(now) && is_of_type(*state.topology, now, offer.type);
    if (state.run_seconds(number) == 0 || stays || !job.elastic) return 1;
    const double age = state.now - job.arrival;
    const auto found = restarts_.find(number);
    const int restarts = found == restarts_.end() ? 0 : found->second;
    const double cost = job.elastic->restart_cost_seconds;
    return std::max(0.0, age - restarts * cost) / std::max(slots_.seconds(), age + cost);
  }

  std::unordered_map<int, int> restarts_;  // of jobs that have not finished
};

}  // namespace

std::unique_ptr<Policy> make_sia(const PolicyOptions& options) {
  return std::make_unique<Sia>(options);
}

}  // namespace motley::scheduling
