// Whether learning finds more than drawing does: the quality of a plan against how many plans were evaluated, for
// learned policies, the genetic search and random search, from 5 to 20 layers and 2 to 64 device types; and whether the
// LSTM finds any plan for each model under the synchronous pipeline's cost model. Learners begin from nothing: no
// plan of another method is given to them, and none is counted as theirs.
#include <fmt/ranges.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>

#include "bench/parallel.h"
#include "bench/planners_bench.h"
#include "bench/planning_cases.h"
#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/random_problem.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::bench {
namespace {

constexpr double kExactSeconds = 20;
constexpr double kSeconds = 120;    // of one run, at most; none takes as long
constexpr double kNoPlanGap = 10;   // of a run that found no plan
constexpr int kResamples = 10'000;  // of the seeds, for the interval of a ratio
constexpr int kInstances = 10;      // problems of each shape, each with a seed of its own

struct Shape {
  int layers = 0;
  int types = 0;
};

const std::vector<planning::Planner>& compared() {
  static const std::vector<planning::Planner> all = {{"random", planning::plan_random},
                                                     {"genetic", planning::plan_genetic},
                                                     {"rl-rnn", planning::plan_rl_rnn},
                                                     {"rl-lstm", planning::plan_rl_lstm}};
  return all;
}

constexpr std::size_t kRandom = 0, kGenetic = 1, kLstm = 3;  // of compared()

// Of one shape: gaps[method][budget][instance] to the exact plan.
using Gaps = std::vector<std::vector<std::vector<double>>>;

planning::Request request(const PlanningCase& planning, int seed, std::int64_t evaluations) {
  return {.problem = planning.problem,
          .objective = planning.objective,
          .seed = static_cast<std::uint64_t>(seed),
          .seconds = kSeconds,
          .max_evaluations = evaluations};
}

Result<Gaps> measure_gaps(const BenchOptions& options, const Shape& shape, const std::vector<std::int64_t>& budgets) {
  Gaps gaps(compared().size(),
            std::vector<std::vector<double>>(budgets.size(), std::vector<double>(kInstances, kNoPlanGap)));
  std::mutex mutex;
  Status failed;
  in_parallel(kInstances, [&](int instance) {
    const PlanningCase planning = random_case(shape.layers, shape.types, static_cast<std::uint64_t>(instance) + 1);
    const planning::Criterion criterion = planning.objective.criterion;
    const Result<planning::Answer> exact =
        planning::plan_exact({.problem = planning.problem, .objective = planning.objective, .seconds = kExactSeconds});
    if (!exact || !exact->best) {
      const std::lock_guard lock(mutex);
      failed = fail(ErrorCode::kInternal, "{}: the exact planner found no plan", planning.name);
      return;
    }
    for (std::size_t method = 0; method < compared().size(); ++method) {
      for (std::size_t budget = 0; budget < budgets.size(); ++budget) {
        const auto answer = compared()[method].plan(request(planning, instance + 1, budgets[budget]));
        if (!answer || !answer->best) continue;
        gaps[method][budget][static_cast<std::size_t>(instance)] =
            planning::value(answer->evaluation, criterion) / planning::value(exact->evaluation, criterion) - 1;
      }
    }
    const std::lock_guard lock(mutex);
    if (options.progress) options.progress(planning.name);
  });
  MOTLEY_TRY(failed);
  return gaps;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The ratio of the means, with the upper end of its 95 % interval by drawing the instances again and again.
struct Ratio {
  double value = 0;
  double high = 0;
};
Ratio ratio_of_means(const std::vector<double>& ours, const std::vector<double>& theirs) {
  Random random(1);
  std::vector<double> drawn;
  for (int i = 0; i < kResamples; ++i) {
    double a = 0;
    double b = 0;
    for (std::size_t k = 0; k < ours.size(); ++k) {
      const std::size_t which = random.below(ours.size());
      a += ours[which];
      b += theirs[which];
    }
    drawn.push_back(a / b);
  }
  return {mean(ours) / mean(theirs), percentile(drawn, 0.975)};
}

BenchRow ratio_row(const Gaps& gaps, std::size_t method, std::string metric, std::optional<double> target,
                   std::int64_t evaluations) {
  const std::vector<double>& ours = gaps[method].back();
  const std::vector<double>& drawn = gaps[kRandom].back();
  const Ratio ratio = ratio_of_means(ours, drawn);
  return {.name = "heterps-20x16",
          .metric = std::move(metric),
          .value = ratio.high,
          .unit = "ratio",
          .target = target,
          .limit = {},
          .peer = {},
          .note = fmt::format("simulated: random problems of 20 layers and 16 types; {} evaluations each; mean gap to "
                              "exact {:.3f} against {:.3f}, ratio {:.2f}; value: upper end of its 95 % interval over "
                              "{} seeds",
                              evaluations, mean(ours), mean(drawn), ratio.value, kInstances)};
}

// Every model under the synchronous pipeline's cost model: for how many the LSTM finds no plan at all.
Result<BenchRow> measure_no_plan(const BenchOptions& options, std::int64_t evaluations) {
  MOTLEY_ASSIGN(const std::vector<PlanningCase> cases, planning_cases(options, planning::CostModel::kPipeline));
  std::vector<std::string> without;
  std::mutex mutex;
  in_parallel(static_cast<int>(cases.size()), [&](int index) {
    const PlanningCase& planning = cases[static_cast<std::size_t>(index)];
    const auto answer = planning::plan_rl_lstm(request(planning, 1, evaluations));
    const std::lock_guard lock(mutex);
    if (!answer || !answer->best) without.push_back(planning.name);
    if (options.progress) options.progress(planning.name + " (pipeline)");
  });
  return BenchRow{
      .name = "pipeline-all",
      .metric = "rl_lstm_no_plan_share",
      .value = static_cast<double>(without.size()) / static_cast<double>(cases.size()),
      .unit = "share",
      .target = 0,
      .limit = {},
      .peer = {},
      .note = fmt::format("simulated: {} of {} models, {} evaluations each{}{}", without.size(), cases.size(),
                          evaluations, without.empty() ? "" : "; none for ", fmt::join(without, ", "))};
}

std::string learning_card(const Shape& shape, const Gaps& gaps, const std::vector<std::int64_t>& budgets) {
  std::vector<report::Series> series;
  for (std::size_t method = 0; method < compared().size(); ++method) {
    report::Series line{.name = compared()[method].name,
                        .color = static_cast<int>(method),
                        .style = report::LineStyle::kMarked,
                        .x = {},
                        .y = {}};
    for (std::size_t budget = 0; budget < budgets.size(); ++budget) {
      line.x.push_back(std::log10(static_cast<double>(budgets[budget])));
      line.y.push_back(100 * mean(gaps[method][budget]));
    }
    series.push_back(std::move(line));
  }
  const std::string title = fmt::format("{} layers, {} device types", shape.layers, shape.types);
  return report::card(title, fmt::format("Mean gap to the exact plan over {} random problems.", kInstances),
                      report::line_chart({.title = title,
                                          .summary = title,
                                          .x_label = "log10 of evaluated plans",
                                          .y_label = "gap, %",
                                          .series = series}));
}

}  // namespace

Result<std::vector<BenchRow>> planners_learning(const BenchOptions& options) {
  const std::vector<std::int64_t> budgets =
      options.quick ? std::vector<std::int64_t>{300} : std::vector<std::int64_t>{300, 1000, 3000, 10'000};
  const std::vector<Shape> shapes =
      options.quick ? std::vector<Shape>{{20, 16}} : std::vector<Shape>{{5, 2}, {10, 4}, {20, 2}, {20, 64}, {20, 16}};
  std::string csv = "layers,types,method,evaluations,instance,gap\n";
  std::string cards;
  Gaps gaps;  // at last, those of the rows' shape
  for (const Shape& shape : shapes) {
    MOTLEY_ASSIGN(gaps, measure_gaps(options, shape, budgets));
    cards += learning_card(shape, gaps, budgets);
    for (std::size_t method = 0; method < compared().size(); ++method) {
      for (std::size_t budget = 0; budget < budgets.size(); ++budget) {
        for (std::size_t instance = 0; instance < gaps[method][budget].size(); ++instance) {
          csv += fmt::format("{},{},{},{},{},{:.6g}\n", shape.layers, shape.types, compared()[method].name,
                             budgets[budget], instance + 1, gaps[method][budget][instance]);
        }
      }
    }
  }
  std::filesystem::create_directories(options.pages);
  MOTLEY_TRY(write_file(options.pages / "learning.csv", csv));
  MOTLEY_TRY(write_file(options.pages / "learning.html",
                        report::document("Learning against drawing",
                                         "<header><h1>Learning against drawing</h1></header>\n<main>\n<div "
                                         "class=\"cards\">" +
                                             cards + "</div></main>")));
  std::vector<BenchRow> rows = {ratio_row(gaps, kLstm, "rl_lstm_gap_over_random_search_gap", 0.7, budgets.back()),
                                ratio_row(gaps, kGenetic, "genetic_gap_over_random_search_gap", {}, budgets.back())};
  MOTLEY_ASSIGN(const BenchRow no_plan, measure_no_plan(options, budgets.back()));
  rows.push_back(no_plan);
  return rows;
}

}  // namespace motley::bench
