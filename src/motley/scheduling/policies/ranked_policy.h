// Preemptive policies that serve jobs by a number of each, least first, ties by arrival. The number of a job may change
// only while it runs, so that those that wait are kept in order.
#pragma once

#include <set>
#include <vector>

#include "motley/scheduling/policies/ranking.h"

namespace motley::scheduling {

class RankedPolicy : public Policy {
 public:
  explicit RankedPolicy(const PolicyOptions& options) : ranking_(options.packing) {}
  Result<Decision> decide(const State& state) override;

 protected:
  virtual double rank(const State& state, int job) const = 0;
  // When the number of a job that runs will be another, where it moves in steps.
  virtual double next_step(const State&, int /*job*/) const { return std::numeric_limits<double>::infinity(); }

 private:
  using Ranked = std::pair<double, int>;  // its number, job

  Ranking ranking_;
  std::set<Ranked> waiting_;
  std::vector<Ranked> running_, started_;  // kept for their memory
};

}  // namespace motley::scheduling
