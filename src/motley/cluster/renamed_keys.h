// Keys of cluster.yaml that had another name in version 1.
#pragma once

#include "motley/serial/renamed_keys.h"

namespace motley::cluster {

inline constexpr RenamedKey kRenamedKeys[] = {{"speed.fixed", "speed.layer_overhead"}};

}  // namespace motley::cluster
