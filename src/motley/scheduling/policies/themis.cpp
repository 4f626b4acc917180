// Finish-time fairness as Themis (Mahajan et al., NSDI 2020) aims at: devices are leased for a slot, and go to the jobs
// that are farthest behind what an equal part of the cluster would have given them. Its auctions among those farthest
// behind decide by how well a placement suits; here all devices are alike, and the order itself decides. A job that is
// t seconds old, has s of its d seconds to go, asks for w workers and shares D devices with n - 1 others is
//
//     (t + s) min(1, D / (n w)) / d
//
// times as slow as on its own part, if it runs from now on. Between slots nobody is preempted.
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/ranking.h"
#include "motley/scheduling/policies/slot_policy.h"

namespace motley::scheduling {
namespace {

class Themis final : public SlotPolicy {
 public:
  explicit Themis(const PolicyOptions& options) : SlotPolicy("themis", options), ranking_(options.placement) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override { return offer_all(state, true); }
  Result<std::vector<Change>> go_on(const State& state) override { return offer_all(state, false); }

  std::vector<Change> offer_all(const State& state, bool is_slot) {
    order_.clear();
    for (const int number : active_.jobs()) {
      const bool keeps = !is_slot && !state.placement(number).empty();
      order_.emplace_back(keeps ? -std::numeric_limits<double>::infinity() : -slowness(state, number), number);
    }
    std::ranges::sort(order_);
    ranking_.begin(state);
    for (const auto& [rank, number] : order_) {
      if (ranking_.is_full()) break;
      ranking_.offer(number);
    }
    Decision decision;
    ranking_.end(decision);
    return decision.changes;
  }

  double slowness(const State& state, int number) const {
    const Job& job = state.job(number);
    const double wanted = static_cast<double>(active_.jobs().size()) * job.workers;
    const double part = std::min(1.0, state.topology->devices() / wanted);
    return (state.now - job.arrival + state.left_seconds(number)) * part / job.duration;
  }

  Ranking ranking_;
  std::vector<std::pair<double, int>> order_;  // kept for its memory
};

}  // namespace

std::unique_ptr<Policy> make_themis(const PolicyOptions& options) {
  return std::make_unique<Themis>(options);
}

}  // namespace motley::scheduling
