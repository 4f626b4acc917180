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
#include "motley/cli/commands.h"
#include "motley/report/closing.h"
#include "motley/report/comparison.h"
#include "motley/report/plan_view.h"
#include "motley/report/report.h"

namespace motley::cli {
namespace {

void print_line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void print_warning(const std::string& text) {
  std::fprintf(stderr, "motley: %s %s\n", colored("warning:", TextColor::kWarning, STDERR_FILENO).c_str(),
               text.c_str());
}

// An app::Ask: the planner's answer, with a line that replaces itself meanwhile, on a terminal only.
Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request) {
  const bool is_shown = ::isatty(STDERR_FILENO) == 1;
  if (is_shown) {
    request.progress = [method = planner.name](const planning::Progress& progress) {
      std::fprintf(stderr, "\r\033[K%s: %lld plans in %s, best %.6g, bound %.6g", method.c_str(),
                   static_cast<long long>(progress.evaluations), format_seconds(progress.seconds).c_str(),
                   progress.best, progress.bound);
      std::fflush(stderr);
    };
  }
  Result<planning::Answer> answer = planner.plan(request);
  if (is_shown) std::fprintf(stderr, "\r\033[K");
  return answer;
}

void add_job(CLI::App& command, app::JobRequest& job, const std::string& help) {
  command.add_option("JOB", job.file, help);
  add_texts(command, "Keys of the job", app::job_options(), job.flags);
}

// --- profile

struct ProfileArguments {
  app::ProfileRequest request;
  std::string output = "profile.json";

