#include "bench/planners_bench.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "bench/parallel.h"
#include "bench/planning_cases.h"
#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/planning/learned/learned.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/search/random_problem.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"

namespace motley::bench {
namespace {

constexpr double kMaxSeconds = 3;  // of one run of one method
constexpr double kExactSeconds = 5;

// Several runs of one method on one problem.
struct Cell {
  std::vector<double> cost, throughput, gap, seconds;
  int runs = 0;
  bool proved = false;
  std::string refused;
};

struct Statistic {
  double mean = 0, deviation = 0;
};
Statistic statistic(const std::vector<double>& values) {
  Statistic result;
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    result.deviation += (value - result.mean) * (value - result.mean) / static_cast<double>(values.size());
  }
  result.deviation = std::sqrt(result.deviation);
  return result;
}

std::vector<planning::Planner> methods() {
  std::vector<planning::Planner> all = planning::planners();
  for (const planning::Planner& learned : planning::learned_planners()) all.push_back(learned);
  return all;
}

bool is_random(const std::string& method) {
  return method == "random" || method == "genetic" || method == "bayesian" || method.starts_with("rl-");
}

Cell measure(const planning::Planner& method, const PlanningCase& planning, const planning::Answer& best, int seeds) {
  Cell cell;
  for (int seed = 1; seed <= (is_random(method.name) ? seeds : 1); ++seed) {
    const Result<planning::Answer> answer =
        method.plan({.problem = planning.problem,
                     .objective = planning.objective,
                     .seed = static_cast<std::uint64_t>(seed),
                     .seconds = method.name == "exact" || method.name == "brute-force" ? kExactSeconds : kMaxSeconds});
    if (!answer) {
      cell.refused = answer.error().message;
      return cell;
    }
    ++cell.runs;
    cell.seconds.push_back(answer->seconds);
    cell.proved = answer->proved;
    if (!answer->best) continue;
    cell.cost.push_back(answer->evaluation.cost);
    cell.throughput.push_back(answer->evaluation.throughput);
    cell.gap.push_back(planning::value(answer->evaluation, planning.objective.criterion) /
                           planning::value(best.evaluation, planning.objective.criterion) -
                       1);
  }
  return cell;
}

struct TableRow {
  std::string model, cost_model, method;
  Cell cell;
};

std::string with_spread(const std::vector<double>& values, double scale, int digits) {
  if (values.empty()) return "–";
  const Statistic all = statistic(values);
  const std::string mean = fmt::format("{:.{}f}", all.mean * scale, digits);
  return all.deviation * scale < 0.5 * std::pow(10, -digits)
             ? mean
             : fmt::format("{} ± {:.{}f}", mean, all.deviation * scale, digits);
}

Result<std::vector<TableRow>> table(const BenchOptions& options, planning::CostModel cost_model, int seeds) {
  MOTLEY_ASSIGN(const std::vector<PlanningCase> cases, planning_cases(options, cost_model));
  const auto all = methods();
  std::vector<std::vector<TableRow>> rows(cases.size());
  std::mutex printing;
  in_parallel(static_cast<int>(cases.size()), [&](int index) {
    const PlanningCase& planning = cases[static_cast<std::size_t>(index)];
    const planning::Answer best =
        planning::plan_exact({.problem = planning.problem, .objective = planning.objective, .seconds = kExactSeconds})
            .value_or(planning::Answer{});
    for (const auto& method : all) {
      rows[static_cast<std::size_t>(index)].push_back(
          {planning.name, planning::to_string(cost_model), method.name, measure(method, planning, best, seeds)});
    }
    const std::lock_guard lock(printing);
    if (options.progress) options.progress(fmt::format("{} ({})", planning.name, planning::to_string(cost_model)));
  });
  std::vector<TableRow> flat;
  for (auto& some : rows) flat.insert(flat.end(), some.begin(), some.end());
  return flat;
}

// Planning time of each method on random problems that grow in one direction.
std::vector<report::Series> growth(const std::vector<int>& sizes,
                                   const std::function<planning::RandomProblemOptions(int)>& shape) {
  const auto all = methods();
  std::vector<report::Series> series(all.size());
  in_parallel(static_cast<int>(all.size()), [&](int index) {
    const planning::Planner& method = all[static_cast<std::size_t>(index)];
    report::Series& line = series[static_cast<std::size_t>(index)];
    line = {.name = method.name, .color = index, .style = report::LineStyle::kMarked, .x = {}, .y = {}};
    for (const int size : sizes) {
      const planning::Problem problem = planning::random_problem(shape(size), 1);
      const Result<planning::Answer> answer = method.plan({.problem = problem,
                                                           .objective = {.criterion = planning::Criterion::kMinCost},
                                                           .seed = 1,
                                                           .seconds = kMaxSeconds});
      if (!answer) break;
      line.x.push_back(size);
      line.y.push_back(std::log10(std::max(answer->seconds, 1e-6)));
      if (answer->seconds > kMaxSeconds / 2) break;  // the next is beyond the limit
    }
  });
  return series;
}

std::string table_html(const std::vector<TableRow>& rows, const std::string& cost_model) {
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : rows) {
    if (row.cost_model != cost_model) continue;
    const Cell& cell = row.cell;
    cells.push_back(
        {report::escape(row.model), report::escape(row.method), with_spread(cell.cost, 1, 2),
         with_spread(cell.throughput, 1, 0), with_spread(cell.gap, 100, 2), with_spread(cell.seconds, 1, 3),
         report::escape(!cell.refused.empty() ? cell.refused
                        : cell.proved         ? "proved"
                                      : fmt::format("{} of {} runs found a plan", cell.cost.size(), cell.runs))});
  }
  return report::table({"model", "method", "cost", "samples/s", "gap, %", "planned in, s", ""}, cells, {2, 3, 4, 5});
}

