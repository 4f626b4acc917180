// The cheapest path through a stage graph that stays within limits on devices and price: partial paths ("labels") are
// extended layer by layer, and given up where a bound or another label shows that they lead to nothing better.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "motley/planner/stage_graph.h"

namespace motley::planner {

// What all stages together may use: devices of every type, and price an hour.
struct Limits {
  std::vector<double> devices;
  double price_per_hour = 0;  // infinity: not limited
};

// What a unit over a limit is charged (Lagrangian multipliers).
struct Charges {
  std::vector<double> devices;
  double price_per_hour = 0;
};

struct LabelResult {
  std::optional<Path> path;  // the best found
  double bound = 0;          // no path within the limits costs less
};

// Paths that cost `below` or more are not looked for. `graph.shortest` has been called with the charges, and `refund`
// is what they sum to at the limits. At most `width` labels go on from a layer; those with the worst bounds are left
// out. Ends early, with the bound of what is left, when `over` says so.
LabelResult search_labels(const StageGraph& graph, const Limits& limits, double refund, double below, int width,
                          const std::function<bool()>& over);

}  // namespace motley::planner
