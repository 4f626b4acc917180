// What the service's database (version 1) and its JSON called otherwise.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::scheduling {

inline constexpr RenamedKey kRenamedKeys[] = {{"waiting", "pending"},
                                              {"done", "completed"},
                                              {"least", "min_workers"},
                                              {"most", "max_workers"},
                                              {"seconds", "estimated_duration"},
                                              {"restart_seconds", "restart_cost"},
                                              {"grace_seconds", "grace_period"},
                                              {"retries", "max_retries"}};

}  // namespace motley::scheduling
