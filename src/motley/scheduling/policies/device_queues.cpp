#include "motley/scheduling/policies/device_queues.h"

#include <algorithm>
#include <map>

#include "motley/scheduling/simulator/simulator.h"

namespace motley::scheduling {
namespace {

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

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

// Queues as they are given.
class Given final : public DeviceQueues {
 public:
  explicit Given(Queues queues) : queues_(std::move(queues)) {}
  std::string name() const override { return "given queues"; }

 protected:
  Queues plan(const QueueInput&) override { return queues_; }

 private:
  Queues queues_;
};

}  // namespace

Result<Decision> DeviceQueues::decide(const State& state) {
  MOTLEY_TRY(check_alike(state, name()));
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
    QueueInput input{state, device_nodes_, {}, waiting_.jobs};
    for (const int job : state.running) input.running.add(job, held_[index(job)]);
    input.waiting.insert(input.waiting.end(), state.arrived.begin(), state.arrived.end());
    std::ranges::sort(input.waiting);
    waiting_ = plan(input);
  }

  // A job starts when all its devices are free and nobody before it waits for one of them.
  Decision decision;
  std::vector<char> is_claimed(device_nodes_.size());
  Queues still;
  for (std::size_t i = 0; i < waiting_.jobs.size(); ++i) {
    const int job = waiting_.jobs[i];
    std::vector<int>& devices = waiting_.devices[i];
    if (std::ranges::all_of(devices,
                            [&](int device) { return job_on_[index(device)] < 0 && is_claimed[index(device)] == 0; })) {
      decision.changes.push_back({job, to_placement(devices, device_nodes_)});
      for (const int device : devices) job_on_[index(device)] = job;
      held_[index(job)] = std::move(devices);
    } else {
      for (const int device : devices) is_claimed[index(device)] = 1;
      still.add(job, std::move(devices));
    }
  }
  waiting_ = std::move(still);
  return decision;
}

std::vector<double> use_so_far(const QueueInput& input) {
  std::vector<double> use(input.device_node.size());
  for (std::size_t i = 0; i < input.running.jobs.size(); ++i) {
    for (const int device : input.running.devices[i])
      use[index(device)] = input.state.left_seconds(input.running.jobs[i]);
  }
  return use;
}

double compute_makespan(const QueueInput& input, const Queues& queues) {
  std::vector<Job> jobs;
  Queues all;
  for (const Queues* some : {&input.running, &queues}) {
    for (std::size_t i = 0; i < some->jobs.size(); ++i) {
      Job job = input.state.job(some->jobs[i]);
      job.duration = input.state.left_seconds(some->jobs[i]);
      job.arrival = 0;
      all.add(static_cast<int>(jobs.size()), some->devices[i]);
      jobs.push_back(std::move(job));
    }
  }
  Given policy(std::move(all));
  const auto outcome = simulate(jobs, *input.state.topology, policy);
  return outcome ? outcome->end : std::numeric_limits<double>::infinity();
}

}  // namespace motley::scheduling
