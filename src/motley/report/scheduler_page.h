// The page of the scheduler's service: its nodes and jobs as they are now.
#pragma once

#include <string>

#include "motley/scheduling/service/controller.h"

namespace motley::report {

std::string scheduler_page(const scheduling::Controller& controller);

}  // namespace motley::report
