// A scheduling service that is killed at any moment: its controller and its store are production's, on the simulated
// disk. Its executor is a fake that keeps what executors promise: an attempt begins once at most, and outlives the
// service. Clients ask again until they are answered.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "motley/scheduling/service/controller.h"
#include "tests/simulation/observer.h"

namespace motley::simulation {

class SchedulerJob {
 public:
  // Outside of the cluster. `seed`: of what its database draws. Whether nodes fail, for a while.
  SchedulerJob(Observer& observer, std::uint64_t seed, bool has_node_failures);

  // The service's main function, which ends with 0 once all jobs are over.
  int run(const std::filesystem::path& folder);
  // Attempts under way are lost.
  void lose_power();
  bool is_done() const { return is_done_; }

 private:
  struct Run {
    double ends = 0;    // by itself, with `code`
    double stops = -1;  // after it was asked to; -1: it was not
    int code = 0;
    bool is_lost = false;
    std::optional<train::WorkerCount> count;  // of one that can be resized in place
    std::vector<scheduling::NodeAllocation> nodes = {};
  };
  class FakeExecutor;
  bool runs_now(const Run& run) const;
  int give_up(const Error& error) const;
  void check_known(const scheduling::Controller& controller);
  void check_end(const scheduling::Controller& controller);
  void submit_next(scheduling::Controller& controller);
  std::vector<std::string> fail_nodes();
  bool is_over(const scheduling::Controller& controller) const;

  Observer& observer_;
  const bool has_node_failures_;
  int node_failures_ = 0;
  std::map<std::string, double> down_until_;  // by node
  std::map<std::pair<int, int>, Run> runs_;   // by job and attempt
  std::set<std::string> acknowledged_;        // names of jobs
  bool is_done_ = false;
};

}  // namespace motley::simulation
