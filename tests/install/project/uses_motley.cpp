// A program outside of Motley's tree: prints the names of the planners that the installed library has.
#include <cstdio>

#include "motley/planning/methods.h"

int main() {
  for (const auto& planner : motley::planning::planners()) std::printf("%s\n", planner.name.c_str());
}
