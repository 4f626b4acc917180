// Policies that solve a program over the jobs and types of devices in every slot
// (motley/scheduling/policies/program.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"
#include "motley/scheduling/policies/program.h"

namespace motley::scheduling {
namespace {

// The limits of a program that come from the devices that there are.
class DeviceLimits {
 public:
  explicit DeviceLimits(const ClusterTopology& topology)
      : topology_(topology), by_type_(index(topology.type_count())) {}

  // The variable takes so many devices of this type.
  void take(int variable, int type, int devices) {
    all_.emplace_back(variable, devices);
    if (type != kAnyType) by_type_[index(type)].emplace_back(variable, devices);
  }
  void add_to(Program& program) const {
    program.add_limit(all_, 0, topology_.devices());
    for (int type = 0; type < topology_.type_count(); ++type) {
      if (!by_type_[index(type)].empty()) program.add_limit(by_type_[index(type)], 0, topology_.devices(type));
    }
  }

 private:
  const ClusterTopology& topology_;
  Program::Terms all_;
  std::vector<Program::Terms> by_type_;
};

constexpr double kFilling = 1e-3;  // what the sum of shares counts beside the least, so that nothing stays free

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
class Gavel final : public SlotPolicy {
 public:
  explicit Gavel(const PolicyOptions& options) : SlotPolicy("gavel", options), ranking_(options.placement) {}

 private:
  Status take_in(const State& state) override {
    for (const int job : state.finished) run_seconds_.erase(job);
    return {};
  }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    if (state.topology->devices() == 0) return std::vector<Change>();
    count_run_seconds(state);
    MOTLEY_ASSIGN(const std::vector<Share> shares, solve(state));
    order_.clear();
    for (const Share& share : shares) {
      const double age = std::max(options_.slot_seconds, state.now - state.job(share.job).arrival);
      const double run = share.type == kAnyType ? state.run_seconds(share.job) : run_seconds_on(share.job, share.type);
      const double had = (run + options_.slot_seconds) / (age + options_.slot_seconds);
      // Who has not trained since it started keeps its devices, or restarts longer than a slot would never end.
      const bool keeps = state.progress[index(share.job)].is_restarting(state.now) &&
                         is_of_type(*state.topology, state.placement(share.job), share.type);
      const double rank = keeps ? -std::numeric_limits<double>::infinity() : -share.part / had;
      order_.emplace_back(rank, share.job, share.type);
    }
    std::ranges::sort(order_);
    ranking_.begin(state);
    for (const auto& [rank, job, type] : order_) {
      if (ranking_.is_full()) break;
      if (!ranking_.got(job)) ranking_.offer(job, type);
    }
    return ranking_.end();
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
    DeviceLimits devices(topology);
    for (const int number : state.active) {
      const Job& job = state.job(number);
      if (max_devices(topology, job) == 0) continue;  // until its nodes are back; else the least share would be 0
      Program::Terms parts, throughput;
      const double usual = usual_speed(job, topology);
      for (const int type : list_types(job)) {
        const double filling = kFilling * job.workers / topology.devices();
        const int share = program.add_variable(is_max_min ? filling : job.workers / seconds(job, topology, type), 0, 1);
        shares.push_back({number, type});
        parts.emplace_back(share, 1);
        throughput.emplace_back(share, job.workers * job.speed_on(type) / usual);
        devices.take(share, type, job.workers);
      }
      if (parts.size() > 1) program.add_limit(parts, 0, 1);
      if (is_max_min) {
        throughput.emplace_back(least, -1);
        program.add_limit(throughput, 0, Program::kUnlimited);
      }
    }
    devices.add_to(program);
    MOTLEY_ASSIGN(const Program::Answer answer, program.maximise());
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i].part = answer.values[i + (is_max_min ? 1 : 0)];
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
      by_type.resize(index(state.topology->type_count()));
      const double counted = std::accumulate(by_type.begin(), by_type.end(), 0.0);
      const int type = find_type(*state.topology, state.placement(job));
      if (type != kAnyType) by_type[index(type)] += state.run_seconds(job) - counted;
    }
  }

  double run_seconds_on(int job, int type) const {
    const auto found = run_seconds_.find(job);
    return found == run_seconds_.end() ? 0 : found->second[index(type)];
  }

  Ranking ranking_;
  std::unordered_map<int, std::vector<double>> run_seconds_;  // by type, of jobs to which types matter
  std::vector<std::tuple<double, int, int>> order_;           // rank, job, type; kept for its memory
};

