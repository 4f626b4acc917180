// Choices of planning's options that had another name before 0.1.0.
#pragma once

#include <vector>

#include "motley/serial/renamed_keys.h"

namespace motley::app {

inline const std::vector<RenamedKey> kRenamedSchedules = {{"fill-drain", "gpipe"}};
inline const std::vector<RenamedKey> kRenamedObjectives = {{"money", "cost"}, {"step", "step-time"}};

}  // namespace motley::app