  static const OptionTable<ProfileArguments>& options() {
    static const OptionTable<ProfileArguments> options = {
        {"", &ProfileArguments::request},
        {{"output", OptionKind::kPath, "file to write the profile to"}, &ProfileArguments::output},
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
  std::printf("  %s\n", device.rule.c_str());
  std::printf("  fraction that more devices divide: %.3f of computation, %.3f of communication (%s: %s)\n",
              device.compute_fraction, device.communication_fraction,
              is_measured ? model::to_string(device.fractions_origin) : "scaled", device.fractions_rule.c_str());
}

Status run_profile(const ProfileArguments& arguments) {
  MOTLEY_ASSIGN(const model::Profile profile, app::make_profile(arguments.request));
  MOTLEY_TRY(write_file(arguments.output, model::to_json(profile)));
  std::printf("%s: %zu layers; %s\n", profile.graph.name.c_str(), profile.graph.layers.size(),
              profile.graph.source.c_str());
  for (const model::DeviceProfile& device : profile.devices) print_device(profile, device);
  for (const model::ProfiledLink& link : profile.links) {
    std::printf("\nlink %s - %s: %s/s in each direction, latency %s (%s, TCP over loopback)\n", link.from.c_str(),
                link.to.c_str(), format_bytes(link.bytes_per_second).c_str(),
                format_seconds(link.latency_seconds).c_str(), model::to_string(link.origin));
  }
  std::printf("\nprofile: %s\n", arguments.output.c_str());
  return {};
}

// --- plan

struct PlanArguments {
  app::PlanQuestion question;
  std::string output = "plan.json";
  std::string page;

  static const OptionTable<PlanArguments>& options() {
    using enum OptionKind;
    static const OptionTable<PlanArguments> options = {
        {"", &PlanArguments::question},
        {{"output", kPath, "file to write the plan to"}, &PlanArguments::output},
        {{"html", kPath, "also write a page that draws the pipeline"}, &PlanArguments::page},
    };
    return options;
  }
};

Status run_plan(const PlanArguments& arguments) {
  MOTLEY_ASSIGN(const app::PlanTask task, app::make_plan_task(arguments.question, print_warning));
  MOTLEY_TRY(check_writable(arguments.output));
  if (!arguments.page.empty()) MOTLEY_TRY(check_writable(arguments.page));
  const InterruptStop interrupt;
  const app::PlanFinder finder{
      .question = arguments.question, .task = task, .stop = interrupt.token(), .ask = ask, .tell = print_line};
  MOTLEY_ASSIGN(const planning::FoundPlan found, finder.find());
  std::printf("%s", report::plan_text(found).c_str());
  MOTLEY_ASSIGN(const planning::Plan plan, finder.make_plan(found));
  if (arguments.question.heterogeneous_stages) {
    std::printf("\nwith stages that mix device types, replayed: %s per step%s\n",
                format_seconds(plan.predicted.step_seconds).c_str(),
                arguments.page.empty() ? "" : "; the page shows the plan before");
  }
  MOTLEY_TRY(write_named("\nplan", arguments.output, planning::to_json(plan)));
  if (!arguments.page.empty()) MOTLEY_TRY(write_named("page", arguments.page, report::plan_page(found)));
  return {};
}

// --- simulate

struct SimulateArguments {
  app::StepQuestion question;
  std::string timeline;
  std::string json;
  std::string page;

  static const OptionTable<SimulateArguments>& options() {
    using enum OptionKind;
    static const OptionTable<SimulateArguments> options = {
        {"", &SimulateArguments::question},
        {{"timeline", kPath, "write the timeline to this file, for Perfetto or chrome://tracing"},
         &SimulateArguments::timeline},
        {{"json", kPath, "write the step's figures to this file"}, &SimulateArguments::json},
        {{"html", kPath, "write a page that draws the timeline to this file"}, &SimulateArguments::page},
    };
    return options;
  }
};

Status run_simulate(SimulateArguments arguments) {
  const auto& [question, timeline, json, page] = arguments;
  arguments.question.keep_events = !timeline.empty() || !page.empty();
  MOTLEY_ASSIGN(const app::SimulatedStep step, app::simulate_plan(question));
  std::printf("%s", report::simulation_text(step.timeline, step.plan).c_str());
  if (!timeline.empty()) {
    MOTLEY_TRY(write_named("trace", timeline, planning::to_chrome_trace(step.timeline, step.plan)));
  }
  if (!json.empty()) MOTLEY_TRY(write_named("figures", json, app::to_json(step)));
  if (!page.empty()) MOTLEY_TRY(write_named("page", page, report::simulation_page(step.timeline, step.plan)));
  return {};
}

// --- train

struct TrainArguments {
  app::TrainRequest request;
  bool keys = false;
  bool schema = false;

  static const OptionTable<TrainArguments>& options() {
    using enum OptionKind;
    static const OptionTable<TrainArguments> options = {
        {"", &TrainArguments::request},
        {{"keys", kBoolean, "print the keys of a job file as a table (docs/reference/job.md) and end"},
         &TrainArguments::keys},
        {{"schema", kBoolean, "print the JSON Schema of a job file (docs/schema) and end"}, &TrainArguments::schema},
    };
    return options;
  }
};

Status run_train(const TrainArguments& arguments) {
  if (arguments.keys || arguments.schema) {
    std::printf("%s", (arguments.keys ? train::document_job() : train::job_schema()).c_str());
    return {};
  }
  return app::train_job(arguments.request, {.print = print_line,
                                            .warn = print_warning,
                                            .ask = ask,
                                            .write_page = report::write_report,
                                            .close = report::closing_text});
}

// --- report

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output;
  bool overwrite = false;

  static const OptionTable<ReportArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ReportArguments> options = {
        {{"output", kPath,
          "write the page to this file; default: report.html in the run's folder, which is replaced, or "
          "of several runs comparison.html here"},
         &ReportArguments::output},
        {{"overwrite", kBoolean, "replace the file that --output names, or comparison.html"},
         &ReportArguments::overwrite},
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

Status run_report(const ReportArguments& arguments) {
  const auto& [runs, output, overwrite] = arguments;
  if (runs.size() == 1 && output.empty()) {
    MOTLEY_TRY(report::write_report(runs.front()));
    std::printf("%s/report.html\n", runs.front().c_str());
    return {};
  }
  const std::string file = output.empty() ? "comparison.html" : output;
  MOTLEY_TRY(check_page(file, overwrite));
  if (runs.size() == 1) {
    MOTLEY_ASSIGN(const std::string page, report::render_run(runs.front()));
    return write_named("page", file, page);
  }
  MOTLEY_ASSIGN(const report::Comparison comparison,
                report::compare_runs({arguments.runs.begin(), arguments.runs.end()}));
  std::printf("%s", report::comparison_text(comparison).c_str());
  return write_named("page", file, report::comparison_page(comparison, std::filesystem::path(file).parent_path()));
}

}  // namespace

void add_profile(CLI::App& app, Action& action) {
  const auto [command, arguments] = add_command<ProfileArguments>(
      app, action, "profile", "Measure a job's network on the devices here, for planning",
      "Every key of the job file is also a flag. Examples:\n"
      "  motley profile examples/fashion-mnist/job.yaml\n"
      "  motley profile examples/fashion-mnist/job.yaml --model.name resnet18 --scale gpu=cpu*0.05 --output "
      "r18.json\n"
      "  motley profile examples/clicks/job.yaml --estimate --cluster examples/clicks/cluster.yaml\n"
      "  motley profile --model vgg16 --cluster examples/heterogeneous/cluster.yaml --global-batch-size 128",
      run_profile);
  add_job(command, arguments.request.job, "Job file (docs/reference/job.md)");
}

void add_plan(CLI::App& app, Action& action) {
  add_command<PlanArguments>(
      app, action, "plan", "Choose pipeline stages, device types and counts for a model",
      "Examples:\n"
      "  motley plan --model ctrdnn-16 --cluster examples/rent/cluster.yaml --cost-model heterps --min-throughput "
      "200000\n"
      "  motley plan --model vgg16 --cluster examples/rent/cluster.yaml --compare --html plan.html\n"
      "  motley plan --profile profile.json --what-if cpu.price=0.01..1\n"
      "  motley plan --profile profile.json --method rl-attention --measure examples/fashion-mnist/job.yaml "
      "--time-limit 5min",
      run_plan);
}

void add_simulate(CLI::App& app, Action& action) {
  const auto [command, arguments] = add_command<SimulateArguments>(
      app, action, "simulate",
      "Simulate a step of a plan: its time, what it consists of, and each device's bubble fraction",
      "Example:\n"
      "  motley simulate examples/pipeline/plan.json --profile examples/pipeline/profile.json \\\n"
      "      --cluster examples/pipeline/cluster.yaml --straggler 1:0:1.5 --html step.html",
      run_simulate);
  command.add_option("PLAN", arguments.question.plan, "The plan (plan.json)")->required();
  command.get_option("--cluster")->required();
}

void add_train(CLI::App& app, Action& action) {
  const auto [command, arguments] = add_command<TrainArguments>(
      app, action, "train", "Train a job: starts its workers here, or joins as the rank it is given",
      "Every key of the job file is also a flag. Examples:\n"
      "  motley train examples/fashion-mnist/job.yaml --workers 2 --global-batch-size 128\n"
      "  motley train examples/fashion-mnist/job.yaml --plan auto\n"
      "  motley train examples/fashion-mnist/job.yaml --plan plan.json\n"
      "  motley train --resume --run-directory runs/demo\n"
      "  torchrun --no-python --nproc-per-node 2 motley train examples/fashion-mnist/job.yaml",
      run_train);
  command
      .add_flag("--resume", arguments.request.resume,
                "go on from the newest good checkpoint of --run-directory; --resume=auto: where it holds one, else "
                "start (with --overwrite also over a run that came to have none)")
      ->check(CLI::IsMember({"true", "false", "auto"}))
      ->option_text("or --resume=auto");
  command.get_option("--rank")->needs("--hosts");
  command.get_option("--join")->needs("--hosts");
  add_job(command, arguments.request.job, "Job file (docs/reference/job.md); with --resume the run's own by default");
}

// Of the Python package, which answers them before the other commands; the program knows their names.
void add_launch(CLI::App& app, Action& action) {
  for (const auto& [name, about] : {std::pair("launch", "Start the ranks of a Python script on this machine"),
                                    std::pair("run", "The same, and go on where ranks are lost")}) {
    CLI::App* command = app.add_subcommand(name, about);
    command->footer(fmt::format("Of the Python package: python -m motley {} --help", name))->prefix_command();
    command->callback([&action, name] {
      action = [name]() -> Status {
        return fail(ErrorCode::kInvalidInput,
                    "{0}: starts Python scripts; accepted: python -m motley {0}, of the Python package "
                    "(docs/reference/python.md)",
                    name);
      };
    });
  }
}

void add_report(CLI::App& app, Action& action) {
  const auto [command, arguments] = add_command<ReportArguments>(
      app, action, "report", "Write the page of a run (made automatically at its end), or one that compares several",
      "Examples:\n"
      "  motley report runs/demo\n"
      "  motley report runs/demo runs/demo-planned --output comparison.html",
      run_report);
  command.add_option("RUN", arguments.runs, "Folder of a run; several: they are compared")->required();
}

}  // namespace motley::cli
