// The program motley-simulate-faults: runs seeded schedules of faults through Motley's protocols in a simulated
// cluster, and prints one that breaks an invariant so that a person can read it and run it again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/serial/bench_row.h"
#include "tests/simulation/batch.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/run_schedule.h"

namespace motley::simulation {
namespace {

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t schedules = 1000;
  std::string mutant;
  std::size_t processes = 1;
  bool replays = false;
  bool lists_mutants = false;
  std::string json;
};

void print(const Outcome& outcome) {
  for (const std::string& note : outcome.notes) fmt::print("{}\n", note);
  for (const std::string& text : outcome.violations) fmt::print("VIOLATED: {}\n", text);
  fmt::print("{} starts of the job, {:.3f} simulated seconds, trace {:016x}\n", outcome.generations, outcome.seconds,
             outcome.trace);
}

int replay(const Arguments& arguments) {
  drop_guard(arguments.mutant);
  const Schedule schedule = make_schedule(arguments.seed);
  fmt::print("{}", describe(schedule));
  const Outcome outcome = run_schedule(schedule, true);
  print(outcome);
  return outcome.violations.empty() ? 0 : 1;
}

// What is left of a failing seed's schedule once all is gone that it does not take, and what happens then.
void explain(const Arguments& arguments, const Failure& failure) {
  fmt::print("seed {}: {}\n", failure.seed, failure.violation);
  fmt::print("Again: motley-simulate-faults --replay --seed {}{}\n\nThe least that it takes:\n", failure.seed,
             arguments.mutant.empty() ? "" : " --mutant " + arguments.mutant);
  std::fflush(stdout);
  drop_guard(arguments.mutant);
  const Schedule least = shrink(make_schedule(failure.seed));
  fmt::print("{}\n", describe(least));
  print(run_schedule(least, true));
}

int run_clean(const Arguments& arguments, std::vector<BenchRow>& rows) {
  const BatchResult result = run_batch({.first_seed = arguments.seed,
                                        .schedules = arguments.schedules,
                                        .mutant = arguments.mutant,
                                        .processes = arguments.processes});
  const double rate = static_cast<double>(result.schedules) / result.seconds;
  fmt::print("{} schedules from seed {} on, {} of them break an invariant, {:.1f} a second of one core\n",
             result.schedules, arguments.seed, result.failures.size(), rate);
  if (!result.failures.empty()) explain(arguments, result.failures.front());
  const std::string note = fmt::format("{} schedules from seed {} on; simulated", result.schedules, arguments.seed);
  rows.push_back({"all-protocols", "schedules_per_second", rate, "1/s", true, 50, {}, {}, note});
  rows.push_back(
      {"all-protocols", "violations", static_cast<double>(result.failures.size()), "", false, 0, {}, {}, note});
  return result.failures.empty() ? 0 : 1;
}

// Each guard is dropped until some seed finds it.
int run_mutants(const Arguments& arguments, std::vector<BenchRow>& rows) {
  std::size_t not_found = 0;
  for (const char* guard : list_guards()) {
    const BatchResult result = run_batch({.first_seed = arguments.seed,
                                          .schedules = arguments.schedules,
                                          .mutant = guard,
                                          .processes = arguments.processes});
    if (result.failures.empty()) {
      ++not_found;
      fmt::print("{:32} not found by {} schedules\n", guard, result.schedules);
    } else {
      fmt::print("{:32} found by seed {}: {}\n", guard, result.failures.front().seed,
                 result.failures.front().violation.substr(0, 160));
    }
    std::fflush(stdout);
  }
  fmt::print("{} of {} guards can be dropped without being found\n", not_found, list_guards().size());
  rows.push_back(
      {"mutants",
       "not_found",
       static_cast<double>(not_found),
       "",
       false,
       0,
       {},
       {},
       fmt::format("of {} guards, each dropped for up to {} schedules", list_guards().size(), arguments.schedules)});
  return not_found == 0 ? 0 : 1;
}

int run(const Arguments& arguments) {
  if (arguments.lists_mutants) {
    for (const char* guard : list_guards()) fmt::print("{}\n", guard);
    return 0;
  }
  if (arguments.replays) return replay(arguments);
  std::vector<BenchRow> rows;
  const int status = arguments.mutant == "all" ? run_mutants(arguments, rows) : run_clean(arguments, rows);
  if (!arguments.json.empty()) {
    const Status written = write_file(arguments.json, to_json(rows));
    if (!written) {
      fmt::print(stderr, "motley-simulate-faults: error: {}\n", written.error().message);
      return 1;
    }
  }
  return status;
}

}  // namespace
}  // namespace motley::simulation

int main(int count, char** words) {
  using namespace motley::simulation;  // NOLINT: of this program
  spdlog::set_level(spdlog::level::off);
  CLI::App app(
      "Runs seeded schedules of faults through Motley's protocols in a simulated cluster: training jobs whose "
      "processes\n"
      "are killed and stopped, whose links break, whose disk fails. Exits with 1 where an invariant breaks, and says "
      "by\n"
      "which faults.\n\nExample: motley-simulate-faults --seed 1 --schedules 5000",
      "motley-simulate-faults");
  Arguments arguments;
  app.add_option("--seed", arguments.seed, "The first schedule's seed")->capture_default_str();
  app.add_option("--schedules", arguments.schedules, "How many, each with the seed after the one before")
      ->capture_default_str();
  app.add_option("--mutant", arguments.mutant, "The guard of the code to drop; all: each in turn, until it is found")
      ->check([](const std::string& name) {
        return name == "all" || drop_guard(name) ? std::string() : "no such guard; --list-mutants lists them";
      });
  app.add_option("--processes", arguments.processes, "How many schedules run at a time, each in a process")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--replay", arguments.replays, "Runs the seed's schedule alone and prints what happens");
  app.add_flag("--list-mutants", arguments.lists_mutants, "Lists the guards that can be dropped");
  app.add_option("--json", arguments.json, "Writes the figures into this file, as rows of a benchmark");
  CLI11_PARSE(app, count, words);
  return run(arguments);
}
