// The exact halves of provisioning, one for each cost model: the best counts for given stages, or none.
#pragma once

#include <optional>
#include <vector>

#include "motley/planning/cost/provisioning.h"

namespace motley::planning {

std::optional<Candidate> exact_heterps_counts(const Problem& problem, const std::vector<Span>& stages,
                                              const Objective& objective);
std::optional<Candidate> exact_pipeline_counts(const Problem& problem, const std::vector<Span>& stages,
                                               const Objective& objective, std::int64_t max_boxes);

}  // namespace motley::planning
