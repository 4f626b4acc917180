// First in, first out. Nothing is preempted, so that a decision costs what it starts.
#include <deque>

#include "motley/schedule/policies.h"

namespace motley::schedule {
namespace {

class Fifo final : public Policy {
 public:
  explicit Fifo(const PolicyOptions& options) : options_(options) {}

  std::string name() const override { return "fifo"; }

  Decision decide(const State& state) override {
    waiting_.insert(waiting_.end(), state.arrived.begin(), state.arrived.end());
    Decision decision;
    Occupancy occupancy = *state.occupancy;
    while (!waiting_.empty()) {
      const int job = waiting_.front();
      Placement placement =
          place(*state.machines, occupancy, state.jobs[static_cast<std::size_t>(job)].workers, options_.packing);
      if (placement.empty()) break;
      occupancy.take(placement);
      decision.changes.push_back({job, std::move(placement)});
      waiting_.pop_front();
    }
    return decision;
  }

 private:
  const PolicyOptions options_;
  std::deque<int> waiting_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const PolicyOptions& options) {
  return std::make_unique<Fifo>(options);
}

}  // namespace motley::schedule
