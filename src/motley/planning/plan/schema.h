// docs/schema/plan.schema.json, from the description of a plan's fields in plan.cpp.
#pragma once

#include <string>

namespace motley::planning {

std::string plan_schema();

}  // namespace motley::planning
