// docs/schema/profile.schema.json, from the description of a profile's fields in profile.cpp.
#pragma once

#include <string>

namespace motley::model {

std::string profile_schema();

}  // namespace motley::model
