// The bench `python`: the Python package against the same scripts without it. Each part is a script of bench/python,
// which prints its rows.
#pragma once

#include <string>

#include "bench/bench.h"

namespace motley::bench {

// The part whose rows a script of bench/python prints.
Bench python_bench(const std::string& script);

}  // namespace motley::bench
