// Policies that fix a job's devices when it arrives and never preempt: every device works through a queue. They differ
// in how they choose devices.
//
// Devices are numbered, those of the first node first.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"
#include "motley/scheduling/simulator/simulator.h"

namespace motley::scheduling {
namespace {

struct Queued {
  int job = 0;
  std::vector<int> devices;
};
using Queues = std::vector<Queued>;  // in their order

// What there is to plan.
struct QueueInput {
  const State& state;
  const std::vector<int>& device_node;  // of each device
  Queues running;
  std::vector<int> waiting;  // by arrival
};

// Queues for all that waits.
using Plan = std::function<Queues(const QueueInput& input)>;

std::vector<int> node_of_devices(const ClusterTopology& topology) {
  std::vector<int> device_node;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()); ++node) {
    device_node.insert(device_node.end(), index(topology.nodes[index(node)].devices), node);
  }
  return device_node;
}

Placement to_placement(const std::vector<int>& devices, const std::vector<int>& device_node) {
  std::map<int, int> workers;
  for (const int device : devices) ++workers[device_node[index(device)]];
  Placement placement;
  for (const auto& [node, count] : workers) placement.push_back({node, count});
  return placement;
}

class DeviceQueues final : public Policy {
 public:
  // The plan is made anew whenever jobs have arrived.
  DeviceQueues(std::string name, Plan plan) : name_(std::move(name)), plan_(std::move(plan)) {}

  std::string name() const override { return name_; }

  Result<Decision> decide(const State& state) override {
    MOTLEY_TRY(check_alike(state, name_));
    if (!device_nodes_.empty() && std::ssize(device_nodes_) != state.topology->devices()) {
      return fail(ErrorCode::kInvalidInput, "--policy: '{}' knows no failures; accepted: without, or another policy",
                  name_);
    }
    if (device_nodes_.empty()) {
      device_nodes_ = node_of_devices(*state.topology);
      job_on_.assign(device_nodes_.size(), -1);
      held_.resize(state.jobs.size());
    }
    for (const int job : state.finished) {
      for (const int device : held_[index(job)]) job_on_[index(device)] = -1;
      held_[index(job)].clear();
    }
    if (!state.arrived.empty()) {
      QueueInput input{state, device_nodes_, {}, {state.arrived.begin(), state.arrived.end()}};
      for (const int job : state.running) input.running.push_back({job, held_[index(job)]});
      for (const Queued& one : waiting_) input.waiting.push_back(one.job);
      std::ranges::sort(input.waiting);
      waiting_ = plan_(input);
    }

    // A job starts when all its devices are free and nobody before it waits for one of them.
    Decision decision;
    std::vector<char> is_claimed(device_nodes_.size());
    Queues still;
    for (auto& [job, devices] : waiting_) {
      if (std::ranges::all_of(
              devices, [&](int device) { return job_on_[index(device)] < 0 && is_claimed[index(device)] == 0; })) {
        decision.changes.push_back({job, to_placement(devices, device_nodes_)});
        for (const int device : devices) job_on_[index(device)] = job;
        held_[index(job)] = std::move(devices);
      } else {
        for (const int device : devices) is_claimed[index(device)] = 1;
        still.push_back({job, std::move(devices)});
      }
    }
    waiting_ = std::move(still);
    return decision;
  }

 private:
  const std::string name_;
  const Plan plan_;
  std::vector<int> device_nodes_;
  std::vector<int> job_on_;             // of each device; -1: it is free
  std::vector<std::vector<int>> held_;  // of each job: its devices while it runs
  Queues waiting_;
};

// Seconds for which each device is used by what runs.
std::vector<double> use_so_far(const QueueInput& input) {
  std::vector<double> use(input.device_node.size());
  for (const auto& [job, devices] : input.running) {
    for (const int device : devices) use[index(device)] = input.state.left_seconds(job);
  }
  return use;
}

// Seconds until all is done by these queues, contention included, if nothing more arrives.
double compute_makespan(const QueueInput& input, const Queues& queues) {
  std::vector<Job> jobs;
  Queues all;
  for (const Queues* some : {&input.running, &queues}) {
    for (const auto& [number, devices] : *some) {
      Job job = input.state.job(number);
      job.duration = input.state.left_seconds(number);
      job.arrival = 0;
      all.push_back({static_cast<int>(jobs.size()), devices});
      jobs.push_back(std::move(job));
    }
  }
  DeviceQueues policy("given queues", [&](const QueueInput&) { return all; });
  const auto outcome = simulate(jobs, *input.state.topology, policy);
  return outcome ? outcome->end : std::numeric_limits<double>::infinity();
}

