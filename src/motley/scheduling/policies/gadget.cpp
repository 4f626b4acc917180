// GADGET as it was published, as far as a cluster can run what it decides: its greedy choice in every slot, with the
// slot problem relaxed and rounded (motley/scheduling/policies/rounding.h). Its rounding may give more than there is,
// and counts on nodes and links to bear it; here mappings have to fit as a whole, draws that do not fit beside the
// ones before are left out, and the best of some drawings is taken. Who is left out has nothing in that slot.
//
// It knows no cost of moving, and draws anew in every slot.
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/rounding.h"
#include "motley/scheduling/policies/slot_policy.h"
#include "motley/scheduling/policies/slot_utility.h"

namespace motley::scheduling {
namespace {

constexpr int kDrawings = 20;  // u_b

class Gadget final : public SlotPolicy {
 public:
  explicit Gadget(const PolicyOptions& options) : SlotPolicy("gadget", options) {}

 private:
  Status take_in(const State& state) override { return check_alike(state, name()); }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    const std::vector<int>& jobs = active_.jobs();
    const SlotProblem problem =
        slot_problem(state, jobs, jobs.size(), *state.topology, slots_.next(), options_.objective);
    MOTLEY_ASSIGN(const RelaxedSlot relaxed, relax_slot(problem, Mappings::kWhole));
    Random random(mix({static_cast<std::uint64_t>(slots_.next()), jobs.size()}));
    std::vector<Change> changes;
    std::vector<Placement> best;
    double most = -1;
    for (int drawing = 0; drawing < kDrawings; ++drawing) {
      std::vector<Placement> placements = round_what_fits(problem, relaxed, random);
      double utility = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        utility += compute_value(problem.topology, problem.jobs[i], placements[i]);
      }
      if (utility <= most) continue;
      most = utility;
      best = std::move(placements);
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (best[i] != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(best[i])});
    }
    return changes;
  }
};

}  // namespace

std::unique_ptr<Policy> make_gadget(const PolicyOptions& options) {
  return std::make_unique<Gadget>(options);
}

}  // namespace motley::scheduling