Status write_results(const BenchOptions& options, const std::vector<TableRow>& rows,
                     const std::vector<report::Series>& layers, const std::vector<report::Series>& types, int seeds) {
  std::string csv =
      "model,cost_model,method,runs,plans,proved,cost,cost_deviation,throughput,gap,gap_deviation,seconds,seconds_"
      "deviation\n";
  for (const TableRow& row : rows) {
    const Cell& cell = row.cell;
    csv +=
        fmt::format("{},{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g}\n", row.model, row.cost_model,
                    row.method, cell.runs, cell.cost.size(), cell.proved ? 1 : 0, statistic(cell.cost).mean,
                    statistic(cell.cost).deviation, statistic(cell.throughput).mean, statistic(cell.gap).mean,
                    statistic(cell.gap).deviation, statistic(cell.seconds).mean, statistic(cell.seconds).deviation);
  }
  std::filesystem::create_directories(options.pages);
  MOTLEY_TRY(write_file(options.pages / "planners.csv", csv));
  const auto chart = [](const std::string& title, const std::string& axis, const std::vector<report::Series>& series) {
    return report::line_chart(
        {.title = title, .summary = title, .x_label = axis, .y_label = "log10 of seconds", .series = series});
  };
  const std::string hint = fmt::format(
      "Lowest cost with a minimum throughput of half of what the best single type can do; machines of examples/rent. "
      "Methods that "
      "draw at random: mean ± "
      "deviation of {} seeds. Gap: to the exact plan after at most {} s.",
      seeds, kExactSeconds);
  std::string body = "<header><h1>Planning methods</h1></header>\n<main>\n<div class=\"cards\">";
  body += report::card("Planning time against layers", "Random problems of 4 types, steady-state cost model.",
                       chart("Planning time against layers", "layers", layers));
  body += report::card("Planning time against types", "Random problems of 20 layers, steady-state cost model.",
                       chart("Planning time against types", "types", types));
  body += report::card("Steady-state cost model (heterps)", hint, table_html(rows, "heterps"), true);
  body += report::card("Synchronous pipeline (pipeline)", hint, table_html(rows, "pipeline"), true);
  return write_file(options.pages / "planners.html", report::document("Planning methods", body + "</div></main>"));
}

}  // namespace

Result<std::vector<BenchRow>> planners_bench(const BenchOptions& options) {
  const int seeds = options.quick ? 1 : 5;
  std::vector<TableRow> rows;
  for (const planning::CostModel cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
    if (options.quick && cost_model == planning::CostModel::kPipeline) continue;
    MOTLEY_ASSIGN(const std::vector<TableRow> some, table(options, cost_model, seeds));
    rows.insert(rows.end(), some.begin(), some.end());
  }
  const std::vector<int> many_layers =
      options.quick ? std::vector<int>{8, 16} : std::vector<int>{4, 8, 16, 32, 64, 128};
  const std::vector<int> many_types = options.quick ? std::vector<int>{2, 4} : std::vector<int>{2, 4, 8, 16, 32, 64};
  if (options.progress) options.progress("planning time against layers and types");
  const auto layers = growth(many_layers, [](int size) {
    return planning::RandomProblemOptions{.layers = size, .types = 4, .max_count = 16};
  });
  const auto types = growth(many_types, [](int size) {
    return planning::RandomProblemOptions{.layers = 20, .types = size, .max_count = 16};
  });
  MOTLEY_TRY(write_results(options, rows, layers, types, seeds));

  // A row a method and cost model: the mean over models.
  std::map<std::pair<std::string, std::string>, std::vector<const Cell*>> by_method;
  for (const TableRow& row : rows) by_method[{row.cost_model, row.method}].push_back(&row.cell);
  std::vector<BenchRow> summary;
  for (const auto& [key, cells] : by_method) {
    std::vector<double> gaps, seconds;
    std::size_t found = 0;
    for (const Cell* cell : cells) {
      if (!cell->gap.empty()) {
        gaps.push_back(statistic(cell->gap).mean);
        ++found;
      }
      if (!cell->seconds.empty()) seconds.push_back(statistic(cell->seconds).mean);
    }
    const std::string name = key.first + "-" + key.second;
    const std::string note = fmt::format("plans for {} of {} models", found, cells.size());
    if (!gaps.empty()) {
      summary.push_back({.name = name,
                         .metric = "mean_gap",
                         .value = statistic(gaps).mean,
                         .unit = "share",
                         .target = {},
                         .limit = {},
                         .peer = {},
                         .note = note});
    }
    if (!seconds.empty()) {
      summary.push_back({.name = name,
                         .metric = "mean_seconds",
                         .value = statistic(seconds).mean,
                         .unit = "s",
                         .target = {},
                         .limit = {},
                         .peer = {},
                         .note = note});
      summary.push_back({.name = name,
                         .metric = "longest_seconds",
                         .value = *std::ranges::max_element(seconds),
                         .unit = "s",
                         .target = {},
                         .limit = {},
                         .peer = {},
                         .note = ""});
    }
  }
  return summary;
}

}  // namespace motley::bench
