// The page of the scheduler's service: what runs, what waits and why, what has ended, and the nodes, as they are now.
#pragma once

#include <string>

#include "motley/scheduling/service/service.h"

namespace motley::report {

std::string scheduler_page(const scheduling::PageInput& input);

}  // namespace motley::report
