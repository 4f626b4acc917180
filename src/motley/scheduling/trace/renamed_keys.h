// Columns of trace.csv that had another name before.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::scheduling {

inline constexpr RenamedKey kRenamedColumns[] = {
    {"least", "min_workers"}, {"most", "max_workers"}, {"restart_seconds", "restart_cost_seconds"}};

}  // namespace motley::scheduling
