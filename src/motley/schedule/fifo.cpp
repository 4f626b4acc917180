// First in, first out. Nothing is preempted, so that a decision costs what it starts.
#include <deque>

#include "motley/schedule/policies.h"

namespace motley::schedule {
namespace {

class Fifo final : public Policy {
 public:
  explicit Fifo(const PolicyOptions& options) : options_(options) {}

  std::string name() const override { return "fifo"; }

  Result<Decision> decide(const State& state) override {
    waiting_.insert(waiting_.end(), state.arrived.begin(), state.arrived.end());
    Decision decision;
    if (waiting_.empty()) return decision;
    Room room(*state.machines, options_.packing);
    for (const int job : state.running) room.take(state.job(job), state.placement(job));
    while (!waiting_.empty()) {
      const int job = waiting_.front();
      Placement placement = room.place(state.job(job), state.job(job).workers);
      if (placement.empty()) break;
      room.take(state.job(job), placement);
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
