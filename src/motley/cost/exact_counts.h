// The exact halves of provisioning, one for each cost model: the best counts for given stages, or none.
#pragma once

#include <optional>
#include <vector>

#include "motley/cost/provisioning.h"

namespace motley::cost {

std::optional<Candidate> exact_heterps_counts(const Problem& problem, const std::vector<Span>& stages,
                                              const plan::Objective& objective);
std::optional<Candidate> exact_pipeline_counts(const Problem& problem, const std::vector<Span>& stages,
                                               const plan::Objective& objective, std::int64_t most_boxes);

}  // namespace motley::cost
