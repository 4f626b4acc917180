// motley simulate: simulates a step of a plan event by event.
#include <cmath>
#include <cstdio>

#include "motley/app/simulate_plan.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/options.h"
#include "motley/report/plan_view.h"

namespace motley::cli {
namespace {

struct SimulateArguments {
  app::StepQuestion question;
  std::string trace;
  std::string page;

  static const OptionTable<SimulateArguments>& options() {
    using enum OptionKind;
    static const OptionTable<SimulateArguments> options = {
        {"", &SimulateArguments::question},
        {{"timeline", kPath, "write the timeline to this file, for Perfetto or chrome://tracing"},
         &SimulateArguments::trace},
        {{"html", kPath, "write a page that draws the timeline to this file"}, &SimulateArguments::page},
    };
    return options;
  }
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
    text += fmt::format("  (the plan predicts {})", format_seconds(plan.predicted.step_seconds));
  }
  text += fmt::format("\nthroughput  {} samples/s\n", format_number(static_cast<double>(plan.batch) / step));
  text += "time along the critical path\n";
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
  arguments.question.keep_events = !arguments.trace.empty() || !arguments.page.empty();
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
  CLI::App* command = app.add_subcommand(
      "simulate", "Simulate a step of a plan: its time, what it consists of, and each device's bubble fraction");
  command->footer(
      "Example:\n"
      "  motley simulate examples/pipeline/plan.json --profile examples/pipeline/profile.json \\\n"
      "      --cluster examples/pipeline/cluster.yaml --straggler 1:0:1.5 --html step.html");
  auto arguments = std::make_shared<SimulateArguments>();
  command->add_option("PLAN", arguments->question.plan, "The plan (plan.json)")->required();
  add_options(*command, *arguments);
  command->get_option("--cluster")->required();
  command->callback([&action, arguments] { action = [arguments] { return run_simulate(*arguments); }; });
}

}  // namespace motley::cli
