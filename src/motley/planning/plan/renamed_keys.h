// Fields of plan.json, and a schedule, that had another name in version 1.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::planning {

inline constexpr RenamedKey kRenamedKeys[] = {{"batch", "global_batch_size"},   {"exchange", "gradient_sync"},
                                              {"share", "batch_fraction"},      {"money", "cost"},
                                              {"fill-drain", "gpipe"},          {"schedule", "pipeline_schedule"},
                                              {"price_per_hour", "hourly_cost"}};

}  // namespace motley::planning
