// First in, first out. Nothing is preempted, so that a decision costs what it starts.
#include "motley/scheduling/policies/active_jobs.h"
#include "motley/scheduling/policies/policies.h"

namespace motley::scheduling {
namespace {

class Fifo final : public Policy {
 public:
  explicit Fifo(const PolicyOptions& options) : options_(options) {}

  std::string name() const override { return "fifo"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    Decision decision;
    if (active_.jobs().size() == state.running.size()) return decision;
    Room room(*state.machines, options_.packing);
    for (const int job : state.running) room.take(state.job(job), state.placement(job));
    for (const int job : active_.jobs()) {
      if (!state.placement(job).empty()) continue;
      Placement placement = room.place(state.job(job), state.job(job).workers);
      if (placement.empty()) break;
      room.take(state.job(job), placement);
      decision.changes.push_back({job, std::move(placement)});
    }
    return decision;
  }

 private:
  const PolicyOptions options_;
  ActiveJobs active_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const PolicyOptions& options) {
  return std::make_unique<Fifo>(options);
}

}  // namespace motley::scheduling
