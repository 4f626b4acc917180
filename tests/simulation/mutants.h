// The guards that can be dropped, one at a time (base/guard.h).
#pragma once

#include <span>
#include <string>

namespace motley::simulation {

// By name, in the order of the modules.
struct Guard {
  const char* name;
  const char* purpose;  // for people
};
std::span<const Guard> list_guards();
// From now on; an empty name drops none. False where there is no such guard.
bool drop_guard(const std::string& name);

}  // namespace motley::simulation
