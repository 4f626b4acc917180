// motley-bench: the comparisons that the docs quote, by name. Exit code 0: every row met its target; 3: one missed it;
// 1: a part failed; 2: wrong usage or input.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <string_view>

#include "bench/bench.h"
#include "bench/consistency_bench.h"
#include "bench/demo_bench.h"
#include "bench/exchange_bench.h"
#include "bench/exchange_worker.h"
#include "bench/help_bench.h"
#include "bench/house_bench.h"
#include "bench/partition_bench.h"
#include "bench/partition_processes.h"
#include "bench/pipeline_bench.h"
#include "bench/plan_bench.h"
#include "bench/planners_bench.h"
#include "bench/ps_ablation.h"
#include "bench/ps_groups.h"
#include "bench/python_bench.h"
#include "bench/racks_bench.h"
#include "bench/schedule_bench.h"
#include "bench/serve_bench.h"
#include "bench/server_adamw_bench.h"
#include "bench/simulate_bench.h"
#include "bench/simulation_bench.h"
#include "bench/sparse_bench.h"
#include "bench/sparse_net_bench.h"
#include "bench/tls_bench.h"
#include "bench/zero_compute_bench.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"

namespace motley::bench {
namespace {

// What a benchmark consists of, in the order in which they run; most are one part.
struct Part {
  std::string name;
  Bench function;
};

const std::map<std::string, std::vector<Part>>& benches() {
  static const std::map<std::string, std::vector<Part>> all = {
      {"accelerator",
       {{"all", python_bench("accelerator.py")},
        {"server-adamw", server_adamw_bench},
        {"optimizer", python_bench("accelerator_optimizer.py")},
        {"exchange", python_bench("accelerator_exchange.py")},
        {"rows", python_bench("accelerator_rows.py")}}},
      {"bad-input", {{"all", python_bench("bad_input.py")}}},
      {"consistency", {{"all", consistency_bench}}},
      {"demo", {{"all", demo_bench}}},
      {"elastic",
       {{"faults", python_bench("elastic_faults.py")},
        {"servers", python_bench("elastic_servers.py")},
        {"equality", python_bench("elastic_equality.py")},
        {"membership", python_bench("elastic_membership.py")},
        {"torchft", python_bench("elastic_torchft.py")},
        {"oobleck", python_bench("elastic_oobleck.py")},
        {"busy", python_bench("elastic_busy.py")}}},
      {"exchange", {{"all", exchange_bench}}},
      {"gpu", {{"all", python_bench("gpu.py")}}},
      {"help", {{"all", help_bench}}},
      {"house", {{"all", house_bench}}},
      {"partition",
       {{"solver", partition_bench},
        {"processes", partition_processes},
        {"accuracy-cnn", python_bench("time_to_accuracy.py", {"--network", "cnn"})},
        {"accuracy-resnet18", python_bench("time_to_accuracy.py", {"--network", "resnet18"})}}},
      {"pipeline",
       {{"equality", pipeline_equality},
        {"batch-norm", pipeline_batch_norm},
        {"prediction", pipeline_prediction},
        {"schedules", pipeline_schedules},
        {"shift", pipeline_shift},
        {"tapp", pipeline_tapp},
        {"tapp-learned", pipeline_tapp_learned},
        {"heterps", pipeline_heterps},
        {"heterps-map", pipeline_heterps_map},
        {"clicks", pipeline_clicks},
        {"rows", pipeline_rows},
        {"data-server", pipeline_data_server}}},
      {"plan",
       {{"exact", plan_exact_rows},
        {"peers", plan_peer_rows},
        {"large", plan_large_rows},
        {"models", plan_model_rows},
        {"prediction", plan_prediction_rows}}},
      {"planners", {{"all", planners_bench}, {"learning", planners_learning}}},
      {"ps",
       {{"memory", ps_memory_rows},
        {"network", ps_network_rows},
        {"racks", racks_rows},
        {"auto", ps_auto_rows},
        {"train", ps_train_rows},
        {"sparse", sparse_rows},
        {"sparse-network", sparse_net_rows}}},
      {"ps-ablation", {{"all", ps_ablation_bench}}},
      {"python",
       {{"speeds", python_bench("speeds.py")},
        {"pinned", python_bench("pinned.py")},
        {"overhead", python_bench("overhead.py")},
        {"equality", python_bench("equality.py")},
        {"backend", python_bench("backend.py")},
        {"pipeline-plan", python_bench("pipeline_plan.py")},
        {"server", python_bench("parameter_server.py")},
        {"embeddings", python_bench("embeddings.py")},
        {"install", python_bench("install.py")}}},
      {"schedule",
       {{"anchors", schedule_anchors},
        {"speed", schedule_speed},
        {"traces", schedule_traces},
        {"elastic", schedule_elastic},
        {"scale", schedule_scale},
        {"settings", schedule_settings},
        {"gadget-contended", schedule_gadget_contended},
        {"rounding", schedule_rounding},
        {"heterogeneous", schedule_heterogeneous},
        {"sia", schedule_sia},
        {"slots", schedule_slots}}},
      {"serve", {{"all", serve_bench}}},
      {"simulate", {{"all", simulate_bench}}},
      {"simulation", {{"all", simulation_bench}}},
      {"tls", {{"all", tls_bench}}},
      {"zero-compute", {{"all", zero_compute_bench}, {"sharded", sharded_server_bench}}}};
  return all;
}

constexpr std::string_view kLong[] = {"elastic", "planners",
                                      "simulation"};  // take half an hour and more; run only when named

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

BenchOptions make_options(const BenchArguments& arguments) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const char* python = std::getenv("MOTLEY_PYTHON");
  BenchOptions options;
  options.quick = arguments.quick;
  options.pages = arguments.pages;
  options.source_folder = MOTLEY_SOURCE_FOLDER;
  options.program = program;
  options.motley = program.parent_path() / "motley";
  options.python = python != nullptr ? python : MOTLEY_PYTHON;
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return options;
}

// Whether all rows met their targets.
Result<bool> run_bench(const BenchArguments& arguments) {
  if (arguments.list) {
    for (const auto& [name, parts] : benches()) {
      if (std::ranges::find(kLong, name) == std::end(kLong)) std::printf("%s\n", name.c_str());
    }
    return true;
  }
  if (arguments.name.empty()) {
    return fail(ErrorCode::kInvalidInput, "NAME: the name of a benchmark is needed; --list prints them");
  }
  MOTLEY_TRY(check_parts(arguments));
  const BenchOptions options = make_options(arguments);
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
  return std::ranges::all_of(rows, &BenchRow::met);
}

void add_options(CLI::App& app, BenchArguments& arguments) {
  app.footer("Example:\n  motley-bench partition --quick --json rows.json");
  std::vector<std::string> names;
  for (const auto& [name, parts] : benches()) names.push_back(name);
  app.add_option("NAME", arguments.name, "Which one")->check(CLI::IsMember(names));
  app.add_option("--part", arguments.parts, "Run only this part of it (may be given more than once)");
  app.add_option("--json", arguments.json,
                 "Also write the rows to this file; with --part, into it: it keeps the other parts' rows");
  app.add_option("--html-dir", arguments.pages, "Folder for pages and tables that some write")->capture_default_str();
  app.add_flag("--list", arguments.list, "Print the names of those that tools/bench runs");
  app.add_flag("--quick", arguments.quick, "Stay under a minute; leaves out rows marked long");
}

int run(const BenchArguments& arguments) {
  const Result<bool> met = run_bench(arguments);
  if (met && *met) return 0;
  std::fflush(stdout);
  std::fprintf(stderr, "motley-bench: error: %s\n", met ? "a row missed its target" : met.error().message.c_str());
  return met ? 3 : met.error().code == ErrorCode::kInvalidInput ? 2 : 1;
}

}  // namespace
}  // namespace motley::bench

int main(int argc, char** argv) {
  motley::start_logging("info");
  // A process of the benchmark "exchange"; not for users.
  if (argc > 1 && std::string_view(argv[1]) == "exchange-worker") {
    return motley::bench::exchange_worker_main({argv + 2, argv + argc});
  }
  CLI::App app("Runs the comparisons that Motley's documentation quotes.", "motley-bench");
  app.set_version_flag("--version", "motley-bench " MOTLEY_VERSION);
  app.failure_message(CLI::FailureMessage::simple);
  motley::bench::BenchArguments arguments;
  motley::bench::add_options(app, arguments);
  try {
    app.parse(argc, argv);
    return motley::bench::run(arguments);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "motley-bench: error: %s\n", problem.what());
    return 1;
  }
}
