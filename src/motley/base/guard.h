// What keeps things from being lost, done twice or mixed up: a condition that must hold, or something that is done. In
// the build of the simulation (tests/simulation) a guard can be dropped by its name, as if the condition always held,
// or what is done were not: the simulation must then find that an invariant breaks.
#pragma once

#ifdef MOTLEY_SIMULATION
namespace motley::simulation {
bool is_dropped(const char* guard);
}
#define MOTLEY_GUARD(name, condition) (::motley::simulation::is_dropped(name) || (condition))
#define MOTLEY_KEEPS(name) (!::motley::simulation::is_dropped(name))
#else
#define MOTLEY_GUARD(name, condition) (condition)
#define MOTLEY_KEEPS(name) true
#endif
