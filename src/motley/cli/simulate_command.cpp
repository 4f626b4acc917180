// motley simulate: replays a step of a plan event by event.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "motley/app/planning_input.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/model/tables.h"
#include "motley/planning/simulate/simulate.h"
#include "motley/report/plan_timeline.h"

namespace motley::cli {
namespace {

struct SimulateArguments {
  std::string plan;
  std::string profile;
  std::string model;
  std::string cluster;
  std::string trace;
  std::string page;
  std::vector<std::string> stragglers;
  std::int64_t batch = 0;          // 0: the plan's
  std::int64_t micro_batches = 0;  // likewise
  planning::Options options;
  bool own_links = false;
};

Result<planning::Straggler> parse_straggler(const std::string& text) {
  planning::Straggler straggler;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  const auto read = [&](auto& value, bool last) {
    const auto [rest, error] = std::from_chars(at, end, value);
    good = good && error == std::errc() && (last ? rest == end : rest != end && *rest == ':');
    at = good && !last ? rest + 1 : rest;
  };
  read(straggler.stage, false);
  read(straggler.replica, false);
  read(straggler.slowdown, true);
  if (!good) {
    return fail(ErrorCode::kInvalidInput,
                "--straggler: '{}' is not understood; accepted is STAGE:REPLICA:SLOWDOWN, such as 1:0:1.5", text);
  }
  return straggler;
}

// Neighbouring devices of one stage and type that have the same bubble fraction are printed on one line.
void print_devices(const planning::Timeline& timeline) {
  const auto& devices = timeline.devices;
  const auto alike = [](const planning::Device& a, const planning::Device& b) {
    return a.stage == b.stage && a.type == b.type && std::abs(a.bubble_fraction - b.bubble_fraction) < 5e-4;
  };
  for (std::size_t first = 0; first < devices.size();) {
    std::size_t next = first + 1;
    while (next < devices.size() && alike(devices[first], devices[next])) {
      ++next;
    }
    const planning::Device& device = devices[first];
    const std::string replicas = next - first == 1 ? fmt::format("{}", device.replica)
                                                   : fmt::format("{} to {}", device.replica, devices[next - 1].replica);
    std::printf("%s", fmt::format("  stage {:<3} {:<24} computes {:<12} bubble {:.1f} %\n", device.stage,
                                  device.type + " " + replicas, format_seconds(device.busy_seconds),
                                  100 * device.bubble_fraction)
                          .c_str());
    first = next;
  }
}

void print(const planning::Plan& plan, const planning::Timeline& timeline) {
  const double step = timeline.step_seconds;
  std::string text = fmt::format("{}: {} samples in {} micro-batches through {} stages, {}\n", plan.model, plan.batch,
                                 plan.micro_batches, plan.stages.size(), planning::to_string(plan.schedule));
  text += fmt::format("step        {}", format_seconds(step));
  if (plan.predicted.step_seconds > 0) {
    text += fmt::format("  (the plan says {})", format_seconds(plan.predicted.step_seconds));
  }
  text += fmt::format("\nthroughput  {} samples/s\n", format_number(static_cast<double>(plan.batch) / step));
  text += "time goes along the critical path to\n";
  const planning::Path& path = timeline.critical;
  for (const auto& [name, seconds] :
       {std::pair{"forward", path.forward}, std::pair{"backward", path.backward}, std::pair{"transfers", path.transfer},
        std::pair{"gradient synchronisation", path.gradient_sync}}) {
    if (seconds > 0) {
      text += fmt::format("  {:<10} {:<12} {:.1f} %\n", name, format_seconds(seconds), 100 * seconds / step);
    }
  }
  std::printf("%sdevices\n", text.c_str());
  print_devices(timeline);
}

Status run_simulate(const SimulateArguments& arguments) {
  MOTLEY_ASSIGN(planning::Plan plan, planning::read_plan(arguments.plan));
  MOTLEY_ASSIGN(
      const app::PlanningData data,
      app::planning_data(
          {.profile = arguments.profile, .model = arguments.model, .cluster = arguments.cluster, .batch = plan.batch}));
  plan.batch = arguments.batch > 0 ? arguments.batch : plan.batch;
  plan.micro_batches = arguments.micro_batches > 0 ? arguments.micro_batches : plan.micro_batches;
  if (arguments.batch > 0 || arguments.micro_batches > 0) {
    plan.predicted = {};
    MOTLEY_TRY(planning::validate(plan, arguments.plan + " with the given batch"));
  }
  MOTLEY_ASSIGN(const planning::Problem problem, planning::problem_of_plan(data.profile, data.cluster, plan));
  planning::Options options = arguments.options;
  options.links_contended = !arguments.own_links;
  options.keep_events = !arguments.trace.empty() || !arguments.page.empty();
  for (const std::string& text : arguments.stragglers) {
    MOTLEY_ASSIGN(const planning::Straggler straggler, parse_straggler(text));
    options.stragglers.push_back(straggler);
  }
  const Result<planning::Timeline> timeline = planning::simulate(problem, plan, options);
  if (!timeline) {
    return fail(timeline.error().within(arguments.plan));
  }
  print(plan, *timeline);
  if (!arguments.trace.empty()) {
    MOTLEY_TRY(write_file(arguments.trace, planning::to_chrome_trace(*timeline, plan)));
    std::printf("trace: %s\n", arguments.trace.c_str());
  }
  if (!arguments.page.empty()) {
    MOTLEY_TRY(write_file(arguments.page, report::simulation_page(*timeline, plan)));
    std::printf("page: %s\n", arguments.page.c_str());
  }
  return {};
}

}  // namespace

void add_simulate(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("simulate", "Replay a step of a plan: its time, where that goes, and how idle each device is");
  command->footer(
      "Example:\n"
      "  motley simulate examples/pipeline/plan.json --profile examples/pipeline/profile.json \\\n"
      "      --cluster examples/pipeline/cluster.yaml --straggler 1:0:1.5 --html step.html");
  auto arguments = std::make_shared<SimulateArguments>();
  command->add_option("PLAN", arguments->plan, "The plan (plan.json)")->required();
  command->add_option("--profile", arguments->profile, "What the layers take (profile.json)");
  command->add_option("--model", arguments->model, "A published model instead, as for motley plan")
      ->check(CLI::IsMember(model::table_names()));
  command->add_option("--cluster", arguments->cluster, "Device types and links (cluster.yaml)")->required();
  command->add_option("--timeline", arguments->trace,
                      "Write the timeline to this file for chrome://tracing or Perfetto");
  command->add_option("--html", arguments->page, "Write a page with the timeline's picture to this file");
  command
      ->add_option("--straggler", arguments->stragglers,
                   "STAGE:REPLICA:SLOWDOWN, a device that is slower than its profile; may be repeated")
      ->expected(1);
  command->add_option("--jitter", arguments->options.jitter, "Relative standard deviation of computation times [0]");
  command->add_option("--seed", arguments->options.seed, "Of the jitter [0]");
  command->add_option("--global-batch-size", arguments->batch, "Samples of a step [the plan's]")
      ->check(CLI::PositiveNumber);
  command->add_option("--micro-batches", arguments->micro_batches, "That a step is cut into [the plan's]")
      ->check(CLI::PositiveNumber);
  command->add_flag("--dedicated-links", arguments->own_links,
                    "Give each stage its own link to its neighbours, as the cost model does; else stages between the "
                    "same device types share one");
  command->callback([&action, arguments] { action = [arguments] { return run_simulate(*arguments); }; });
}

}  // namespace motley::cli
