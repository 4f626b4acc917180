// motley plan: chooses stages, devices and counts for a model on a cluster, compares methods, and says how the answer
// hangs on prices and counts.
#include <cstdio>

#include "motley/app/train/find_plan.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/planner_progress.h"
#include "motley/cli/planning_flags.h"
#include "motley/report/plan_view.h"

namespace motley::cli {
namespace {

struct PlanArguments {
  app::PlanQuestion question;
  std::string output = "plan.json";
  std::string page;
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
    std::printf("\nwith stages that mix types, replayed: %s a step%s\n",
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
  CLI::App* command = app.add_subcommand("plan", "Choose stages, devices and counts for a model");
  command->footer(
      "Examples:\n"
      "  motley plan --model ctrdnn-16 --cluster examples/rent/cluster.yaml --cost-model heterps --min-throughput "
      "200000\n"
      "  motley plan --model vgg16 --cluster examples/rent/cluster.yaml --compare --html plan.html\n"
      "  motley plan --profile profile.json --what-if cpu.price=0.01..1\n"
      "  motley plan --profile profile.json --method rl-attention --measure examples/fashion-mnist/job.yaml "
      "--time-limit "
      "300");
  auto arguments = std::make_shared<PlanArguments>();
  add_planning_input(*command, arguments->question.input);
  std::vector<std::string> methods;
  for (const auto& planner : app::every_planner()) methods.push_back(planner->name());
  command->add_option("--method", arguments->question.method, "How to search; exact proves its answer")
      ->check(CLI::IsMember(methods))
      ->capture_default_str();
  command
      ->add_option("--objective", arguments->question.criterion,
                   "What to be best at; by default cost with --min-throughput, else throughput")
      ->check(CLI::IsMember({"cost", "throughput", "step-time"}));
  command->add_option("--min-throughput", arguments->question.min_throughput, "Samples a second that must be reached");
  command->add_option("--max-cost", arguments->question.max_cost,
                      "The most that the whole job may cost (see --total-samples)");
  command->add_option("--max-hourly-cost", arguments->question.max_hourly_cost,
                      "The most that all devices together may cost an hour");
  command
      ->add_option("--time-limit", arguments->question.search.seconds,
                   "Time limit of each method; the best so far is kept")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--seed", arguments->question.search.seed, "Seed of the methods that draw at random")
      ->capture_default_str();
  command->add_flag("--compare", arguments->question.compare, "Run every method");
  command->add_flag("--heterogeneous-stages", arguments->question.heterogeneous_stages,
                    "Then look for a shorter step with stages that mix device types (pipeline; few devices)");
  command
      ->add_option("--measure", arguments->question.measure,
                   "Value plans by real steps of this job here, instead of by the cost model (methods that search)")
      ->check(CLI::ExistingFile);
  command
      ->add_option("--measure-steps", arguments->question.measure_steps,
                   "Steps of each plan, of which the median counts")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--measure-plans", arguments->question.measure_plans, "Plans that are run, at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--what-if", arguments->question.what_ifs,
                      "TYPE.price=VALUE (or count, memory, speed, bandwidth; or throughput=VALUE), or =LOW..HIGH: "
                      "where the answer changes");
  command->add_option("--output", arguments->output, "File of the plan")->capture_default_str();
  command->add_option("--html", arguments->page, "Also write a page with the pipeline drawn");
  command->callback([&action, arguments] { action = [arguments] { return run_plan(*arguments); }; });
}

}  // namespace motley::cli
