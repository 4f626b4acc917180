// What every benchmark is given and returns. A benchmark is one function; src/motley/cli lists them by name.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/bench_row.h"

namespace motley::bench {

struct BenchOptions {
  bool quick = false;                                // stay under a minute: fewer rounds, rows marked long left out
  std::filesystem::path source_folder;               // the checkout, for bench/peers and examples
  std::filesystem::path motley;                      // the running binary, to start processes of it
  std::filesystem::path python;                      // a Python with torch, for peers
  std::filesystem::path pages = "build/bench";       // folder for the pages and tables that some write
  std::function<void(const std::string&)> progress;  // one line at a time for the user; may be empty
};

// The mean of both middle ones where their number is even.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

using Bench = Result<std::vector<BenchRow>> (*)(const BenchOptions&);

}  // namespace motley::bench
