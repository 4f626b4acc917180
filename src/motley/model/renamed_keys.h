// Fields of profile.json that had another name in version 1.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::model {

inline constexpr RenamedKey kRenamedKeys[] = {
    {"batch", "batch_size"}, {"row_bytes", "embedding_row_bytes"}, {"table_rows", "num_embeddings"}};

}  // namespace motley::model
