#include "motley/scheduling/policies/device_queues.h"

#include <algorithm>
#include <map>

#include "motley/scheduling/simulator/simulator.h"

namespace motley::scheduling {
namespace {

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

std::vector<int> server_of_devices(const Machines& machines) {
  std::vector<int> server_of;
  for (int server = 0; server < static_cast<int>(machines.servers.size()); ++server) {
    server_of.insert(server_of.end(), index(machines.servers[index(server)].devices), server);
  }
  return server_of;
}

Placement placement_of(const std::vector<int>& devices, const std::vector<int>& server_of) {
  std::map<int, int> workers;
  for (const int device : devices) ++workers[server_of[index(device)]];
  Placement placement;
  for (const auto& [server, count] : workers) placement.push_back({server, count});
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
  if (server_of_.empty()) {
    server_of_ = server_of_devices(*state.machines);
    job_on_.assign(server_of_.size(), -1);
    held_.resize(state.jobs.size());
  }
  for (const int job : state.finished) {
    for (const int device : held_[index(job)]) job_on_[index(device)] = -1;
    held_[index(job)].clear();
  }
  if (!state.arrived.empty()) {
    QueueInput input{state, server_of_, {}, waiting_.jobs};
    for (const int job : state.running) input.running.add(job, held_[index(job)]);
    input.waiting.insert(input.waiting.end(), state.arrived.begin(), state.arrived.end());
    std::ranges::sort(input.waiting);
    waiting_ = plan(input);
  }

  // A job starts when all its devices are free and nobody before it waits for one of them.
  Decision decision;
  std::vector<char> is_claimed(server_of_.size());
  Queues still;
  for (std::size_t i = 0; i < waiting_.jobs.size(); ++i) {
    const int job = waiting_.jobs[i];
    std::vector<int>& devices = waiting_.devices[i];
    if (std::ranges::all_of(devices,
                            [&](int device) { return job_on_[index(device)] < 0 && is_claimed[index(device)] == 0; })) {
      decision.changes.push_back({job, placement_of(devices, server_of_)});
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
  std::vector<double> use(input.server_of.size());
  for (std::size_t i = 0; i < input.running.jobs.size(); ++i) {
    for (const int device : input.running.devices[i])
      use[index(device)] = input.state.left_seconds(input.running.jobs[i]);
  }
  return use;
}

double makespan_of(const QueueInput& input, const Queues& queues) {
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
  const auto outcome = simulate(jobs, *input.state.machines, policy);
  return outcome ? outcome->end : std::numeric_limits<double>::infinity();
}

}  // namespace motley::scheduling
