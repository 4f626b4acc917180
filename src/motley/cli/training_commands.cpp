// motley profile, plan, simulate, train and report: from a job to its run and the page of that.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "motley/app/simulate_plan.h"
#include "motley/app/train/find_plan.h"
#include "motley/app/train/train_job.h"
#include "motley/base/os/signals.h"
#include "motley/base/os/terminal.h"
#include "motley/base/units.h"
#include "motley/cli/command_text.h"
#include "motley/cli/commands.h"
#include "motley/cli/results.h"
#include "motley/report/closing.h"
#include "motley/report/comparison.h"
#include "motley/report/plan_view.h"
#include "motley/report/report.h"
#include "motley/serial/bench_row.h"
#include "motley/serial/json_fields.h"
#include "motley/train/job/run_directory.h"

namespace motley::cli {
namespace {

// Whether there was one, without the result.
template <class T>
Status failure(const Result<T>& result) {
  return result ? Status() : fail(result.error());
}

void print_line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void print_warning(const std::string& text) {
  std::fprintf(stderr, "motley: %s %s\n", colored("warning:", TextColor::kWarning, STDERR_FILENO).c_str(),
               text.c_str());
}

// The planner's answer, with a line that replaces itself meanwhile, on a terminal only.
app::Ask make_ask(const GeneralFlags& general) {
  const bool is_shown = is_terminal(STDERR_FILENO) && !general.quiet;
  return [is_shown](const planning::Planner& planner, planning::Request request) {
    if (is_shown) {
      request.progress = [method = planner.name,
                          criterion = request.objective.criterion](const planning::Progress& progress) {
        const std::string line = fmt::format("{}: {} in {}, {}", method, format_count(progress.evaluations, "plan"),
                                             format_seconds(progress.seconds), planning::describe(progress, criterion));
        std::fprintf(stderr, "\r\033[K%s", line.c_str());
        std::fflush(stderr);
      };
    }
    Result<planning::Answer> answer = planner.plan(request);
    if (is_shown) std::fprintf(stderr, "\r\033[K");
    return answer;
  };
}

void add_job(CLI::App& command, app::JobRequest& job, const std::string& help) {
  add_argument(command, {"JOB", OptionKind::kPath, help}, job.file);
  add_keys(command, app::job_options(), job.flags);
}

// --- profile

struct ProfileArguments {
  app::ProfileRequest request;
  std::string output = "profile.json";
  bool json = false;

  // That there is a job or a model, as the measurement says it, and that the job can be read.
  Status check() const {
    const bool has_job = !request.job.file.empty();
    if (has_job == !request.model.empty()) return failure(app::make_profile(request));
    return has_job ? failure(app::read_job(request.job)) : Status();
  }

