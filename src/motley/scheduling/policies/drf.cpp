// Dominant resource fairness (Ghodsi et al., NSDI 2011) where devices are the only resource: workers are dealt out one
// by one, each to the job that has fewest, until nobody can use more or nothing is left. A job that got fewer than it
// can run with gives them back. Decided anew in every slot.
#include <queue>

#include "motley/scheduling/policies/active_jobs.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/sharing.h"

namespace motley::scheduling {
namespace {

class Drf final : public Policy {
 public:
  explicit Drf(const PolicyOptions& options) : options_(options), slots_(options.slot_seconds) {}

  std::string name() const override { return "drf"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    Decision decision;
    if (slots_.begins(state.now)) decision.changes = share(state, active_.jobs(), shares(state), options_.packing);
    if (!active_.jobs().empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  // How many workers each active job gets.
  std::vector<int> shares(const State& state) const {
    std::vector<int> workers(active_.jobs().size());
    using Share = std::pair<int, std::size_t>;  // workers, place among active jobs
    std::priority_queue<Share, std::vector<Share>, std::greater<>> fewest;
    for (std::size_t i = 0; i < workers.size(); ++i) fewest.emplace(0, i);
    int left = state.machines->devices();
    while (left > 0 && !fewest.empty()) {
      const auto [had, i] = fewest.top();
      fewest.pop();
      const Job& job = state.job(active_.jobs()[i]);
      const int more = had == 0 ? job.least() : 1;
      if (more > left) continue;
      workers[i] += more;
      left -= more;
      if (workers[i] < job.most()) fewest.emplace(workers[i], i);
    }
    return workers;
  }

  const PolicyOptions options_;
  ActiveJobs active_;
  Slots slots_;
};

}  // namespace

std::unique_ptr<Policy> make_drf(const PolicyOptions& options) {
  return std::make_unique<Drf>(options);
}

}  // namespace motley::scheduling
