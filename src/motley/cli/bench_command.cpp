// motley bench: the comparisons that the docs quote, by name; and the processes that they start.
#include <fmt/ranges.h>

#include <algorithm>
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
#include "bench/pipeline_bench.h"
#include "bench/plan_bench.h"
#include "bench/planners_bench.h"
#include "bench/ps_ablation.h"
#include "bench/ps_groups.h"
#include "bench/racks_bench.h"
#include "bench/schedule_bench.h"
#include "bench/serve_bench.h"
#include "bench/simulate_bench.h"
#include "bench/sparse_bench.h"
#include "bench/sparse_net_bench.h"
#include "bench/zero_compute_bench.h"
#include "motley/base/os/file.h"
#include "motley/cli/commands.h"

namespace motley::cli {
namespace {

// What a benchmark consists of, in the order in which they run; most are one part.
struct Part {
  std::string name;
  bench::Bench function;
};

const std::map<std::string, std::vector<Part>>& benches() {
  static const std::map<std::string, std::vector<Part>> all = {
      {"consistency", {{"all", bench::consistency_bench}}},
      {"demo", {{"all", bench::demo_bench}}},
      {"exchange", {{"all", bench::exchange_bench}}},
      {"partition", {{"solver", bench::partition_bench}, {"processes", bench::partition_processes}}},
      {"pipeline",
       {{"equality", bench::pipeline_equality},
        {"batch-norm", bench::pipeline_batch_norm},
        {"prediction", bench::pipeline_prediction},
        {"schedules", bench::pipeline_schedules},
        {"shift", bench::pipeline_shift},
        {"tapp", bench::pipeline_tapp},
        {"heterps", bench::pipeline_heterps},
        {"clicks", bench::pipeline_clicks},
        {"rows", bench::pipeline_rows},
        {"data-node", bench::pipeline_data_node}}},
      {"plan", {{"all", bench::plan_bench}}},
      {"planners", {{"all", bench::planners_bench}}},
      {"ps",
       {{"memory", bench::ps_memory_rows},
        {"network", bench::ps_network_rows},
        {"racks", bench::racks_rows},
        {"auto", bench::ps_auto_rows},
        {"train", bench::ps_train_rows},
        {"sparse", bench::sparse_rows},
        {"sparse-network", bench::sparse_net_rows}}},
      {"ps-ablation", {{"all", bench::ps_ablation_bench}}},
      {"schedule",
       {{"anchors", bench::schedule_anchors},
        {"speed", bench::schedule_speed},
        {"traces", bench::schedule_traces},
        {"settings", bench::schedule_settings},
        {"rounding", bench::schedule_rounding},
        {"unlike", bench::schedule_unlike},
        {"slots", bench::schedule_slots}}},
      {"serve", {{"all", bench::serve_bench}}},
      {"simulate", {{"all", bench::simulate_bench}}},
      {"zero-compute", {{"all", bench::zero_compute_bench}}}};
  return all;
}

constexpr const char* kLong = "planners";  // takes half an hour; runs only when it is named

struct BenchArguments {
  std::string name;
  std::vector<std::string> parts;
  std::string json;
  std::string pages = "build/bench";
  bool quick = false;
  bool list = false;
};

bool wanted(const BenchArguments& arguments, const std::string& part) {
  return arguments.parts.empty() || std::ranges::find(arguments.parts, part) != arguments.parts.end();
}

Status check_parts(const BenchArguments& arguments) {
  const std::vector<Part>& known = benches().at(arguments.name);
  for (const std::string& part : arguments.parts) {
    if (std::ranges::find(known, part, &Part::name) != known.end()) continue;
    std::vector<std::string> names;
    for (const Part& one : known) names.push_back(one.name);
    return fail(ErrorCode::kInvalidInput, "--part: '{}' has no part '{}'; accepted: {}", arguments.name, part,
                fmt::join(names, ", "));
  }
  return {};
}

// Where only some parts ran, the file keeps the rows of the others.
Status write_rows(const BenchArguments& arguments, const std::vector<BenchRow>& rows) {
  if (arguments.json.empty()) return {};
  if (arguments.parts.empty() || !std::filesystem::exists(arguments.json)) {
    return write_file(arguments.json, to_json(rows));
  }
  MOTLEY_ASSIGN(const std::string before, read_file(arguments.json));
  const auto merged = replace_rows(before, rows);
  if (!merged) return fail(ErrorCode::kInvalidInput, "{}: {}", arguments.json, merged.error().message);
  return write_file(arguments.json, *merged);
}

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
  MOTLEY_TRY(check_parts(arguments));
  // A part that fails does not cost the rows of the others.
  std::vector<BenchRow> rows;
  Status status;
  for (const Part& part : benches().at(arguments.name)) {
    if (!wanted(arguments, part.name)) continue;
    Result<std::vector<BenchRow>> some = part.function(options);
    if (some) {
      rows.insert(rows.end(), some->begin(), some->end());
      continue;
    }
    options.progress(fmt::format("part {} failed: {}", part.name, some.error().message));
    if (status) status = tl::unexpected(some.error());
  }
  std::printf("%s", to_table(rows).c_str());
  MOTLEY_TRY(write_rows(arguments, rows));
  MOTLEY_TRY(status);
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
  command->add_option("--part", arguments->parts, "Run only this part of it (may be given more than once)");
  command->add_option("--json", arguments->json,
                      "Also write the rows to this file; with --part, into it: it keeps the other parts' rows");
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
