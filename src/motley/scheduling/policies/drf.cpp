// Dominant resource fairness (Ghodsi et al., NSDI 2011) where devices are the only resource: workers are dealt out one
// by one, each to the job that has fewest, until nobody can use more or nothing is left. A job that got fewer than it
// can run with gives them back. Decided anew in every slot.
#include <queue>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/sharing.h"
#include "motley/scheduling/policies/slot_policy.h"

namespace motley::scheduling {
namespace {

class Drf final : public SlotPolicy {
 public:
  explicit Drf(const PolicyOptions& options) : SlotPolicy("drf", options) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override {
    return share(state, active_.jobs(), shares(state), options_.placement);
  }

  // How many workers each active job gets.
  std::vector<int> shares(const State& state) const {
    std::vector<int> workers(active_.jobs().size());
    using Share = std::pair<int, std::size_t>;  // workers, place among active jobs
    std::priority_queue<Share, std::vector<Share>, std::greater<>> fewest;
    for (std::size_t i = 0; i < workers.size(); ++i) fewest.emplace(0, i);
    int left = state.topology->devices();
    while (left > 0 && !fewest.empty()) {
      const auto [had, i] = fewest.top();
      fewest.pop();
      const Job& job = state.job(active_.jobs()[i]);
      const int more = had == 0 ? job.min_workers() : 1;
      if (more > left) continue;
      workers[i] += more;
      left -= more;
      if (workers[i] < job.max_workers()) fewest.emplace(workers[i], i);
    }
    return workers;
  }
};

}  // namespace

std::unique_ptr<Policy> make_drf(const PolicyOptions& options) {
  return std::make_unique<Drf>(options);
}

}  // namespace motley::scheduling
