// What elastic policies share that choose numbers of workers first and places after.
#pragma once

#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// What changes so that each of `jobs` has so many workers, 0 for none, as far as there is room: those that have them
// already stay where they are; the others take places in their order, of fewer workers where there is no room for all,
// or none where there is none for the least that they can run with.
std::vector<Change> share(const State& state, const std::vector<int>& jobs, const std::vector<int>& workers,
                          Packing packing, const std::vector<int>& types = {});

}  // namespace motley::scheduling