constexpr double kPower = -0.5;
constexpr double kWaiting = 1.1;      // lambda
constexpr double kMinGoodput = 1e-3;  // beside the smallest offer's, however often the job restarted
constexpr Program::Limits kLimits = {.seconds = 10, .gap = 1e-3};

// Sia (Jayaram Subramanya et al., SOSP 2023): in each round every job is offered, of each type of devices on which it
// can run, numbers of workers that are powers of two within a node or whole nodes, and a mixed-integer program
// gives it one of them or none,
//
//     minimise  sum over jobs i and offers j of A_ij G_ij^p  +  lambda sum_i (1 - sum_j A_ij),    p = -1/2, lambda
//     = 1.1,
//
// G its goodput by offer over that of the smallest one. An offer that would restart a job that runs counts for less, by
// (age - restarts * restart_cost_seconds) / (age + restart_cost_seconds); a job that is restarting keeps what it has;
// jobs begin with the fewest workers that they can run with, and have twice as many as ever before at most. Large jobs
// are placed first. Goodput is the speed that a job says of itself: no batch sizes are adapted here.
class Sia final : public SlotPolicy {
 public:
  explicit Sia(const PolicyOptions& options) : SlotPolicy("sia", options) {}

 private:
  Status take_in(const State& state) override {
    for (const int job : state.finished) past_.erase(job);
    return {};
  }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    for (const int job : state.running) {
      int& most = past_[job].most_workers;
      most = std::max(most, count_workers(state.placement(job)));
    }
    MOTLEY_ASSIGN(const Given given, solve(state));
    std::vector<std::size_t> order(state.active.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t place) { return given.workers[place]; });
    std::vector<int> jobs;
    Given ordered;
    for (const std::size_t place : order) {
      jobs.push_back(state.active[place]);
      ordered.workers.push_back(given.workers[place]);
      ordered.types.push_back(given.types[place]);
    }
    std::vector<Change> changes = share(state, jobs, ordered.workers, options_.placement, ordered.types);
    for (const Change& change : changes) {
      if (!change.placement.empty() && state.run_seconds(change.job) > 0) ++past_[change.job].restarts;
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
    DeviceLimits devices(*state.topology);
    for (std::size_t i = 0; i < state.active.size(); ++i) {
      const int number = state.active[i];
      std::vector<Offer> own;
      const Placement& placement = state.placement(number);
      const bool stays = state.progress[index(number)].is_restarting(state.now);
      for (const int type : list_types(state.job(number))) {
        for (const int workers : compute_sizes(state, number, type)) {
          const bool is_there = workers == count_workers(placement) && is_of_type(*state.topology, placement, type);
          if (is_there || !stays) own.push_back({i, workers, type});
        }
      }
      double smallest = std::numeric_limits<double>::infinity();
      for (const Offer& offer : own) smallest = std::min(smallest, goodput(state, number, offer));
      Program::Terms one;
      for (const Offer& offer : own) {
        const double ratio = goodput(state, number, offer) / smallest * keeping(state, number, offer);
        const double cost = std::pow(std::max(kMinGoodput, ratio), kPower);
        one.emplace_back(program.add_variable(kWaiting - cost, 0, 1, true), 1);
        devices.take(one.back().first, offer.type, offer.workers);
        offers.push_back(offer);
      }
      if (!one.empty()) program.add_limit(one, 0, 1);
    }
    devices.add_to(program);
    MOTLEY_ASSIGN(const Program::Answer answer, program.maximise(kLimits));
    Given given{std::vector<int>(state.active.size()), std::vector<int>(state.active.size(), kAnyType)};
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
    if (const auto past = past_.find(number); past != past_.end() && past->second.most_workers > 0) {
      most = std::min(most, 2 * past->second.most_workers);
    }
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
    if (now.empty() || stays || !job.elastic) return 1;
    const double age = state.now - job.arrival;
    const auto found = past_.find(number);
    const int restarts = found == past_.end() ? 0 : found->second.restarts;
    const double cost = job.elastic->restart_cost_seconds;
    return age <= cost ? 1 : std::max(0.0, age - restarts * cost) / (age + cost);
  }

  struct Past {
    int restarts = 0;
    int most_workers = 0;
  };
  std::unordered_map<int, Past> past_;  // of jobs that have not finished
};

}  // namespace

std::unique_ptr<Policy> make_gavel(const PolicyOptions& options) {
  return std::make_unique<Gavel>(options);
}

std::unique_ptr<Policy> make_sia(const PolicyOptions& options) {
  return std::make_unique<Sia>(options);
}

}  // namespace motley::scheduling
