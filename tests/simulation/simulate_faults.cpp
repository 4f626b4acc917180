// The program motley-simulate-faults: runs seeded schedules of faults through Motley's protocols in a simulated
// cluster, and prints one that breaks an invariant so that a person can read it and run it again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>

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
  std::string table;
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
  fmt::print("seed {}: {}\n", failure.seed, failure.text);
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
  const auto broken = std::ranges::find(result.failures, FailureKind::kInvariant, &Failure::kind);
  if (broken != result.failures.end()) explain(arguments, *broken);
  for (const Failure& failure : result.failures) {
    if (failure.kind != FailureKind::kInvariant) fmt::print("seed {}: {}\n", failure.seed, failure.text);
  }
  const std::string note = fmt::format("{} schedules from seed {} on; simulated", result.schedules, arguments.seed);
  rows.push_back({"all-protocols", "schedules_per_second", rate, "1/s", true, 50, {}, {}, note});
  rows.push_back(
      {"all-protocols", "violations", static_cast<double>(result.failures.size()), "", false, 0, {}, {}, note});
  return result.failures.empty() ? 0 : 1;
}

// What has become of a guard that was dropped.
struct MutantResult {
  const Guard& guard;
  BatchResult batch;
  // The first invariant that was broken; null: none was.
  const Failure* found() const {
    const auto found = std::ranges::find_if(
        batch.failures, [](const Failure& failure) { return failure.kind != FailureKind::kDoesNotEnd; });
    return found == batch.failures.end() ? nullptr : &*found;
  }
};

// How many schedules a guard took that was found, or were in vain.
std::uint64_t count_schedules(const MutantResult& result, std::uint64_t first_seed) {
  const Failure* found = result.found();
  return found != nullptr ? found->seed - first_seed + 1 : result.batch.schedules;
}

void print(const MutantResult& result, std::uint64_t schedules) {
  if (const Failure* found = result.found()) {
    fmt::print("{:32} found by seed {}: {}\n", result.guard.name, found->seed, found->text.substr(0, 160));
  } else {
    const auto& failures = result.batch.failures;
    fmt::print("{:32} not found by {} schedules{}\n", result.guard.name, schedules,
               failures.empty() ? "" : fmt::format("; seed {}: {}", failures.front().seed, failures.front().text));
  }
  std::fflush(stdout);
}

// As a page for people.
std::string to_page(const Arguments& arguments, std::span<const MutantResult> results, const std::string& clean) {
  std::string text = fmt::format(
      "# Dropped guards\n\nWritten by `motley-simulate-faults --mutant all --schedules {}{} --table FILE`; do not "
      "edit.\n\n"
      "Each guard of the [simulated faults](../explanation/fault-simulation.md#dropped-guards) was dropped alone, and "
      "schedules were run from seed {} on\nuntil an invariant broke. {}\n\n"
      "| Guard | What it is for | Invariant that breaks without it | Schedules until then |\n"
      "| --- | --- | --- | ---: |\n",
      arguments.schedules, arguments.seed == 1 ? "" : fmt::format(" --seed {}", arguments.seed), arguments.seed, clean);
  for (const MutantResult& result : results) {
    const Failure* found = result.found();
    const std::string invariant = found == nullptr ? "none" : found->text.substr(0, found->text.find(':'));
    text += fmt::format("| `{}` | {} | {} | {} |\n", result.guard.name, result.guard.purpose, invariant,
                        count_schedules(result, arguments.seed));
  }
  return text;
}

// Each guard is dropped until some seed finds it; with all of them the same schedules break nothing.
Result<int> run_mutants(const Arguments& arguments, std::vector<BenchRow>& rows) {
  std::vector<MutantResult> results;
  std::uint64_t most = 0;
  for (const Guard& guard : list_guards()) {
    results.push_back({guard, run_batch({.first_seed = arguments.seed,
                                         .schedules = arguments.schedules,
                                         .mutant = guard.name,
                                         .processes = arguments.processes})});
    const std::uint64_t schedules = count_schedules(results.back(), arguments.seed);
    print(results.back(), schedules);
    most = std::max(most, schedules);
  }
  const auto not_found =
      std::ranges::count_if(results, [](const MutantResult& result) { return result.found() == nullptr; });
  fmt::print("{} of {} guards can be dropped without being found\n", not_found, results.size());
  std::fflush(stdout);
  const BatchResult clean =
      run_batch({.first_seed = arguments.seed, .schedules = most, .processes = arguments.processes});
  const std::string said =
      fmt::format("With all guards {} of the first {} schedules break an invariant.", clean.failures.size(), most);
  fmt::print("{}\n", said);
  for (const Failure& failure : clean.failures) fmt::print("seed {}: {}\n", failure.seed, failure.text);
  rows.push_back({"mutants",
                  "not_found",
                  static_cast<double>(not_found),
                  "",
                  false,
                  0,
                  {},
                  {},
                  fmt::format("of {} guards, each dropped for up to {} schedules. {}", results.size(),
                              arguments.schedules, said)});
  if (!arguments.table.empty()) MOTLEY_TRY(write_file(arguments.table, to_page(arguments, results, said)));
  return not_found == 0 && clean.failures.empty() ? 0 : 1;
}

Result<int> run_many(const Arguments& arguments) {
  std::vector<BenchRow> rows;
  int status = 0;
  if (arguments.mutant == "all") {
    MOTLEY_ASSIGN(status, run_mutants(arguments, rows));
  } else {
    status = run_clean(arguments, rows);
  }
  if (!arguments.json.empty()) MOTLEY_TRY(write_file(arguments.json, to_json(rows)));
  return status;
}

int run(const Arguments& arguments) {
  if (arguments.lists_mutants) {
    for (const Guard& guard : list_guards()) fmt::print("{:32} {}\n", guard.name, guard.purpose);
    return 0;
  }
  if (arguments.replays) return replay(arguments);
  const auto status = run_many(arguments);
  if (status) return *status;
  fmt::print(stderr, "motley-simulate-faults: error: {}\n", status.error().message);
  return 1;
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
  app.add_option("--table", arguments.table,
                 "Writes which invariant finds each mutant into this file, as a page of the documents");
  CLI11_PARSE(app, count, words);
  return run(arguments);
}
