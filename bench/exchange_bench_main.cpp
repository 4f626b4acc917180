// The exchange bench alone, without the rest of Motley: for work on the exchange.
#include <cstdio>
#include <cstring>

#include "bench/exchange_bench.h"
#include "bench/exchange_worker.h"

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  if (arguments.size() > 2 && arguments[0] == "bench-worker") {
    return motley::bench::exchange_worker_main({arguments.begin() + 2, arguments.end()});
  }
  if (arguments.size() < 2) {
    std::fprintf(stderr, "usage: exchange_bench_main SOURCE-FOLDER PYTHON [--quick]\n");
    return 2;
  }
  motley::bench::BenchOptions options;
  options.source_folder = arguments[0];
  options.python = arguments[1];
  options.motley = std::filesystem::read_symlink("/proc/self/exe");
  options.quick = arguments.size() > 2;
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const auto rows = motley::bench::exchange_bench(options);
  if (!rows) {
    std::fprintf(stderr, "%s\n", rows.error().message.c_str());
    return 1;
  }
  std::printf("%s\n", motley::to_table(*rows).c_str());
}
