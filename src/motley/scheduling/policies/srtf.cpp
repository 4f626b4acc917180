// Shortest remaining time first.
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/ranked_policy.h"

namespace motley::scheduling {
namespace {

class Srtf final : public RankedPolicy {
 public:
  using RankedPolicy::RankedPolicy;
  std::string name() const override { return "srtf"; }

 protected:
  double rank(const State& state, int job) const override { return state.left_seconds(job); }
};

}  // namespace

std::unique_ptr<Policy> make_srtf(const PolicyOptions& options) {
  return std::make_unique<Srtf>(options);
}

}  // namespace motley::scheduling
