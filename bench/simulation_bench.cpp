// motley-simulate-faults runs as a process and writes the rows: schedules from a seed that is new each time, and each
// guard dropped in turn, over the first of the same schedules. The guards are long.
#include "bench/simulation_bench.h"

#include <algorithm>
#include <random>
#include <thread>

#include "bench/row_list.h"
#include "bench/temporary_folder.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"

namespace motley::bench {
namespace {

constexpr int kSchedules = 200'000, kQuickSchedules = 1'000;
constexpr int kSchedulesPerMutant = 30'000;  // ten minutes of one core, at the rate that is the target
constexpr double kMaxSeconds = 6 * 3600;

// Where an invariant breaks it ends with 1, and has written the rows, too.
Result<std::vector<BenchRow>> simulate(const BenchOptions& options, const std::filesystem::path& folder,
                                       std::vector<std::string> words) {
  const std::filesystem::path file = folder / "rows.json";
  words.insert(words.begin(), (options.program.parent_path() / "motley-simulate-faults").string());
  words.insert(words.end(),
               {"--processes", std::to_string(std::max(1U, std::thread::hardware_concurrency())), "--json", file});
  MOTLEY_ASSIGN(const Output output, run_program({.words = std::move(words)}, Deadline::after(kMaxSeconds)));
  if (options.progress) options.progress(output.text);
  if (output.exit_code > 1) return fail(ErrorCode::kInternal, "motley-simulate-faults ended with {}", output.exit_code);
  MOTLEY_ASSIGN(const std::string text, read_file(file));
  return read_rows(text);
}

}  // namespace

Result<std::vector<BenchRow>> simulation_bench(const BenchOptions& options) {
  MOTLEY_ASSIGN(const TemporaryFolder folder, TemporaryFolder::create());
  const std::string seed = std::to_string(std::random_device{}());
  RowList rows(options);
  rows.print("the first seed is " + seed);
  MOTLEY_ASSIGN(const auto clean, simulate(options, folder.path(),
                                           {"--seed", seed, "--schedules",
                                            std::to_string(options.quick ? kQuickSchedules : kSchedules)}));
  rows.append(clean);
  if (options.quick) return rows.take();
  MOTLEY_ASSIGN(const auto mutants,
                simulate(options, folder.path(),
                         {"--seed", seed, "--schedules", std::to_string(kSchedulesPerMutant), "--mutant", "all"}));
  rows.append(mutants);
  return rows.take();
}

}  // namespace motley::bench
