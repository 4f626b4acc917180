// motley plan: chooses stages, devices and counts for a model on a cluster, compares methods, and says how the answer
// hangs on prices and counts.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/measuring.h"
#include "motley/cli/planning_input.h"
#include "motley/cli/solving.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/replan/mixed_stages.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/what_if.h"
#include "motley/report/plan_view.h"

namespace motley::cli {
namespace {

constexpr double kMostMarginalSeconds = 6;  // for the table of one device more or fewer

struct PlanArguments {
  PlanningInput input;
  std::string method = "exact";
  std::string goal;
  double min_throughput = 0;
  double max_money = std::numeric_limits<double>::infinity();
  double max_price = std::numeric_limits<double>::infinity();
  SearchLimits search;
  bool compare = false;
  bool mix = false;
  std::string measure;  // a job file; "": plans are valued by the cost model
  std::int64_t measure_steps = MeasureLimits{}.steps;
  std::int64_t measure_plans = MeasureLimits{}.plans;
  std::vector<std::string> what_ifs;
  std::string output = "plan.json";
  std::string page;
};

std::vector<std::unique_ptr<planning::Planner>> every_planner() {
  std::vector<std::unique_ptr<planning::Planner>> all = planning::planners();
  for (auto& learned : planning::learned_planners()) {
    all.push_back(std::move(learned));
  }
  return all;
}

Result<planning::Objective> objective_of(const PlanArguments& arguments) {
  planning::Objective objective;
  const std::string goal = !arguments.goal.empty()        ? arguments.goal
                           : arguments.min_throughput > 0 ? "money"
                                                          : "throughput";
  objective.goal = goal == "money"        ? planning::Goal::kLeastMoney
                   : goal == "throughput" ? planning::Goal::kMostThroughput
                                          : planning::Goal::kLeastStepTime;
  objective.min_throughput = arguments.min_throughput;
  objective.max_money = arguments.max_money;
  objective.max_price_per_hour = arguments.max_price;
  MOTLEY_TRY(planning::validate(objective));
  return objective;
}

// Why there is no plan, found by asking for the most that the same devices can do.
Error impossible(const planning::Request& request) {
  planning::Request free{.problem = request.problem,
                         .objective = {.goal = planning::Goal::kMostThroughput},
                         .seed = request.seed,
                         .seconds = request.seconds,
                         .clock = request.clock,
                         .stop = request.stop};
  const Result<planning::Answer> most = planning::make_exact()->plan(free);
  free.objective.goal = planning::Goal::kLeastMoney;
  const Result<planning::Answer> least = planning::make_exact()->plan(free);
  if (!most) return most.error();
  return {ErrorCode::kInvalidInput,
          report::explain_impossible(request.problem, request.objective, *most, least.value_or(planning::Answer{})),
          -1};
}

// Mixing looks for the shortest step in any number of micro-batches, whatever it costs.
Status check_mix(const PlanArguments& arguments, const planning::Objective& objective) {
  const PlanArguments none;
  const auto refuse = [](const std::string& given, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "--mix: given with {}; accepted: {}", given, accepted);
  };
  if (arguments.input.cost_model != "pipeline") return refuse("--cost-model heterps", "--cost-model pipeline");
  if (objective.goal == planning::Goal::kLeastMoney) return refuse("the goal money", "--goal throughput or step");
  if (arguments.min_throughput != none.min_throughput || arguments.max_money != none.max_money ||
      arguments.max_price != none.max_price) {
    return refuse("a limit", "neither --min-throughput nor --max-cost nor --max-price");
  }
  if (arguments.input.micro_batches != 0) return refuse("--micro-batches", "0, the best number that is found");
  return {};
}

// Measured plans are run, so they are those of the pipeline, and what stands beside an answer is the cost model's.
Result<train::Job> job_to_measure(const PlanArguments& arguments) {
  const auto refuse = [](const std::string& given, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "--measure: given with {}; accepted: {}", given, accepted);
  };
  if (arguments.method == "exact") {
    return refuse("--method exact, which computes with the cost model", "a method that searches, such as rl-attention");
  }
  if (arguments.input.cost_model != "pipeline") return refuse("--cost-model heterps", "--cost-model pipeline");
  if (arguments.compare || arguments.mix || !arguments.what_ifs.empty()) {
    return refuse(arguments.compare ? "--compare"
                  : arguments.mix   ? "--mix"
                                    : "--what-if",
                  "neither --compare nor --mix nor --what-if");
  }
  MOTLEY_ASSIGN(train::Job job, train::read_job(arguments.measure));
  if (job.batch != arguments.input.batch) {
    return fail(ErrorCode::kInvalidInput, "--batch: {}, but a step of {} has {} samples; accepted: {}",
                arguments.input.batch, arguments.measure, job.batch, job.batch);
  }
  if (job.cluster.empty() && !arguments.input.cluster.empty()) {
    job.cluster = std::filesystem::absolute(arguments.input.cluster).string();
  }
  return job;
}

