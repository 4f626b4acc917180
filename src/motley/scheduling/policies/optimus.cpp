// Optimus (Peng et al., EuroSys 2018), for jobs whose time to go is known: everybody who is there is given the fewest
// workers that it can run with, by arrival; then each further worker goes to the job whose time to go it shortens most,
// per worker. Decided anew in every slot.
#include <queue>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/sharing.h"
#include "motley/scheduling/policies/slot_policy.h"
#include "motley/scheduling/trace/speed.h"

namespace motley::scheduling {
namespace {

class Optimus final : public SlotPolicy {
 public:
  explicit Optimus(const PolicyOptions& options) : SlotPolicy("optimus", options) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override {
    return share(state, active_.jobs(), shares(state), options_.placement);
  }

  std::vector<int> shares(const State& state) {
    largest_ = state.topology->largest_node();
    const std::vector<int>& jobs = active_.jobs();
    std::vector<int> workers(jobs.size());
    int left = state.topology->devices();
    using Gain = std::pair<double, std::size_t>;  // seconds sooner for another worker, place among active jobs
    std::priority_queue<Gain> gains;
    const auto offer = [&](std::size_t i) {
      if (workers[i] < state.job(jobs[i]).max_workers()) gains.emplace(gain(state, jobs[i], workers[i]), i);
    };
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const int least = state.job(jobs[i]).min_workers();
      if (least > left) continue;
      workers[i] = least;
      left -= least;
      offer(i);
    }
    while (left > 0 && !gains.empty()) {
      const auto [seconds, i] = gains.top();
      gains.pop();
      if (seconds <= 0) break;
      ++workers[i];
      --left;
      offer(i);
    }
    return workers;
  }

  double gain(const State& state, int number, int workers) const {
    return to_go(state, number, workers) - to_go(state, number, workers + 1);
  }

  // Seconds, as fast as the job is on as few nodes as can be.
  double to_go(const State& state, int number, int workers) const {
    return state.left_seconds(number) /
           speed(state.job(number), state.topology->network, on_fewest_nodes(workers, largest_));
  }

  int largest_ = 0;  // devices of the largest node
};

}  // namespace

std::unique_ptr<Policy> make_optimus(const PolicyOptions& options) {
  return std::make_unique<Optimus>(options);
}

}  // namespace motley::scheduling
