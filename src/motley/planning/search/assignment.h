// A device type for every layer, as the searching methods draw it, vary it and compare it.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "motley/base/random.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {

struct Assignment {
  std::vector<int> type_of_layer;
  std::vector<bool> cut_before;  // kPipeline: a new stage begins here, though the type stays; kHeterps: empty
  auto operator<=>(const Assignment&) const = default;
};

// Takes cuts away that mean nothing: before the first layer, and where the type changes anyway.
void normalise(Assignment& assignment);

Assignment all_on(const planning::Problem& problem, int type);

// Runs of one type whose mean length is itself drawn, so that plans of few stages come as often as those of many.
Assignment draw(const planning::Problem& problem, Random& random);

// Changes one layer on average: to a random type, or to that of a neighbour, which moves a border.
void mutate(const planning::Problem& problem, Random& random, Assignment& assignment);

// Less is better. Assignments without a feasible candidate have the value infinity; `fastest` compares those, so that a
// method finds its way to where the objective's floors and caps can be met.
struct Score {
  double value = 0;    // planning::value of the best counts
  double fastest = 0;  // seconds a sample when floors and caps are left out; 0 where value is finite
  auto operator<=>(const Score&) const = default;
};
Score score(const Request& request, Search& search, const Assignment& assignment);

// CPU types are those whose stages exchange through a parameter server.
bool is_cpu(const planning::Type& type);
// All types of that sort. Error (kInvalidInput, in the name of `method`): there is none.
Result<std::vector<int>> types_of_sort(const planning::Problem& problem, bool cpu, const std::string& method);

}  // namespace motley::planning