// What the method finds by running plans. Steps are cut as the best plan by the cost model wants it.
struct MeasuredAnswer {
  Solved solved;
  report::Measuring measuring;
};
Result<MeasuredAnswer> solve_by_measuring(const PlanArguments& arguments, const planning::Planner& planner,
                                          const std::vector<planning::Problem>& problems,
                                          const planning::Objective& objective, const std::stop_token& stop) {
  MOTLEY_ASSIGN(const train::Job job, job_to_measure(arguments));
  SearchLimits brief = arguments.search;
  brief.seconds = std::min(brief.seconds, kMostMarginalSeconds);
  MOTLEY_ASSIGN(Solved by_cost_model, solve(*planning::make_exact(), problems, objective, brief, stop));
  const planning::Problem& problem = *by_cost_model.problem;
  MeasuredSteps steps(
      job, problem, objective,
      {.steps = arguments.measure_steps, .plans = arguments.measure_plans, .seconds = arguments.search.seconds}, stop);
  std::printf("running plans of %lld micro-batches, %lld steps each\n", static_cast<long long>(problem.micro_batches),
              static_cast<long long>(arguments.measure_steps));
  std::fflush(stdout);
  MOTLEY_ASSIGN(
      planning::Answer answer,
      ask(planner, {.problem = problem,
                    .objective = objective,
                    .seed = arguments.search.seed,
                    .seconds = arguments.search.seconds,
                    .stop = stop,
                    .evaluator = [&](const planning::Candidate& candidate) { return steps.evaluate(candidate); },
                    .most_evaluations = arguments.measure_plans}));
  if (!answer.best) {
    return fail(ErrorCode::kUnavailable, "{}: of {} plans that were tried {} did not run{}{}; {}", arguments.measure,
                steps.plans(), steps.failed(), steps.failed() > 0 ? ", the first because: " : "", steps.first_failure(),
                steps.failed() == steps.plans() && steps.plans() > 0
                    ? "does the job suit the plan's profile and cluster?"
                    : "give it longer with --seconds, or a lower floor");
  }
  const report::Measuring measuring{
      .best = *steps.measured(*answer.best), .plans = steps.plans(), .failed = steps.failed()};
  answer.evaluation = planning::evaluate(problem, *answer.best, objective);
  answer.proved = false;
  answer.bound = 0;
  return MeasuredAnswer{{&problem, std::move(answer)}, measuring};
}