  static const OptionTable<ProfileArguments>& options() {
    static const OptionTable<ProfileArguments> options = {
        {"", &ProfileArguments::request},
        {{"output", OptionKind::kOutput, "file to write the profile to"}, &ProfileArguments::output},
        {json_option(), &ProfileArguments::json},
    };
    return options;
  }
};

// One line per layer: its times at the profile's own batch size.
void print_device(const model::Profile& profile, const model::DeviceProfile& device) {
  const bool is_measured = device.origin == model::Origin::kMeasured;
  std::printf("\n%s: %s, batch %.0f\n", device.type.c_str(), model::to_string(device.origin), profile.batch);
  std::printf("  %-28s %-16s %12s %12s %12s %12s %8s\n", "layer", "kind", "parameters", "bytes out", "forward ms",
              "backward ms", "spread");
  double forward = 0;
  double backward = 0;
  double parameters = 0;
  for (std::size_t i = 0; i < device.layers.size(); ++i) {
    const model::Layer& layer = profile.graph.layers[i];
    const model::LayerTime& time = device.layers[i];
    const auto measured = std::ranges::find(time.measurements, profile.batch, &model::Measurement::batch);
    const std::string spread =
        measured != time.measurements.end() ? fmt::format("{:.1f}%", 100 * measured->spread) : "-";
    std::printf("  %-28s %-16s %12.0f %12s %12.3f %12.3f %8s\n", layer.name.c_str(), model::to_string(layer.kind),
                layer.parameters, format_bytes(layer.activation_bytes).c_str(), 1e3 * time.forward.at(profile.batch),
                1e3 * time.backward.at(profile.batch), spread.c_str());
    forward += time.forward.at(profile.batch);
    backward += time.backward.at(profile.batch);
    parameters += layer.parameters;
  }
  std::printf("  %-28s %-16s %12.0f %12s %12.3f %12.3f\n", "all", "", parameters, "", 1e3 * forward, 1e3 * backward);
  const std::string overheads = model::describe_overheads(profile, device);
  if (!overheads.empty()) std::printf("  besides its layers: %s\n", overheads.c_str());
  if (device.noise) std::printf("  how quiet it was: %s\n", model::describe(*device.noise).c_str());
  std::printf("  %s\n", device.rule.c_str());
  std::printf("  fraction that more devices divide: %.3f of computation, %.3f of communication (%s: %s)\n",
              device.compute_fraction, device.communication_fraction,
              is_measured ? model::to_string(device.fractions_origin) : "scaled", device.fractions_rule.c_str());
}

void print_profile(const model::Profile& profile) {
  std::printf("%s: %zu layers; %s\n", profile.graph.name.c_str(), profile.graph.layers.size(),
              profile.graph.source.c_str());
  for (const model::DeviceProfile& device : profile.devices) print_device(profile, device);
  for (const model::ProfiledLink& link : profile.links) {
    std::printf("\nlink %s - %s: %s/s in each direction, latency %s (%s, TCP over loopback)\n", link.from.c_str(),
                link.to.c_str(), format_bytes(link.bytes_per_second).c_str(),
                format_seconds(link.latency_seconds).c_str(), model::to_string(link.origin));
  }
}

Status run_profile(const ProfileArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(const model::Profile profile, app::make_profile(arguments.request));
  const std::string text = model::to_json(profile);
  if (!json.is_asked()) print_profile(profile);
  for (const model::DeviceProfile& device : profile.devices) {
    if (device.origin != model::Origin::kMeasured || !device.noise || !model::is_too_noisy(*device.noise)) continue;
    print_warning(
        fmt::format("'{}' was measured on a busy machine ({}): plans made of it may be far off; measure "
                    "again when nothing else runs",
                    device.type, model::describe(*device.noise)));
  }
  MOTLEY_TRY(write_named("\nprofile", arguments.output, text));
  return json.print(text);
}

// --- plan

struct PlanArguments {
  app::PlanQuestion question;
  std::string output = "plan.json";
  std::string page;
  bool json = false;

  Status check() const {
    return failure(app::make_plan_task(question, [](const std::string&) {}));
  }

