#include "motley/app/train/find_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "motley/app/renamed_keys.h"
#include "motley/base/units.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/replan/heterogeneous_stages.h"
#include "motley/planning/search/found_plan.h"
#include "motley/train/profile/brief_run.h"

namespace motley::app {
namespace {

constexpr double kMaxMarginalSeconds = 6;  // for the table of one device more or fewer
constexpr double kMethodPart = 0.9;        // of the time limit; what is left is for what stands beside the answer
constexpr int kAllLayers = 1'000'000;
constexpr std::size_t kMaxMixedAlternatives = 3;

Result<planning::Objective> make_objective(const PlanQuestion& question) {
  planning::Objective objective;
  const std::string criterion = !question.criterion.empty()   ? question.criterion
                                : question.min_throughput > 0 ? "cost"
                                                              : "throughput";
  objective.criterion = criterion == "cost"         ? planning::Criterion::kMinCost
                        : criterion == "throughput" ? planning::Criterion::kMaxThroughput
                                                    : planning::Criterion::kMinStepTime;
  objective.min_throughput = question.min_throughput;
  objective.max_cost = question.max_cost;
  objective.max_hourly_cost = question.max_hourly_cost;
  MOTLEY_TRY(planning::validate(objective));
  return objective;
}

// Mixing looks for the shortest step in any number of micro-batches, whatever it costs.
Status check_heterogeneous_stages(const PlanQuestion& question, const planning::Objective& objective) {
  const PlanQuestion none;
  const auto refuse = [](const std::string& given, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "--heterogeneous-stages: given with {}; accepted: {}", given, accepted);
  };
  if (question.input.cost_model != "pipeline") return refuse("--cost-model heterps", "--cost-model pipeline");
  if (objective.criterion == planning::Criterion::kMinCost) {
    return refuse("the objective cost", "--objective throughput or step-time");
  }
  if (question.min_throughput != none.min_throughput || question.max_cost != none.max_cost ||
      question.max_hourly_cost != none.max_hourly_cost) {
    return refuse("a limit", "neither --min-throughput nor --max-cost nor --max-hourly-cost");
  }
  if (question.input.micro_batches != 0) return refuse("--micro-batches", "0, the best number that is found");
  return {};
}

// Measured plans are run, so they are those of the pipeline, and what stands beside an answer is the cost model's.
Result<train::Job> job_to_measure(const PlanQuestion& question) {
  const auto refuse = [](const std::string& given, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "--measure: given with {}; accepted: {}", given, accepted);
  };
  if (question.method == "exact" || question.method == "brute-force") {
    return refuse(fmt::format("--method {}, which computes with the cost model", question.method),
                  "a method that searches, such as rl-attention");
  }
  if (question.input.cost_model != "pipeline") return refuse("--cost-model heterps", "--cost-model pipeline");
  if (question.compare || question.heterogeneous_stages || !question.what_ifs.empty()) {
    return refuse(question.compare                ? "--compare"
                  : question.heterogeneous_stages ? "--heterogeneous-stages"
                                                  : "--what-if",
                  "neither --compare nor --heterogeneous-stages nor --what-if");
  }
  MOTLEY_ASSIGN(train::Job job, train::read_job(question.measure));
  if (job.training.global_batch_size != question.input.batch) {
    return fail(ErrorCode::kInvalidInput, "--global-batch-size: {}, but a step of {} has {}; accepted: {}",
                question.input.batch, question.measure, format_count(job.training.global_batch_size, "sample"),
                job.training.global_batch_size);
  }
  if (job.execution.cluster.empty() && !question.input.cluster.empty()) {
    job.execution.cluster = std::filesystem::absolute(question.input.cluster).string();
  }
  return job;
}

