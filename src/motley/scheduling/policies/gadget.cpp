// GADGET as it was published, as far as a cluster can run what it decides: its greedy choice in every slot, with the
// slot problem relaxed and rounded (motley/scheduling/policies/rounding.h). Its rounding may give more than there is,
// and counts on servers and links to bear it; here mappings have to fit as a whole, lots that do not fit beside the
// ones before are left out, and the best of some drawings is taken. Who is left out has nothing in that slot.
//
// It knows no cost of moving, and draws anew in every slot.
#include "motley/scheduling/policies/active_jobs.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/rounding.h"
#include "motley/scheduling/policies/slot_worth.h"

namespace motley::scheduling {
namespace {

constexpr int kDrawings = 20;  // u_b

class Gadget final : public Policy {
 public:
  explicit Gadget(const PolicyOptions& options) : options_(options), slots_(options.slot_seconds) {}

  std::string name() const override { return "gadget"; }

  Result<Decision> decide(const State& state) override {
    MOTLEY_TRY(check_alike(state, name()));
    active_.update(state);
    Decision decision;
    const std::vector<int>& jobs = active_.jobs();
    if (slots_.begins(state.now) && !jobs.empty()) {
      const SlotProblem problem =
          slot_problem(state, jobs, jobs.size(), *state.machines, slots_.next(), options_.objective);
      MOTLEY_ASSIGN(const RelaxedSlot relaxed, relax_slot(problem, Mappings::kWhole));
      Random random(mix({static_cast<std::uint64_t>(slots_.next()), jobs.size()}));
      std::vector<Placement> best;
      double most = -1;
      for (int drawing = 0; drawing < kDrawings; ++drawing) {
        std::vector<Placement> placements = round_what_fits(problem, relaxed, random);
        double worth = 0;
        for (std::size_t i = 0; i < jobs.size(); ++i) {
          worth += value_of(problem.machines, problem.jobs[i], placements[i]);
        }
        if (worth <= most) continue;
        most = worth;
        best = std::move(placements);
      }
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (best[i] != state.placement(jobs[i])) decision.changes.push_back({jobs[i], std::move(best[i])});
      }
    }
    if (!jobs.empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  const PolicyOptions options_;
  ActiveJobs active_;
  Slots slots_;
};

}  // namespace

std::unique_ptr<Policy> make_gadget(const PolicyOptions& options) {
  return std::make_unique<Gadget>(options);
}

}  // namespace motley::scheduling
