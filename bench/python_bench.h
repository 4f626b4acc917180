// Benches whose parts are scripts of bench/python, which print their rows: the Python package against the same scripts
// without it, and elastic jobs, whose processes the scripts kill.
#pragma once

#include <string>

#include "bench/bench.h"

namespace motley::bench {

// The part whose rows a script of bench/python prints.
Bench python_bench(const std::string& script);

}  // namespace motley::bench