// "flatten … fc1 on 1 × cpu; relu1 … output on 2 × gpu".
std::string in_words(const planning::Plan& plan) {
  std::vector<std::string> stages;
  for (const planning::Stage& stage : plan.stages) {
    stages.push_back(fmt::format("{} … {} on {} × {}", plan.layers[static_cast<std::size_t>(stage.first_layer)],
                                 plan.layers[static_cast<std::size_t>(stage.last_layer)], stage.replicas.front().count,
                                 stage.replicas.front().type));
  }
  return fmt::format("{}", fmt::join(stages, "; "));
}

// Values candidates by the median step of runs of the job on this machine, and tells a line about each. A plan that was
// run before is not run again. One that cannot be run is not feasible.
class MeasuredSteps {
 public:
  MeasuredSteps(train::Job job, const planning::Problem& problem, const PlanFinder& finder)
      : job_(std::move(job)), problem_(problem), finder_(finder) {}

  planning::Evaluation evaluate(const planning::Candidate& candidate) {
    const PlanQuestion& question = finder_.question;
    const planning::Plan plan = build_plan(candidate);
    const auto known = seconds_.find(planning::to_json(plan));
    std::optional<double> seconds;
    std::string failure = "it did not run";
    if (known != seconds_.end()) {
      seconds = known->second;
    } else {
      const Result<train::StepTimes> times = train::run_briefly(
          job_, {.steps = question.measure_steps, .deadline = deadline_, .stop = finder_.stop}, &plan);
      if (times) {
        seconds = times->step;
      } else {
        failure = times.error().message;
      }
      const bool cut_short = !times && (deadline_.passed() || finder_.stop.stop_requested());
      if (!cut_short) {
        seconds_.emplace(planning::to_json(plan), seconds);
        if (!seconds && first_failure_.empty()) first_failure_ = failure;
        finder_.tell(fmt::format("{} of {}: {} (predicted {}): {}", plans(), question.measure_plans,
                                 seconds ? format_seconds(*seconds) : "did not run: " + failure,
                                 format_seconds(plan.predicted.step_seconds), in_words(plan)));
      }
    }
    planning::Evaluation evaluation = planning::evaluate(problem_, candidate, finder_.task.objective, seconds);
    if (!seconds) {
      evaluation.feasible = false;
      evaluation.violation = failure;
    }
    return evaluation;
  }

  // The step of a candidate that ran, with the number of steps that it is the median of.
  planning::Measured measured(const planning::Candidate& candidate) const {
    return {.step_seconds = seconds_.at(planning::to_json(build_plan(candidate))).value(),
            .steps = finder_.question.measure_steps};
  }
  std::int64_t plans() const { return std::ssize(seconds_); }
  std::int64_t failed() const {
    return std::ranges::count_if(seconds_, [](const auto& entry) { return !entry.second.has_value(); });
  }
  const std::string& first_failure() const { return first_failure_; }  // "": there was none

 private:
  planning::Plan build_plan(const planning::Candidate& candidate) const {
    const planning::Objective& objective = finder_.task.objective;
    return planning::to_plan(problem_, candidate, planning::evaluate(problem_, candidate, objective), objective,
                             "measured");
  }

  const train::Job job_;
  const planning::Problem& problem_;
  const PlanFinder& finder_;
  const Deadline deadline_ = Deadline::after(finder_.question.search.seconds);
  std::map<std::string, std::optional<double>> seconds_;  // by the plan as JSON; none: it did not run
  std::string first_failure_;
};

planning::Request make_request(const PlanFinder& finder, const planning::Problem& problem) {
  return {.problem = problem,
          .objective = finder.task.objective,
          .seed = finder.question.search.seed,
          .seconds = finder.question.search.seconds,
          .stop = finder.stop};
}

