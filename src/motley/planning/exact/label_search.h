// The cheapest path through a stage graph that stays within limits on devices and price: partial paths ("labels") are
// extended layer by layer, and given up where a bound or another label shows that they lead to nothing better.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "motley/planning/exact/stage_graph.h"

namespace motley::planning {

// What all stages together may use: devices of every type, and price an hour.
struct Limits {
  std::vector<double> devices;
  double price_per_hour = 0;  // infinity: not limited
};

struct LabelResult {
  std::optional<StagePath> path;  // the best found
  double bound = 0;               // no path within the limits costs less
};

// Paths that cost `below` or more are not looked for. A label's bound is the greatest by any of the charges; the
// graph's shortest path is left to be that of the first. At most `width` labels go on from a layer; those with the
// worst bounds are left out. Ends early, with the bound of what is left, when `over` says so.
LabelResult search_labels(StageGraph& graph, const Limits& limits, std::span<const Charges> charges, double below,
                          int width, const std::function<bool()>& over);

}  // namespace motley::planning
