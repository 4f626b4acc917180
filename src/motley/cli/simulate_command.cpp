// motley simulate: replays a step of a plan event by event.
#include <cmath>
#include <cstdio>

#include "motley/app/planning_input.h"
#include "motley/app/simulate_plan.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/report/plan_timeline.h"

namespace motley::cli {
namespace {

struct SimulateArguments {
  app::StepQuestion question;
  std::string trace;
  std::string page;
  bool own_links = false;
};

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
        std::pair{"gradient synchronisation", path.gradient_sync}, std::pair{"optimizer", path.update}}) {
    if (seconds > 0) {
      text += fmt::format("  {:<10} {:<12} {:.1f} %\n", name, format_seconds(seconds), 100 * seconds / step);
    }
  }
  std::printf("%sdevices\n", text.c_str());
  print_devices(timeline);
}

Status run_simulate(SimulateArguments arguments) {
  arguments.question.options.links_contended = !arguments.own_links;
  arguments.question.options.keep_events = !arguments.trace.empty() || !arguments.page.empty();
  MOTLEY_ASSIGN(const app::SimulatedStep step, app::simulate_plan(arguments.question));
  print(step.plan, step.timeline);
  if (!arguments.trace.empty()) {
    MOTLEY_TRY(write_file(arguments.trace, planning::to_chrome_trace(step.timeline, step.plan)));
    std::printf("trace: %s\n", arguments.trace.c_str());
  }
  if (!arguments.page.empty()) {
    MOTLEY_TRY(write_file(arguments.page, report::simulation_page(step.timeline, step.plan)));
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
  command->add_option("PLAN", arguments->question.plan, "The plan (plan.json)")->required();
  command->add_option("--profile", arguments->question.profile, "What the layers take (profile.json)");
  command->add_option("--model", arguments->question.model, "A published model instead, as for motley plan")
      ->check(CLI::IsMember(app::model_names()));
  command->add_option("--cluster", arguments->question.cluster, "Device types and links (cluster.yaml)")->required();
  command->add_option("--timeline", arguments->trace,
                      "Write the timeline to this file for chrome://tracing or Perfetto");
  command->add_option("--html", arguments->page, "Write a page with the timeline's picture to this file");
  command
      ->add_option("--straggler", arguments->question.stragglers,
                   "STAGE:REPLICA:SLOWDOWN, a device that is slower than its profile; may be repeated")
      ->expected(1);
  command->add_option("--jitter", arguments->question.options.jitter,
                      "Relative standard deviation of computation times [0]");
  command->add_option("--seed", arguments->question.options.seed, "Of the jitter [0]");
  command->add_option("--global-batch-size", arguments->question.batch, "Samples of a step [the plan's]")
      ->check(CLI::PositiveNumber);
  command->add_option("--micro-batches", arguments->question.micro_batches, "That a step is cut into [the plan's]")
      ->check(CLI::PositiveNumber);
  command->add_flag("--dedicated-links", arguments->own_links,
                    "Give each stage its own link to its neighbours, as the cost model does; else stages between the "
                    "same device types share one");
  command->callback([&action, arguments] { action = [arguments] { return run_simulate(*arguments); }; });
}

}  // namespace motley::cli