// What the method finds by running plans. Steps are cut as the best plan by the cost model wants it.
Result<Solved> solve_by_measuring(const PlanFinder& finder, const planning::Planner& planner,
                                  std::optional<planning::Measuring>& measuring) {
  const PlanQuestion& question = finder.question;
  const planning::Objective& objective = finder.task.objective;
  MOTLEY_ASSIGN(const train::Job job, job_to_measure(question));
  SearchLimits brief = question.search;
  brief.seconds = std::min(brief.seconds, kMaxMarginalSeconds);
  Result<Solved> by_cost_model =
      solve({"exact", planning::plan_exact}, finder.task.problems, objective, brief, finder.stop, finder.ask);
  if (!by_cost_model) {  // too many devices for it
    by_cost_model = solve({"greedy", planning::plan_greedy}, finder.task.problems, objective, brief, finder.stop);
  }
  if (!by_cost_model) return fail(by_cost_model.error());
  const planning::Problem& problem = *by_cost_model->problem;
  MeasuredSteps steps(job, problem, finder);
  finder.tell(fmt::format("running plans of {}, {} each", format_count(problem.micro_batches, "micro-batch", "es"),
                          format_count(question.measure_steps, "step")));
  planning::Request request = make_request(finder, problem);
  request.evaluator = [&](const planning::Candidate& candidate) { return steps.evaluate(candidate); };
  request.max_evaluations = question.measure_plans;
  MOTLEY_ASSIGN(planning::Answer answer, finder.ask(planner, request));
  if (!answer.best) {
    return fail(ErrorCode::kUnavailable, "{}: of {} plans that were tried {} did not run{}{}; {}", question.measure,
                steps.plans(), steps.failed(), steps.failed() > 0 ? ", the first because: " : "", steps.first_failure(),
                steps.failed() == steps.plans() && steps.plans() > 0
                    ? "does the job suit the plan's profile and cluster?"
                    : "give it longer with --time-limit, or a lower minimum throughput");
  }
  measuring = {.best = steps.measured(*answer.best), .plans = steps.plans(), .failed = steps.failed()};
  answer.evaluation = planning::evaluate(problem, *answer.best, objective);
  answer.proved = false;
  answer.bound = 0;
  return Solved{&problem, std::move(answer)};
}

// The planner, of a step that may be cut into any of these problems' numbers of micro-batches: where something else
// changes, another number may be the best. Numbers that the planner refuses are left out, and then nothing is proved.
planning::Planner in_any_number_of_micro_batches(const planning::Planner& planner,
                                                 const std::vector<planning::Problem>& problems) {
  const auto plan = [planner, &problems](const planning::Request& request) -> Result<planning::Answer> {
    const planning::Criterion criterion = request.objective.criterion;
    std::optional<planning::Answer> best;
    Error refused;
    bool all_proved = true;
    for (const planning::Problem& one : problems) {
      planning::Problem problem = request.problem;
      problem.micro_batches = one.micro_batches;
      Result<planning::Answer> answer = planner.plan({.problem = problem,
                                                      .objective = request.objective,
                                                      .seed = request.seed,
                                                      .seconds = request.seconds / static_cast<double>(problems.size()),
                                                      .clock = request.clock,
                                                      .stop = request.stop});
      all_proved = all_proved && answer && answer->proved;
      if (!answer) {
        refused = answer.error();
        continue;
      }
      answer->micro_batches = problem.micro_batches;
      const bool is_better = answer->best && (!best || !best->best ||
                                              planning::value(answer->evaluation, criterion) <
                                                  planning::value(best->evaluation, criterion));
      if (!best || is_better) best = std::move(*answer);
    }
    if (!best) return fail(refused);
    best->proved = all_proved;
    return std::move(*best);
  };
  return {planner.name, plan};
}

