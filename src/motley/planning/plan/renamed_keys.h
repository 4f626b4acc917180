// Fields of plan.json, and a schedule, that had another name in version 1.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::planning {

inline constexpr RenamedKey kRenamedKeys[] = {{"batch", "global_batch_size"},
                                              {"exchange", "gradient_sync"},
                                              {"share", "batch_fraction"},
                                              {"cost", "cost"},
                                              {"gpipe", "gpipe"}};

}  // namespace motley::planning
