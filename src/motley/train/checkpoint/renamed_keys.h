// Fields of state.json that had another name in version 1.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::train {

inline constexpr RenamedKey kRenamedFields[] = {{"partition", "batch_split"},
                                                {"stage_shares", "stage_batch_splits"},
                                                {"table_servers", "embedding_servers"},
                                                {"samples_not_used_exactly_once", "samples_lost_or_duplicated"}};

}  // namespace motley::train