// Why there is no plan to show; where none exists, by asking for the most that the same devices can do.
Error explain_no_plan(const PlanFinder& finder, const planning::Answer& answer, const std::string& refused) {
  if (finder.stop.stop_requested() && !answer.proved) {
    return {ErrorCode::kInterrupted, "interrupted before a plan was found; nothing was written", -1};
  }
  const PlanQuestion& question = finder.question;
  const planning::Planner exact{"exact", planning::plan_exact};
  if (answer.proved) {
    const Result<Solved> best = solve(exact, finder.task.problems, {.criterion = planning::Criterion::kMaxThroughput},
                                      question.search, finder.stop, finder.ask);
    if (!best) return best.error();
    const Result<Solved> least = solve(exact, finder.task.problems, {.criterion = planning::Criterion::kMinCost},
                                       question.search, finder.stop, finder.ask);
    std::string text = planning::explain_impossible(*best->problem, finder.task.objective, best->answer,
                                                    least ? least->answer : planning::Answer{});
    if (const int layers = best->problem->merged_from; layers > 0 && layers <= kMostLayers) {
      text += fmt::format(
          "; that is of {} blocks into which its {} layers are merged: --max-layers {} plans for them "
          "as they are",
          best->problem->layer_count(), layers, layers);
    }
    return {ErrorCode::kInvalidInput, std::move(text), -1};
  }
  return {ErrorCode::kUnavailable,
          fmt::format("{} found no plan for {} within {}; that does not mean that there is none: {}{}", question.method,
                      planning::describe(finder.task.objective), format_seconds(answer.seconds),
                      question.method == "exact" ? "give it longer with --time-limit" : "ask --method exact",
                      refused.empty() ? "" : "; some numbers of micro-batches were left out: " + refused),
          -1};
}

// What every method answers; `answer` is that of the question's own.
std::vector<planning::MethodAnswer> compare_methods(const PlanFinder& finder, const std::vector<planning::Planner>& all,
                                                    const planning::Request& request, const planning::Answer& answer) {
  std::vector<planning::MethodAnswer> methods;
  for (const auto& planner : all) {
    if (finder.stop.stop_requested()) break;
    const Result<planning::Answer> its = planner.name == finder.question.method ? answer : finder.ask(planner, request);
    methods.push_back({.method = planner.name,
                       .answer = its.value_or(planning::Answer{}),
                       .refused = its ? "" : its.error().message});
  }
  return methods;
}

// The exact method, where it had no time to prove its answer, may have left a better neighbour of it: that is then the
// answer. Other methods' answers stay their own, and only what is no better stands beside them.
void find_alternatives(const std::string& method, const std::vector<planning::Rival>& rivals, const Deadline& deadline,
                       planning::FoundPlan& found) {
  planning::Answer& answer = found.answer;
  const bool is_exact = method == "exact";
  const auto look = [&] {
    return planning::find_alternatives(found.problem, found.objective, *answer.best, answer.evaluation, rivals);
  };
  found.alternatives = look();
  while (is_exact && !found.alternatives.empty() && found.alternatives.front().worse < 0) {
    const planning::Alternative better = found.alternatives.front();
    answer.best = better.candidate;
    answer.evaluation = better.evaluation;
    found.problem.micro_batches = better.plan.micro_batches;
    found.alternatives = deadline.passed() ? std::vector<planning::Alternative>{} : look();
  }
  if (!is_exact) std::erase_if(found.alternatives, [](const auto& one) { return one.worse < 0; });
}

// What stands beside a plan whose stages have one type each. The exact method, which is asked for one device more or
// fewer, may not bear the problem, in which the answer's own method has found a plan: then that is left out.
void explain_answer(const PlanFinder& finder, const std::vector<planning::Rival>& rivals, const Deadline& deadline,
                    planning::FoundPlan& found) {
  found.is_interrupted = finder.stop.stop_requested();
  if (found.is_interrupted) return;
  find_alternatives(finder.question.method, rivals, deadline, found);
  const planning::Candidate& best = *found.answer.best;
  if (found.measuring || deadline.passed()) return;
  planning::Request brief = make_request(finder, found.problem);
  brief.seconds = std::min(deadline.remaining(), kMaxMarginalSeconds);
  const planning::Planner exact{"exact", planning::plan_exact};
  auto marginals = planning::marginals(in_any_number_of_micro_batches(exact, finder.task.problems), brief, best);
  if (marginals) found.marginals = std::move(*marginals);
}