  static const OptionTable<PlanArguments>& options() {
    using enum OptionKind;
    static const OptionTable<PlanArguments> options = {
        {"", &PlanArguments::question},
        {{"output", kOutput,
          "file to write the plan to, as things are: what --what-if finds is printed, and is in --json"},
         &PlanArguments::output},
        {{"html", kOutput, "also write a page that draws the pipeline to this file"}, &PlanArguments::page},
        {json_option(), &PlanArguments::json},
    };
    return options;
  }
};

std::optional<double> value_of_answer(const planning::Answer& answer, planning::Criterion criterion) {
  return answer.best ? std::optional(planning::value(answer.evaluation, criterion)) : std::nullopt;
}

PlanResult make_result(const planning::FoundPlan& found) {
  const planning::Criterion criterion = found.objective.criterion;
  const auto value = [&](const planning::Answer& answer) { return value_of_answer(answer, criterion); };
  const auto value_then = [&](const planning::Marginal::Change& change) {
    return change.best ? std::optional(planning::value(*change.best, criterion)) : std::nullopt;
  };
  PlanResult result = {.objective = planning::describe(found.objective),
                       .method = found.plan.method,
                       .value = planning::value(found.evaluation, criterion),
                       .is_proved = found.answer.proved && !found.is_mixed,
                       .bound = found.plan.bound,
                       .evaluations = found.answer.evaluations,
                       .search_seconds = found.answer.seconds,
                       .plan = AnyJson::parse(planning::to_json(found.plan))};
  for (std::size_t i = 0; i < found.alternatives.size(); ++i) {
    const planning::Alternative& one = found.alternatives[i];
    result.alternatives.push_back(
        {.plan = AnyJson::parse(planning::to_json(one.plan)),
         .value = planning::value(one.evaluation, criterion),
         .worse = one.worse,
         .reason = one.reason,
         .better_in = found.uncertainty ? std::optional(found.uncertainty->better[i]) : std::nullopt});
  }
  for (const planning::Marginal& marginal : found.marginals) {
    result.marginals.push_back({.device_type = found.problem.types[static_cast<std::size_t>(marginal.type)].name,
                                .one_more = value_then(marginal.one_more),
                                .one_fewer = value_then(marginal.one_fewer)});
  }
  for (const auto& [question, regimes] : found.what_ifs) {
    PlanWhatIf& what_if = result.what_ifs.emplace_back(PlanWhatIf{.question = question.text, .regimes = {}});
    for (const planning::Regime& regime : regimes) what_if.regimes.push_back({regime.from, value(regime.answer)});
  }
  for (const planning::MethodAnswer& one : found.methods) {
    result.methods.push_back({.method = one.method,
                              .value = value(one.answer),
                              .is_proved = one.answer.proved,
                              .search_seconds = one.answer.seconds,
                              .refused = one.refused});
  }
  return result;
}

Status run_plan(const PlanArguments& arguments, const GeneralFlags& general) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(const app::PlanTask task, app::make_plan_task(arguments.question, print_warning));
  const InterruptStop interrupt;
  const app::PlanFinder finder{.question = arguments.question,
                               .task = task,
                               .stop = interrupt.token(),
                               .ask = make_ask(general),
                               .tell = print_line};
  MOTLEY_ASSIGN(const planning::FoundPlan found, finder.find());
  if (!json.is_asked()) std::printf("%s", report::plan_text(found).c_str());
  const bool asks_more = !arguments.question.what_ifs.empty();  // whose answers are in no file
  MOTLEY_TRY(
      write_named(asks_more ? "\nplan, as things are" : "\nplan", arguments.output, planning::to_json(found.plan)));
  if (!arguments.page.empty()) MOTLEY_TRY(write_named("page", arguments.page, report::plan_page(found)));
  return json.print(json.is_asked() ? write_json(make_result(found)) : "");
}

// --- simulate

struct SimulateArguments {
  app::StepQuestion question;
  std::string timeline;
  std::string page;
  bool json = false;

  static const OptionTable<SimulateArguments>& options() {
    using enum OptionKind;
    static const OptionTable<SimulateArguments> options = {
        {"", &SimulateArguments::question},
        {{"timeline", kOutput, "write the timeline to this file, for Perfetto or chrome://tracing"},
         &SimulateArguments::timeline},
        {{"html", kOutput, "write a page that draws the timeline to this file"}, &SimulateArguments::page},
        {json_option(), &SimulateArguments::json},
    };
    return options;
  }
};

Status run_simulate(SimulateArguments arguments) {
  const auto& [question, timeline, page, is_json] = arguments;
  const JsonOutput json(is_json);
  arguments.question.keep_events = !timeline.empty() || !page.empty();
  MOTLEY_ASSIGN(const app::SimulatedStep step, app::simulate_plan(question));
  if (!json.is_asked()) std::printf("%s", report::simulation_text(step.timeline, step.plan).c_str());
  if (!timeline.empty()) {
    MOTLEY_TRY(write_named("trace", timeline, planning::to_chrome_trace(step.timeline, step.plan)));
  }
  if (!page.empty()) MOTLEY_TRY(write_named("page", page, report::simulation_page(step.timeline, step.plan)));
  return json.print(app::to_json(step));
}

// --- train

struct TrainArguments {
  app::TrainRequest request;
  bool keys = false;
  bool schema = false;
  bool json = false;

  void add_flags(CLI::App& command) {
    command
        .add_flag("--resume", request.resume,
                  "go on from the newest good checkpoint of --run-directory; --resume=auto: where it holds one, else "
                  "start (with --overwrite also over a run that came to have none)")
        ->check(CLI::IsMember({"true", "false", "auto"}).description(""))
        ->type_name(optional_value("auto"))
        ->group(kOwnFlags);
  }

