// What every benchmark is given and returns. A benchmark is one function; main.cpp lists them by name.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/base/statistics.h"
#include "motley/serial/bench_row.h"

namespace motley::bench {

struct BenchOptions {
  bool quick = false;                                // stay under a minute: fewer rounds, rows marked long left out
  std::filesystem::path source_folder;               // the checkout, for bench/peers and examples
  std::filesystem::path motley;                      // the program, beside this one
  std::filesystem::path program;                     // this one, to start processes of it
  std::filesystem::path python;                      // a Python with torch, for peers
  std::filesystem::path pages = "build/bench";       // folder for the pages and tables that some write
  std::function<void(const std::string&)> progress;  // one line at a time for the user; may be empty
};

// The mean of both middle ones where their number is even.
inline double median(const std::vector<double>& values) {
  return (lower_median(values) + motley::median(values)) / 2;
}

using Bench = std::function<Result<std::vector<BenchRow>>(const BenchOptions&)>;

}  // namespace motley::bench