// Of the best plan of all layers, where the answer is one of merged layers: what the exact method proves in what is
// left of the time, in every number of micro-batches; else nothing.
void bound_unmerged(const PlanFinder& finder, const Deadline& deadline, planning::Answer& answer) {
  answer.proved = false;
  answer.bound = 0;
  double bound = std::numeric_limits<double>::infinity();
  auto left = static_cast<double>(finder.task.unmerged.size());
  for (const planning::Problem& problem : finder.task.unmerged) {
    if (deadline.passed() || planning::max_exact_layers(problem) < problem.layer_count()) return;
    planning::Request request = make_request(finder, problem);
    request.seconds = deadline.remaining() / (left + 1);
    left -= 1;
    const Result<planning::Answer> proved = planning::plan_exact(request);
    if (!proved) return;
    if (proved->best || !proved->proved) bound = std::min(bound, proved->bound);
  }
  if (std::isfinite(bound)) answer.bound = bound;
}

// What the best plan with stages that mix types would be with other counts of the types that it uses. Nothing is proved
// of them, and what time does not suffice for is left out.
Status compare_mixed_counts(const PlanFinder& finder, planning::FoundPlan& found) {
  const Deadline deadline = Deadline::after(kMaxMarginalSeconds);
  const auto with_count = [&](int type, std::int64_t count) -> Result<planning::Marginal::Change> {
    planning::Problem changed = found.problem;
    changed.types[planning::index(type)].count = count;
    planning::Request request = make_request(finder, changed);
    request.seconds = deadline.remaining();
    const planning::Answer answer = planning::plan_exact(request).value_or(planning::Answer{});
    if (!answer.best) return planning::Marginal::Change{std::nullopt, answer.proved};
    const planning::Plan plan =
        planning::to_plan(changed, *answer.best, answer.evaluation, found.objective, found.method);
    MOTLEY_ASSIGN(const auto plans, planning::find_heterogeneous_stages(changed, plan, finder.stop));
    planning::Evaluation evaluation = answer.evaluation;
    evaluation.step_seconds = plans.front().predicted.step_seconds;
    evaluation.throughput = plans.front().predicted.throughput;
    evaluation.hourly_cost = plans.front().predicted.hourly_cost;
    evaluation.cost = plans.front().predicted.cost;
    return planning::Marginal::Change{std::move(evaluation), false};
  };
  for (int type = 0; type < found.problem.type_count() && !deadline.passed(); ++type) {
    const std::int64_t used = found.evaluation.used[planning::index(type)];
    if (used == 0) continue;
    planning::Marginal marginal{.type = type, .used = used, .one_more = {found.evaluation, false}, .one_fewer = {}};
    if (used == found.problem.type(type).count) {
      MOTLEY_ASSIGN(marginal.one_more, with_count(type, used + 1));
    }
    MOTLEY_ASSIGN(marginal.one_fewer, with_count(type, used - 1));
    found.marginals.push_back(std::move(marginal));
  }
  return {};
}

