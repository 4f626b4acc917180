// The guards that can be dropped, one at a time (base/guard.h).
#pragma once

#include <span>
#include <string>

namespace motley::simulation {

// By name, in the order of the modules.
std::span<const char* const> list_guards();
// From now on; an empty name drops none. False where there is no such guard.
bool drop_guard(const std::string& name);

}  // namespace motley::simulation
