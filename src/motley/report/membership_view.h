// Who took part in an elastic run when, and what each change cost.
#pragma once

#include <string>

#include "motley/report/run.h"

namespace motley::report {

// A card: for each worker a bar over the run's time, and the changes with the pause that each was. Empty where nobody
// came or went.
std::string membership_view(const Run& run);

}  // namespace motley::report
