// Benches whose parts are scripts of bench/python, which print their rows: the Python package against the same scripts
// without it, and elastic jobs, whose processes the scripts kill.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace motley::bench {

// The part whose rows a script of bench/python prints when it is called so.
Bench python_bench(const std::string& script, std::vector<std::string> arguments = {});

}  // namespace motley::bench
