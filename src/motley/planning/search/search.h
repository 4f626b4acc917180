// What searching methods share: the search itself, which counts evaluations, keeps the best candidate and knows when to
// end; and a device type for every layer, as they draw it, vary it and compare it.
#pragma once

#include <algorithm>
#include <compare>
#include <vector>

#include "motley/base/random.h"
#include "motley/planning/cost/provisioning.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {

// How searches that value thousands of assignments ask for counts.
inline constexpr ProvisioningOptions kBriefly{.max_boxes = 100};

// Counts evaluations, keeps the best, watches the clock and the stop token: what every searching method needs.
class Search {
 public:
  explicit Search(const Request& request);
  // Provisions (kBriefly) and evaluates an assignment; the value, infinity where infeasible.
  double consider(const std::vector<int>& type_of_layer, const std::vector<bool>& cut_before = {});
  double consider(const Candidate& candidate);
  double consider(const Candidate& candidate, Evaluation evaluation);  // evaluated already
  void prove(double bound) {
    answer_.bound = std::max(answer_.bound, bound);
  }  // that no candidate is below, for progress
  bool over();                                                      // a limit is reached or a stop was asked for
  double seconds() const { return request_.clock.now() - start_; }  // since it began
  double best() const { return best_value_; }  // value of the best candidate; infinity while there is none
  Answer answer() const;

 private:
  const Request& request_;
  double start_;
  double last_progress_ = 0;
  double best_value_ = kInfinity;
  Answer answer_;
};

struct Assignment {
  std::vector<int> type_of_layer;
  std::vector<bool> cut_before;  // kPipeline: a new stage begins here, though the type stays; kHeterps: empty
  auto operator<=>(const Assignment&) const = default;
};

// Takes cuts away that mean nothing: before the first layer, and where the type changes anyway.
void normalise(Assignment& assignment);

Assignment all_on(const Problem& problem, int type);

// Runs of one type whose mean length is itself drawn, so that plans of few stages come as often as those of many.
Assignment draw(const Problem& problem, Random& random);

// Changes one layer on average: to a random type, or to that of a neighbour, which moves a border.
void mutate(const Problem& problem, Random& random, Assignment& assignment);

// Less is better. Assignments without a feasible candidate have the value infinity; `fastest` compares those, so that a
// method finds its way to where the objective's limits can be met.
struct Score {
  double value = 0;    // planning::value of the best counts
  double fastest = 0;  // seconds a sample when limits are left out; 0 where value is finite
  auto operator<=>(const Score&) const = default;
};
Score score(const Request& request, Search& search, const Assignment& assignment);

}  // namespace motley::planning
