// motley bench: the comparisons that the docs quote, by name; and the processes that they start.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "bench/bench.h"
#include "bench/demo_bench.h"
#include "bench/exchange_bench.h"
#include "bench/exchange_worker.h"
#include "bench/partition_bench.h"
#include "motley/base/file.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

const std::map<std::string, bench::Bench>& benches() {
  static const std::map<std::string, bench::Bench> all = {
      {"demo", bench::demo_bench}, {"exchange", bench::exchange_bench}, {"partition", bench::partition_bench}};
  return all;
}

struct BenchArguments {
  std::string name;
  std::string json;
  bool quick = false;
};

Status run_bench(const BenchArguments& arguments) {
  bench::BenchOptions options;
  options.quick = arguments.quick;
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
  command->add_option("NAME", arguments->name, "demo, exchange or partition")->required()->check(CLI::IsMember(names));
  command->add_option("--json", arguments->json, "Also write the rows to this file");
  command->add_flag("--quick", arguments->quick, "Stay under a minute; leaves out rows marked long");
  command->callback([&action, arguments] { action = [arguments] { return run_bench(*arguments); }; });

  // A process of a benchmark; not for users.
  CLI::App* worker = app.add_subcommand("bench-worker", "")->group("");
  auto words = std::make_shared<std::vector<std::string>>();
  worker->add_option("WORDS", *words);
  worker->allow_extras();
  worker->prefix_command();
  worker->callback([&action, worker, words] {
    action = [worker, words]() -> Status {
      std::vector<std::string> all = *words;
      for (const std::string& extra : worker->remaining()) {
        all.push_back(extra);
      }
      std::exit(bench::exchange_worker_main(all));
    };
  });
}

}  // namespace motley::cli