std::vector<int> all_devices(const QueueInput& input) {
  std::vector<int> devices(input.device_node.size());
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

// --- By one rule, whatever the contention: what SJF-BCO is compared with

// A number for each device, whose use so far is given; those with the least are taken.
using Ranks = std::function<std::vector<double>(const std::vector<double>& use)>;

// Each job in the order of arrivals.
Queues queue_by_ranks(const QueueInput& input, const Ranks& ranks) {
  std::vector<double> use = use_so_far(input);
  Queues queues;
  for (const int job : input.waiting) {
    const std::vector<double> rank = ranks(use);
    std::vector<int> devices = all_devices(input);
    std::ranges::stable_sort(devices, {}, [&](int device) { return rank[index(device)]; });
    devices.resize(index(input.state.job(job).workers));
    double ready = 0;
    for (const int device : devices) ready = std::max(ready, use[index(device)]);
    for (const int device : devices) use[index(device)] = ready + input.state.left_seconds(job);
    queues.push_back({job, std::move(devices)});
  }
  return queues;
}

// --- SJF-BCO (Yu, Ji, Rajan, Liu, MobiHoc 2022, algorithms 1 to 3) for the least makespan of jobs with fixed numbers
// of workers.
//
// Jobs are taken by their number of workers, fewest first. One that asks for at most kappa gets the least used of all
// devices; a larger one the least used devices of as few nodes as have enough of them, those with least use on
// average first, so that few rings meet. A device may be used no longer than a limit. For every kappa the limit is
// bisected to the least at which all jobs find devices, and the queues with the least makespan are kept: here of those
// that the simulator itself foresees, contention included.
constexpr int kBisections = 20;

std::vector<int> on_few_nodes(const QueueInput& input, const std::vector<double>& use, int workers) {
  const std::vector<Node>& nodes = input.state.topology->nodes;
  std::vector<double> mean(nodes.size());
  for (std::size_t device = 0; device < use.size(); ++device) {
    const int node = input.device_node[device];
    mean[index(node)] += use[device] / nodes[index(node)].devices;
  }
  std::vector<int> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int node) { return mean[index(node)]; });
  std::vector<char> is_chosen(nodes.size());
  int count = 0;
  for (auto node = order.begin(); count < workers && node != order.end(); ++node) {
    is_chosen[index(*node)] = 1;
    count += nodes[index(*node)].devices;
  }
  std::vector<int> devices = all_devices(input);
  std::erase_if(devices, [&](int device) { return is_chosen[index(input.device_node[index(device)])] == 0; });
  return devices;
}

// Nothing where a job does not find enough devices within the limit.
std::optional<Queues> within(const QueueInput& input, const std::vector<int>& order, int kappa, double limit) {
  std::vector<double> use = use_so_far(input);
  Queues queues;
  for (const int job : order) {
    const double seconds = input.state.left_seconds(job);
    const int workers = input.state.job(job).workers;
    std::vector<int> devices = workers <= kappa ? all_devices(input) : on_few_nodes(input, use, workers);
    std::erase_if(devices, [&](int device) { return use[index(device)] + seconds > limit; });
    if (static_cast<int>(devices.size()) < workers) return std::nullopt;
    std::ranges::stable_sort(devices, {}, [&](int device) { return use[index(device)]; });
    devices.resize(index(workers));
    for (const int device : devices) use[index(device)] += seconds;
    queues.push_back({job, std::move(devices)});
  }
  return queues;
}

std::optional<Queues> with_least_limit(const QueueInput& input, const std::vector<int>& order, int kappa) {
  double high = std::ranges::max(use_so_far(input));
  double low = 0;
  for (const int job : order) {
    high += input.state.left_seconds(job);
    low = std::max(low, input.state.left_seconds(job));
  }
  std::optional<Queues> queues = within(input, order, kappa, high);
  for (int step = 0; step < kBisections; ++step) {
    const double limit = (low + high) / 2;
    if (std::optional<Queues> found = within(input, order, kappa, limit)) {
      queues = std::move(found);
      high = limit;
    } else {
      low = limit;
    }
  }
  return queues;
}

Queues plan_sjf_bco(const QueueInput& input) {
  std::vector<int> order = input.waiting;
  std::ranges::stable_sort(order, {}, [&](int job) { return input.state.job(job).workers; });
  Queues best;
  double best_makespan = std::numeric_limits<double>::infinity();
  std::vector<int> kappas = {0};
  for (const int job : order) {
    if (input.state.job(job).workers != kappas.back()) kappas.push_back(input.state.job(job).workers);
  }
  for (const int kappa : kappas) {
    std::optional<Queues> queues = with_least_limit(input, order, kappa);
    const double makespan = compute_makespan(input, *queues);
    if (makespan < best_makespan) {
      best_makespan = makespan;
      best = std::move(*queues);
    }
  }
  return best;
}

}  // namespace

std::unique_ptr<Policy> make_sjf_bco(const PolicyOptions&) {
  return std::make_unique<DeviceQueues>("sjf-bco", plan_sjf_bco);
}

std::unique_ptr<Policy> make_list_scheduling(const PolicyOptions&) {
  return std::make_unique<DeviceQueues>("list-scheduling", [](const QueueInput& input) {
    return queue_by_ranks(input, [](const std::vector<double>& use) { return use; });
  });
}

std::unique_ptr<Policy> make_random_devices(const PolicyOptions&) {
  return std::make_unique<DeviceQueues>("random-devices", [random = Random(0)](const QueueInput& input) mutable {
    return queue_by_ranks(input, [&](const std::vector<double>& use) {
      std::vector<double> ranks(use.size());
      std::ranges::generate(ranks, [&] { return random.uniform(); });
      return ranks;
    });
  });
}

}  // namespace motley::scheduling
