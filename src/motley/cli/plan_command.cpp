// motley plan: chooses stages, devices and counts for a model on a cluster, compares methods, and says how the answer
// hangs on prices and counts.
#include <cstdio>

#include "motley/app/train/find_plan.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/options.h"
#include "motley/cli/planner_progress.h"
#include "motley/report/plan_view.h"

namespace motley::cli {
namespace {

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

void print_line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

Status run_plan(const PlanArguments& arguments) {
  MOTLEY_ASSIGN(const app::PlanTask task, app::make_plan_task(arguments.question, print_warning));
  MOTLEY_TRY(check_writable(arguments.output));
  if (!arguments.page.empty()) {
    MOTLEY_TRY(check_writable(arguments.page));
  }
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
  MOTLEY_TRY(write_file(arguments.output, planning::to_json(plan)));
  std::printf("\nplan: %s\n", arguments.output.c_str());
  if (!arguments.page.empty()) {
    MOTLEY_TRY(write_file(arguments.page, report::plan_page(found)));
    std::printf("page: %s\n", arguments.page.c_str());
  }
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("plan", "Choose pipeline stages, device types and counts for a model");
  command->footer(
      "Examples:\n"
      "  motley plan --model ctrdnn-16 --cluster examples/rent/cluster.yaml --cost-model heterps --min-throughput "
      "200000\n"
      "  motley plan --model vgg16 --cluster examples/rent/cluster.yaml --compare --html plan.html\n"
      "  motley plan --profile profile.json --what-if cpu.price=0.01..1\n"
      "  motley plan --profile profile.json --method rl-attention --measure examples/fashion-mnist/job.yaml "
      "--time-limit 5min");
  auto arguments = std::make_shared<PlanArguments>();
  add_options(*command, *arguments);
  command->callback([&action, arguments] { action = [arguments] { return run_plan(*arguments); }; });
}

}  // namespace motley::cli