// The plan that the answer leads to with stages that mix types, where that is a shorter step; what else was looked at
// are its alternatives, the answer in any case.
Status mix_stages(const PlanFinder& finder, planning::FoundPlan& found) {
  MOTLEY_ASSIGN(std::vector<planning::Plan> plans,
                planning::find_heterogeneous_stages(found.problem, found.plan, finder.stop));
  const planning::Plan answer = found.plan;
  const auto replayed = [&](const planning::Plan& plan) -> Result<planning::Evaluation> {
    MOTLEY_ASSIGN(planning::Evaluation evaluation, planning::evaluate_plan(found.problem, plan, found.objective));
    evaluation.step_seconds = plan.predicted.step_seconds;
    evaluation.throughput = plan.predicted.throughput;
    evaluation.cost = plan.predicted.cost;
    return evaluation;
  };
  found.plan = plans.front();
  found.is_mixed = true;
  MOTLEY_ASSIGN(found.evaluation, replayed(found.plan));
  for (std::size_t i = 1; i < plans.size(); ++i) {
    const planning::Plan& plan = plans[i];
    const double worse = plan.predicted.step_seconds / found.plan.predicted.step_seconds - 1;
    const bool is_answer = plan.stages == answer.stages && plan.micro_batches == answer.micro_batches;
    if ((worse > planning::kNear || found.alternatives.size() >= kMaxMixedAlternatives) && !is_answer) continue;
    MOTLEY_ASSIGN(planning::Evaluation evaluation, replayed(plan));
    const std::string reason =
        worse < 0
            ? fmt::format("predicted to be {} shorter, which predictions may err by, and less simple",
                          format_percent(-worse))
            : planning::explain_loss(found.problem, found.objective, plan, evaluation, found.plan, found.evaluation);
    found.alternatives.push_back({plan,
                                  {},
                                  std::move(evaluation),
                                  worse,
                                  is_answer ? "the best with stages of one type each: " + reason : reason});
  }
  found.problem.micro_batches = found.plan.micro_batches;
  return compare_mixed_counts(finder, found);
}

// The plan of the answer, with what it was chosen over and how sure it is.
Result<planning::FoundPlan> describe_answer(const PlanFinder& finder, Solved solved,
                                            const std::optional<planning::Measuring>& measuring,
                                            const Deadline& deadline) {
  if (!finder.task.unmerged.empty() && !measuring) bound_unmerged(finder, deadline, solved.answer);
  planning::FoundPlan found{.problem = *solved.problem,
                            .objective = finder.task.objective,
                            .method = finder.question.method,
                            .answer = std::move(solved.answer),
                            .plan = {},
                            .evaluation = {},
                            .alternatives = {},
                            .uncertainty = {},
                            .measuring = measuring,
                            .marginals = {},
                            .what_ifs = {},
                            .methods = {}};
  const bool is_mixing = finder.question.heterogeneous_stages;
  if (!is_mixing) explain_answer(finder, solved.rivals, deadline, found);
  found.evaluation = found.answer.evaluation;
  found.plan =
      planning::to_plan(found.problem, *found.answer.best, found.evaluation, found.objective, finder.question.method);
  if (found.answer.bound > 0) found.plan.bound = found.answer.bound;
  if (measuring) found.plan.measured = measuring->best;
  if (is_mixing) MOTLEY_TRY(mix_stages(finder, found));
  found.uncertainty = planning::find_uncertainty(found.problem, found.objective, found.plan, found.alternatives);
  if (found.uncertainty) {
    found.plan.predicted.step_seconds_low = found.uncertainty->low;
    found.plan.predicted.step_seconds_high = found.uncertainty->high;
  }
  found.plan.bottleneck = planning::describe_bottleneck(found.problem, found.plan, found.evaluation);
  return found;
}

// All methods, those with policy networks too.
std::vector<planning::Planner> every_planner() {
  std::vector<planning::Planner> all = planning::planners();
  for (const auto& learned : planning::learned_planners()) all.push_back(learned);
  return all;
}

}  // namespace