Status run_plan(const PlanArguments& arguments) {
  MOTLEY_ASSIGN(const std::vector<planning::Problem> problems, planning_problems(arguments.input));
  MOTLEY_ASSIGN(const planning::Objective objective, objective_of(arguments));
  if (arguments.mix) {
    MOTLEY_TRY(check_mix(arguments, objective));
  }
  MOTLEY_TRY(check_writable(arguments.output));
  if (!arguments.page.empty()) {
    MOTLEY_TRY(check_writable(arguments.page));
  }
  std::vector<planning::WhatIf> questions;
  for (const std::string& text : arguments.what_ifs) {
    MOTLEY_ASSIGN(planning::WhatIf question, planning::parse_what_if(text, problems.front()));
    questions.push_back(std::move(question));
  }

  const InterruptStop interrupt;
  const std::vector<std::unique_ptr<planning::Planner>> all = every_planner();
  const auto chosen = std::ranges::find(all, arguments.method, &planning::Planner::name);
  Solved solved;
  std::optional<report::Measuring> measuring;
  if (arguments.measure.empty()) {
    MOTLEY_ASSIGN(solved, solve(**chosen, problems, objective, arguments.search, interrupt.token()));
  } else {
    MOTLEY_ASSIGN(MeasuredAnswer measured,
                  solve_by_measuring(arguments, **chosen, problems, objective, interrupt.token()));
    solved = std::move(measured.solved);
    measuring = measured.measuring;
  }
  const planning::Answer& answer = solved.answer;
  if (!answer.best && answer.proved) {
    MOTLEY_ASSIGN(const Solved most, solve(*planning::make_exact(), problems, {.goal = planning::Goal::kMostThroughput},
                                           arguments.search, interrupt.token()));
    return fail(impossible({.problem = *most.problem,
                            .objective = objective,
                            .seed = arguments.search.seed,
                            .seconds = arguments.search.seconds,
                            .stop = interrupt.token()}));
  }
  if (!answer.best) {
    return fail(ErrorCode::kUnavailable, "{} found no plan for {} within {}; that does not mean that there is none: {}",
                arguments.method, planning::describe(objective), format_seconds(answer.seconds),
                arguments.method == "exact" ? "give it longer with --seconds" : "ask --method exact");
  }
  const planning::Problem& problem = *solved.problem;
  const planning::Request request{.problem = problem,
                                  .objective = objective,
                                  .seed = arguments.search.seed,
                                  .seconds = arguments.search.seconds,
                                  .stop = interrupt.token()};

  report::PlanView view{.problem = problem,
                        .objective = objective,
                        .method = arguments.method,
                        .answer = answer,
                        .measuring = measuring,
                        .marginals = {},
                        .what_ifs = {},
                        .methods = {}};
  planning::Request brief = request;
  brief.seconds = std::min(request.seconds, kMostMarginalSeconds);
  if (!measuring) {
    MOTLEY_ASSIGN(view.marginals, planning::marginals(*planning::make_exact(), brief));
  }
  for (const planning::WhatIf& question : questions) {
    MOTLEY_ASSIGN(std::vector<planning::Regime> regimes, planning::what_if(**chosen, request, question));
    view.what_ifs.emplace_back(question, std::move(regimes));
  }
  if (arguments.compare) {
    for (const auto& planner : all) {
      report::MethodAnswer method{.method = planner->name(), .answer = {}, .refused = {}};
      Result<planning::Answer> its =
          planner->name() == arguments.method ? Result<planning::Answer>(answer) : ask(*planner, request);
      if (its) {
        method.answer = std::move(*its);
      } else {
        method.refused = its.error().message;
      }
      view.methods.push_back(std::move(method));
    }
  }

  std::printf("%s", report::plan_text(view).c_str());
  planning::Plan plan = planning::to_plan(problem, *answer.best, answer.evaluation, objective, arguments.method);
  if (answer.bound > 0) plan.bound = answer.bound;
  if (measuring) plan.measured = measuring->best;
  if (arguments.mix) {
    MOTLEY_ASSIGN(plan, planning::mix_stages(problem, plan, interrupt.token()));
    std::printf("\nwith stages that mix types, replayed: %s a step%s\n",
                format_seconds(plan.predicted.step_seconds).c_str(),
                arguments.page.empty() ? "" : "; the page shows the plan before");
  }
  MOTLEY_TRY(write_file(arguments.output, planning::to_json(plan)));
  std::printf("\nplan: %s\n", arguments.output.c_str());
  if (!arguments.page.empty()) {
    MOTLEY_TRY(write_file(arguments.page, report::plan_page(view)));
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
      "  motley plan --model vgg16 --cluster examples/rent/cluster.yaml --compare --page plan.html\n"
      "  motley plan --profile profile.json --what-if cpu.price=0.01..1\n"
      "  motley plan --profile profile.json --method rl-attention --measure examples/fashion-mnist/job.yaml --seconds "
      "300");
  auto arguments = std::make_shared<PlanArguments>();
  add_planning_input(*command, arguments->input);
  std::vector<std::string> methods;
  for (const auto& planner : every_planner()) methods.push_back(planner->name());
  command->add_option("--method", arguments->method, "How to search; exact proves its answer")
      ->check(CLI::IsMember(methods))
      ->capture_default_str();
  command
      ->add_option("--goal", arguments->goal,
                   "What to be best at; by default money with --min-throughput, else throughput")
      ->check(CLI::IsMember({"money", "throughput", "step"}));
  command->add_option("--min-throughput", arguments->min_throughput, "Samples a second that must be reached");
  command->add_option("--max-cost", arguments->max_money, "Money that the whole job may cost (see --samples)");
  command->add_option("--max-price", arguments->max_price, "Money an hour that all devices together may cost");
  command->add_option("--seconds", arguments->search.seconds, "Time limit of each method; the best so far is kept")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--seed", arguments->search.seed, "Seed of the methods that draw lots")->capture_default_str();
  command->add_flag("--compare", arguments->compare, "Run every method");
  command->add_flag("--mix", arguments->mix,
                    "Then look for a shorter step with stages that mix device types (pipeline; few devices)");
  command
      ->add_option("--measure", arguments->measure,
                   "Value plans by real steps of this job here, instead of by the cost model (methods that search)")
      ->check(CLI::ExistingFile);
  command->add_option("--measure-steps", arguments->measure_steps, "Steps of each plan, of which the median counts")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--measure-plans", arguments->measure_plans, "Plans that are run, at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--what-if", arguments->what_ifs,
                      "TYPE.price=VALUE (or count, memory, speed, bandwidth; or throughput=VALUE), or =LOW..HIGH: "
                      "where the answer changes");
  command->add_option("--output", arguments->output, "File of the plan")->capture_default_str();
  command->add_option("--page", arguments->page, "Also write a page with the pipeline drawn");
  command->callback([&action, arguments] { action = [arguments] { return run_plan(*arguments); }; });
}

}  // namespace motley::cli
