// motley bench: the comparisons that the docs quote, by name; and the processes that they start.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "bench/bench.h"
#include "bench/consistency_bench.h"
#include "bench/demo_bench.h"
#include "bench/exchange_bench.h"
#include "bench/exchange_worker.h"
#include "bench/partition_bench.h"
#include "bench/partition_processes.h"
#include "bench/plan_bench.h"
#include "bench/planners_bench.h"
#include "bench/ps_bench.h"
#include "bench/simulate_bench.h"
#include "motley/base/file.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

Result<std::vector<BenchRow>> whole_partition_bench(const bench::BenchOptions& options) {
  MOTLEY_ASSIGN(std::vector<BenchRow> rows, bench::partition_bench(options));
  MOTLEY_ASSIGN(const std::vector<BenchRow> measured, bench::partition_processes(options));
  rows.insert(rows.end(), measured.begin(), measured.end());
  return rows;
}

const std::map<std::string, bench::Bench>& benches() {
  static const std::map<std::string, bench::Bench> all = {{"consistency", bench::consistency_bench},
                                                          {"demo", bench::demo_bench},
                                                          {"exchange", bench::exchange_bench},
                                                          {"partition", whole_partition_bench},
                                                          {"plan", bench::plan_bench},
                                                          {"planners", bench::planners_bench},
                                                          {"ps", bench::ps_bench},
                                                          {"simulate", bench::simulate_bench}};
  return all;
}

constexpr const char* kLong = "planners";  // takes half an hour; runs only when it is named

struct BenchArguments {
  std::string name;
  std::string json;
  std::string pages = "build/bench";
  bool quick = false;
  bool list = false;
};

Status run_bench(const BenchArguments& arguments) {
  if (arguments.list) {
    for (const auto& [name, function] : benches()) {
      if (name != kLong) {
        std::printf("%s\n", name.c_str());
      }
    }
    return {};
  }
  if (arguments.name.empty()) {
    return fail(ErrorCode::kInvalidInput, "NAME: the name of a benchmark is needed; --list prints them");
  }
  bench::BenchOptions options;
  options.quick = arguments.quick;
  options.pages = arguments.pages;
  options.source_folder = MOTLEY_SOURCE_FOLDER;
  options.motley = std::filesystem::read_symlink("/proc/self/exe");
  const char* python = std::getenv("MOTLEY_PYTHON");
  options.python = python != nullptr ? python : MOTLEY_PYTHON;
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  MOTLEY_ASSIGN(const std::vector<BenchRow> rows, benches().at(arguments.name)(options));
  std::printf("%s", to_table(rows).c_str());
  if (!arguments.json.empty()) {
    MOTLEY_TRY(write_file(arguments.json, to_json(rows)));
  }
  for (const BenchRow& row : rows) {
    if (!row.met()) {
      return fail(ErrorCode::kInternal, "{}", kMissedTarget);
    }
  }
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Run a comparison that the docs quote");
  command->footer("Example:\n  motley bench partition --quick --json rows.json");
  auto arguments = std::make_shared<BenchArguments>();
  std::vector<std::string> names;
  for (const auto& [name, function] : benches()) {
    names.push_back(name);
  }
  command->add_option("NAME", arguments->name, "Which one")->check(CLI::IsMember(names));
  command->add_option("--json", arguments->json, "Also write the rows to this file");
  command->add_option("--pages", arguments->pages, "Folder for pages and tables that some write")
      ->capture_default_str();
  command->add_flag("--list", arguments->list, "Print the names of those that tools/bench runs");
  command->add_flag("--quick", arguments->quick, "Stay under a minute; leaves out rows marked long");
  command->callback([&action, arguments] { action = [arguments] { return run_bench(*arguments); }; });

  // A process of the benchmark "exchange"; not for users.
  CLI::App* worker = app.add_subcommand("bench-worker", "")->group("")->prefix_command();
  worker->callback([&action, worker] {
    action = [words = worker->remaining()]() -> Status {
      if (words.empty() || words.front() != "exchange") {
        return fail(ErrorCode::kInvalidInput, "bench-worker: only 'exchange' is known");
      }
      std::exit(bench::exchange_worker_main({words.begin() + 1, words.end()}));
    };
  });
}

}  // namespace motley::cli