  static const OptionTable<TrainArguments>& options() {
    using enum OptionKind;
    static const OptionTable<TrainArguments> options = {
        {"", &TrainArguments::request},
        {{"keys", kBoolean, "print the keys of a job file as a table (docs/reference/job.md) and end"},
         &TrainArguments::keys},
        {{"schema", kBoolean, "print the JSON Schema of a job file (docs/schema) and end"}, &TrainArguments::schema},
        {json_option(), &TrainArguments::json},
    };
    return options;
  }
};

Result<TrainResult> read_result(const std::filesystem::path& run) {
  MOTLEY_ASSIGN(const std::string text, read_file(train::RunDirectory(run).summary_file()));
  MOTLEY_ASSIGN(const std::vector<BenchRow> rows, read_rows(text));
  TrainResult result{.run = run.string(), .summary = {}};
  for (const BenchRow& row : rows) {
    result.summary.push_back({.name = row.name,
                              .metric = row.metric,
                              .value = row.value,
                              .unit = row.unit,
                              .better = row.more_is_better ? "more" : "less",
                              .target = row.target,
                              .limit = row.limit,
                              .peer = row.peer,
                              .note = row.note});
  }
  return result;
}

Status run_train(TrainArguments arguments, const GeneralFlags& general) {
  if (arguments.keys || arguments.schema) {
    std::printf("%s", (arguments.keys ? train::document_job() : train::job_schema()).c_str());
    return {};
  }
  const JsonOutput json(arguments.json);
  app::TrainRequest& request = arguments.request;
  request.quiet = general.quiet;
  if (general.verbose) request.job.flags.insert(request.job.flags.begin(), {"log_level", "debug"});
  std::filesystem::path run;  // whose page is written by this process
  const auto write_page = [&run](const std::filesystem::path& folder) {
    run = folder;
    return report::write_report(folder);
  };
  MOTLEY_TRY(app::train_job(request, {.print = print_line,
                                      .warn = print_warning,
                                      .ask = make_ask(general),
                                      .write_page = write_page,
                                      .close = report::closing_text}));
  if (!json.is_asked() || run.empty()) return {};
  MOTLEY_ASSIGN(TrainResult result, read_result(run));
  return json.print(write_json(std::move(result)));
}

// --- report

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
  bool overwrite = false;
  bool json = false;

  static const OptionTable<ReportArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ReportArguments> options = {
        {{"output", kPath,
          "write the page to this file; default: report.html in the run's folder, which is replaced, or "
          "of several runs comparison.html here"},
         &ReportArguments::output},
        {{"overwrite", kBoolean, "replace the file that --output names, or comparison.html"},
         &ReportArguments::overwrite},
        {json_option(), &ReportArguments::json},
    };
    return options;
  }
};

// That the page can be written, and takes nothing's place that is not to be replaced.
Status check_page(const std::string& file, bool overwrite) {
  if (std::filesystem::is_regular_file(file) && !overwrite) {
    return fail(ErrorCode::kInvalidInput,
                "--output: '{}' is there already; accepted: another file, or this one with "
                "--overwrite",
                file);
  }
  const Status writable = check_writable(file);
  return writable ? Status() : fail(writable.error().within("--output"));
}

// The file that holds the page.
Result<std::string> write_page(const ReportArguments& arguments) {
  const auto& runs = arguments.runs;
  if (runs.size() == 1 && arguments.output.empty()) {
    MOTLEY_TRY(report::write_report(runs.front()));
    return runs.front() + "/report.html";
  }
  const std::string file = arguments.output.empty() ? "comparison.html" : arguments.output;
  MOTLEY_TRY(check_page(file, arguments.overwrite));
  if (runs.size() == 1) {
    MOTLEY_ASSIGN(const std::string page, report::render_run(runs.front()));
    MOTLEY_TRY(write_file(file, page));
    return file;
  }
  MOTLEY_ASSIGN(const report::Comparison comparison, report::compare_runs({runs.begin(), runs.end()}));
  std::printf("%s", report::comparison_text(comparison).c_str());
  MOTLEY_TRY(write_file(file, report::comparison_page(comparison, std::filesystem::path(file).parent_path())));
  return file;
}

