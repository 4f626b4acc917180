// Policies that fix a job's devices when it arrives and never preempt: every device works through a queue. They differ
// in how they choose devices.
//
// Devices are numbered, those of the first server first.
#pragma once

#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// Jobs in the order of the queues, and the devices of each.
struct Queues {
  std::vector<int> jobs;
  std::vector<std::vector<int>> devices;  // of the job at the same place

  void add(int job, std::vector<int> its_devices) {
    jobs.push_back(job);
    devices.push_back(std::move(its_devices));
  }
};

// What there is to plan.
struct QueueInput {
  const State& state;
  const std::vector<int>& server_of;  // of each device
  Queues running;
  std::vector<int> waiting;  // by arrival
};

class DeviceQueues : public Policy {
 public:
  Result<Decision> decide(const State& state) final;

 protected:
  // Queues for all that waits. Called whenever jobs have arrived.
  virtual Queues plan(const QueueInput& input) = 0;

 private:
  std::vector<int> server_of_;
  std::vector<int> job_on_;             // of each device; -1: it is free
  std::vector<std::vector<int>> held_;  // of each job: its devices while it runs
  Queues waiting_;
};

// Seconds for which each device is used by what runs.
std::vector<double> use_so_far(const QueueInput& input);

// Seconds until all is done by these queues, contention included, if nothing more arrives.
double makespan_of(const QueueInput& input, const Queues& queues);

}  // namespace motley::scheduling
