// Plans whose stages may mix types of devices. The planners of this module give each stage devices of one type, which
// is best where there are many of each; of a few heterogeneous devices, those of one stage are better chosen one by
// one.
#pragma once

#include <stop_token>
#include <vector>

#include "motley/base/result.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/plan/plan.h"

namespace motley::planning {

inline constexpr int kMaxHeterogeneousDevices = 8;

// The plans that are found from the given one, which is one of them, by the time of a step as planning::simulate has
// it. First is the one with the fewest stages, then devices, of those whose time is the shortest but for what
// predictions usually err. It is the only one where it has more devices than kMaxHeterogeneousDevices. Laid out anew
// (repartition.h) until that is of no use are: the plan over its own devices; and one stage of the fastest one, two,
// ... of all that the problem has, in several numbers of micro-batches. `types` is the problem (kPipeline) that the
// plan answers. Deterministic, except where it is stopped. Errors are those of planning::simulate.
Result<std::vector<Plan>> find_heterogeneous_stages(const Problem& types, const Plan& plan,
                                                    const std::stop_token& stop);

}  // namespace motley::planning
