// The program motley-simulate-faults: runs seeded schedules of faults through Motley's protocols, in a simulated cluster.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "motley/base/log.h"
#include "tests/simulation/run_schedule.h"

using namespace motley::simulation;

int main(int count, char** words) {
  spdlog::set_level(spdlog::level::off);
  const std::uint64_t first = count > 1 ? std::strtoull(words[1], nullptr, 10) : 1;
  const std::uint64_t seeds = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1;
  const bool is_shrinking = count > 3;
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    Schedule schedule = make_schedule(seed);
    const Outcome outcome = run_schedule(schedule, seeds == 1);
    if (seeds == 1) {
      fmt::print("{}", describe(schedule));
      for (const auto& note : outcome.notes) fmt::print("{}\n", note);
      fmt::print("trace {:x}, {} starts, {:.3f} s\n", outcome.trace, outcome.generations, outcome.seconds);
    }
    if (outcome.violations.empty()) continue;
    ++failed;
    fmt::print("{}", describe(is_shrinking ? shrink(schedule) : schedule));
    for (const auto& text : outcome.violations) fmt::print("  VIOLATED {}\n", text);
  }
  fmt::print("{} schedules, {} failed\n", seeds, failed);
  return failed == 0 ? 0 : 1;
}