Status run_report(const ReportArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(std::string page, write_page(arguments));
  print_line("page: " + page);
  return json.print(write_json(ReportResult{std::move(page)}));
}

}  // namespace

void add_profile(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<ProfileArguments>(
      app, line, "profile", "Measure a job's network on the devices here, for planning",
      "Examples:\n"
      "  motley profile examples/fashion-mnist/job.yaml\n"
      "  motley profile examples/fashion-mnist/job.yaml --model.name resnet18 --scale gpu=cpu*0.05 --output "
      "r18.json\n"
      "  motley profile examples/clicks/job.yaml --estimate --cluster examples/clicks/cluster.yaml --output rent.json\n"
      "  motley profile --model vgg16 --cluster examples/heterogeneous/cluster.yaml --global-batch-size 128 "
      "--output vgg16.json",
      run_profile);
  add_job(command, arguments.request.job, "job file (docs/reference/job.md)");
  for (const char* key : {"--epochs", "--steps", "--elastic", "--plan", "--workers", "--batch-split.mode"}) {
    command.get_option(key)->group(kOtherKeys);  // of training alone
  }
}

void add_plan(CLI::App& app, CommandLine& line) {
  add_command<PlanArguments>(
      app, line, "plan", "Choose pipeline stages, device types and counts for a model",
      "Examples:\n"
      "  motley plan --model ctrdnn-16 --cluster examples/rent/cluster.yaml --cost-model heterps --min-throughput "
      "200000 --output ctrdnn.json\n"
      "  motley plan --model vgg16 --cluster examples/rent/cluster.yaml --compare --html vgg16.html --output "
      "vgg16.json\n"
      "  motley plan --profile profile.json --what-if cpu.price=0.01..1 --output plan-here.json\n"
      "  motley plan --profile profile.json --method rl-attention --measure examples/fashion-mnist/job.yaml "
      "--time-limit 5min --output measured.json",
      run_plan);
}

void add_simulate(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<SimulateArguments>(
      app, line, "simulate",
      "Simulate a step of a plan: its time, what it consists of, and each device's bubble fraction",
      "Example:\n"
      "  motley simulate examples/pipeline/plan.json --profile examples/pipeline/profile.json \\\n"
      "      --cluster examples/pipeline/cluster.yaml --straggler 1:0:1.5 --html step.html",
      run_simulate);
  add_argument(command, {"PLAN", OptionKind::kPath, "the plan (plan.json)"}, arguments.question.plan)->required();
  command.get_option("--cluster")->required();
}

void add_train(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<TrainArguments>(
      app, line, "train", "Train a job: starts its workers here, or joins as the rank it is given",
      "Examples:\n"
      "  motley train examples/fashion-mnist/job.yaml --workers 2 --global-batch-size 128\n"
      "  motley train examples/fashion-mnist/job.yaml --plan auto\n"
      "  motley train examples/fashion-mnist/job.yaml --plan plan.json\n"
      "  motley train --resume --run-directory runs/demo\n"
      "  torchrun --no-python --nproc-per-node 2 motley train examples/fashion-mnist/job.yaml",
      run_train);
  command.get_option("--rank")->needs("--hosts");
  command.get_option("--join")->needs("--hosts");
  add_job(command, arguments.request.job, "job file (docs/reference/job.md); default: with --resume the run's own");
}

void add_report(CLI::App& app, CommandLine& line) {
  const auto [command, arguments] = add_command<ReportArguments>(
      app, line, "report", "Write the page of a run (made automatically at its end), or one that compares several",
      "Examples:\n"
      "  motley report runs/demo\n"
      "  motley report runs/demo runs/demo-planned --output comparison.html",
      run_report);
  command.add_option("RUN", arguments.runs, "folder of a run; several: they are compared")
      ->type_name(OptionText{.kind = OptionKind::kPath}.type_name())
      ->required();
}

}  // namespace motley::cli