const OptionTable<PlanQuestion>& PlanQuestion::options() {
  using enum OptionKind;
  static const std::vector<std::string> methods = [] {
    std::vector<std::string> names;
    for (const auto& planner : every_planner()) names.push_back(planner.name);
    return names;
  }();
  static const OptionTable<PlanQuestion> options = {
      {"", &PlanQuestion::input},
      {choice("method", "planning method; exact proves its answer", methods), &PlanQuestion::method},
      {choice("objective", "what to optimise; default: cost with --min-throughput, else throughput",
              {"cost", "throughput", "step-time"}, kRenamedObjectives),
       &PlanQuestion::criterion},
      {{"min_throughput", kReal, "throughput that the plan must reach, in samples per second", 0},
       &PlanQuestion::min_throughput},
      {{"max_cost", kReal, "upper limit for the cost of the whole training (see --total-samples)", 0},
       &PlanQuestion::max_cost},
      {{"max_hourly_cost", kReal, "upper limit for the hourly cost of all devices together", 0},
       &PlanQuestion::max_hourly_cost},
      {"", &PlanQuestion::search},
      {{"compare", kBoolean, "run every method, and compare them"}, &PlanQuestion::compare},
      {{"heterogeneous_stages", kBoolean,
        "then look for a shorter step with stages that mix device types (pipeline; few devices)"},
       &PlanQuestion::heterogeneous_stages},
      {{"measure", kPath,
        "job file: evaluate plans by real steps of this job on this machine instead of by the cost model (methods that "
        "search)"},
       &PlanQuestion::measure},
      {{"measure_steps", kInteger, "steps per measured plan; their median counts", 1, 1e6},
       &PlanQuestion::measure_steps},
      {{"measure_plans", kInteger, "number of plans to measure, at most", 1, 1e6}, &PlanQuestion::measure_plans},
      {{"what_if", kTexts,
        "TYPE.price=VALUE (or count, memory, speed, bandwidth; or throughput=VALUE): plan again with it; =LOW..HIGH: "
        "find where the answer changes; may be repeated"},
       &PlanQuestion::what_ifs},
  };
  return options;
}

Result<PlanTask> make_plan_task(const PlanQuestion& question, const Tell& warn) {
  PlanTask task;
  MOTLEY_ASSIGN(task.problems, planning_problems(question.input, warn));
  if (task.problems.front().merged_from > 0) {
    PlanningInput all = question.input;
    all.max_layers = kAllLayers;
    MOTLEY_ASSIGN(task.unmerged, planning_problems(all, [](const std::string&) {}));
  }
  MOTLEY_ASSIGN(task.objective, make_objective(question));
  if (question.heterogeneous_stages) {
    MOTLEY_TRY(check_heterogeneous_stages(question, task.objective));
  }
  for (const std::string& text : question.what_ifs) {
    MOTLEY_ASSIGN(planning::WhatIf what_if, planning::parse_what_if(text, task.problems.front()));
    task.what_ifs.push_back(std::move(what_if));
  }
  return task;
}

Result<planning::FoundPlan> PlanFinder::find() const {
  const std::vector<planning::Planner> all = every_planner();
  const auto chosen = std::ranges::find(all, question.method, &planning::Planner::name);
  std::optional<planning::Measuring> measuring;
  const Deadline deadline = Deadline::after(question.search.seconds);
  SearchLimits limits = question.search;
  limits.seconds *= kMethodPart;
  MOTLEY_ASSIGN(Solved solved, question.measure.empty()
                                   ? solve(*chosen, task.problems, task.objective, limits, stop, ask)
                                   : solve_by_measuring(*this, *chosen, measuring));
  if (!solved.answer.best) return fail(explain_no_plan(*this, solved.answer, solved.refused));

  MOTLEY_ASSIGN(planning::FoundPlan found, describe_answer(*this, std::move(solved), measuring, deadline));
  const planning::Request request = make_request(*this, found.problem);
  const planning::Planner planner = in_any_number_of_micro_batches(*chosen, task.problems);
  for (const planning::WhatIf& what_if : task.what_ifs) {
    MOTLEY_ASSIGN(std::vector<planning::Regime> regimes, planning::what_if(planner, request, what_if));
    found.what_ifs.emplace_back(what_if, std::move(regimes));
  }
  if (question.compare) found.methods = compare_methods(*this, all, request, found.answer);
  if (stop.stop_requested() && (question.compare || !task.what_ifs.empty())) {
    return fail(ErrorCode::kInterrupted, "interrupted before {} was done; nothing was written",
                question.compare ? "the comparison" : "--what-if");
  }
  return found;
}

}  // namespace motley::app
