#include "motley/report/plan_view.h"

#include <algorithm>
#include <cmath>

#include "motley/base/units.h"
#include "motley/planning/simulate/simulate.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/plan_timeline.h"
#include "motley/report/text_columns.h"

namespace motley::report {
namespace {

using report::escape;

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string describe_layers(const planning::Problem& problem, const planning::StageChoice& stage) {
  const std::string& first = problem.layers[static_cast<std::size_t>(stage.first)].name;
  const std::string& last = problem.layers[static_cast<std::size_t>(stage.last)].name;
  return stage.first == stage.last ? first : first + " … " + last;
}

std::string describe_devices(const planning::Problem& problem, const planning::StageChoice& stage) {
  return fmt::format("{} × {}", stage.replicas, problem.types[static_cast<std::size_t>(stage.type)].name);
}

double parameter_bytes(const planning::Problem& problem, const planning::StageChoice& stage) {
  double bytes = 0;
  for (int layer = stage.first; layer <= stage.last; ++layer) {
    bytes += problem.layers[static_cast<std::size_t>(layer)].parameter_bytes;
  }
  return bytes;
}

// Computation or communication, whichever the stage waits for.
bool computes_longest(const planning::StageCost& stage) {
  return stage.compute_seconds >= stage.communication_seconds;
}

std::string describe_bottleneck(const planning::FoundPlan& view) {
  const planning::Evaluation& evaluation = view.answer.evaluation;
  const auto index = static_cast<std::size_t>(evaluation.bottleneck);
  const planning::StageChoice& stage = (*view.answer.best)[index];
  return fmt::format("Stage {} is the bottleneck ({}); its longest layer is {}", index,
                     computes_longest(evaluation.stages[index]) ? "computation" : "communication",
                     view.problem.layers[static_cast<std::size_t>(planning::heaviest_layer(view.problem, stage))].name);
}

std::string certificate(const planning::Answer& answer, planning::Criterion criterion) {
  if (answer.proved) return "proved optimal";
  if (answer.bound > 0) return fmt::format("at most {} from the optimum", percent(answer.gap(criterion)));
  return "no bound";
}

std::string describe_stages(const planning::Problem& problem, const planning::Candidate& candidate) {
  std::vector<std::string> words;
  for (const planning::StageChoice& stage : candidate) {
    words.push_back(fmt::format("[{} | {}]", describe_layers(problem, stage), describe_devices(problem, stage)));
  }
  return fmt::format("{}", fmt::join(words, " → "));
}

// The value of an answer in the objective's own terms: cost, samples a second, seconds a step.
std::string format_value(const planning::Answer& answer, planning::Criterion criterion) {
  if (!answer.best) return answer.proved ? "no plan" : "not found in time";
  switch (criterion) {
    case planning::Criterion::kMinCost:
      return planning::format_figure(answer.evaluation.cost);
    case planning::Criterion::kMaxThroughput:
      return planning::format_figure(answer.evaluation.throughput) + " samples/s";
    case planning::Criterion::kMinStepTime:
      return format_seconds(answer.evaluation.step_seconds);
  }
  return "";
}

// A small change of the best value is lost in the gap of an answer that is not proved.
std::string known(const planning::Answer& answer, const planning::FoundPlan& view) {
  if (!answer.proved || !view.answer.proved) return "not known";
  return answer.best == view.answer.best ? "the same" : format_value(answer, view.objective.criterion);
}

// The gap of a method to the best bound that any method proved.
std::string gap_to_bound(const planning::MethodAnswer& method, double bound, planning::Criterion criterion) {
  if (!method.answer.best || bound <= 0) return "–";
  return percent(planning::value(method.answer.evaluation, criterion) / bound - 1);
}

double best_bound(const planning::FoundPlan& view) {
  double bound = view.answer.bound;
  for (const planning::MethodAnswer& method : view.methods) bound = std::max(bound, method.answer.bound);
  return bound;
}

std::vector<std::vector<std::string>> stage_rows(const planning::FoundPlan& view) {
  const bool pipeline = view.problem.cost_model == planning::CostModel::kPipeline;
  const char* per = pipeline ? "a micro-batch" : "a sample";
  std::vector<std::vector<std::string>> rows = {{"stage", "layers", "devices", fmt::format("computes {}", per),
                                                 fmt::format("communicates {}", per), "parameters", "sends a sample"}};
  if (pipeline) rows.front().insert(rows.front().end(), {"gradient synchronisation a step", "memory a device"});
  for (std::size_t i = 0; i < view.answer.best->size(); ++i) {
    const planning::StageChoice& stage = (*view.answer.best)[i];
    const planning::StageCost& took = view.answer.evaluation.stages[i];
    const bool last = i + 1 == view.answer.best->size();
    rows.push_back({fmt::format("{}", i),
                    fmt::format("{} ({})", describe_layers(view.problem, stage), stage.last - stage.first + 1),
                    describe_devices(view.problem, stage) + (stage.recompute ? ", recomputing" : ""),
                    format_seconds(took.compute_seconds), format_seconds(took.communication_seconds),
                    format_bytes(parameter_bytes(view.problem, stage)),
                    last ? "–" : format_bytes(view.problem.cut_bytes[static_cast<std::size_t>(stage.last) + 1])});
    if (pipeline) {
      rows.back().push_back(format_seconds(took.gradient_sync_seconds));
      rows.back().push_back(format_bytes(took.memory_bytes));
    }
  }
  return rows;
}

std::vector<std::vector<std::string>> marginal_rows(const planning::FoundPlan& view) {
  std::vector<std::vector<std::string>> rows = {
      {"device type", "used", "of", "with one more to use", "with one fewer"}};
  for (const planning::Marginal& marginal : view.marginals) {
    const planning::Type& type = view.problem.types[static_cast<std::size_t>(marginal.type)];
    rows.push_back({type.name, fmt::format("{}", view.answer.evaluation.used[static_cast<std::size_t>(marginal.type)]),
                    fmt::format("{}", type.count), known(marginal.one_more, view), known(marginal.one_fewer, view)});
  }
  return rows;
}

std::vector<std::vector<std::string>> method_rows(const planning::FoundPlan& view) {
  const double bound = best_bound(view);
  std::vector<std::vector<std::string>> rows = {
      {"method", "cost", "samples/s", "price/h", "step", "gap", "planned in", "stages"}};
  for (const planning::MethodAnswer& method : view.methods) {
    if (!method.refused.empty()) {
      rows.push_back({method.method, "–", "–", "–", "–", "–", "–", method.refused});
      continue;
    }
    const planning::Answer& answer = method.answer;
    if (!answer.best) {
      rows.push_back({method.method, "–", "–", "–", "–", "–", format_seconds(answer.seconds),
                      answer.proved ? "there is none" : "none found"});
      continue;
    }
    rows.push_back(
        {method.method, planning::format_figure(answer.evaluation.cost),
         planning::format_figure(answer.evaluation.throughput), planning::format_figure(answer.evaluation.hourly_cost),
         format_seconds(answer.evaluation.step_seconds), gap_to_bound(method, bound, view.objective.criterion),
         format_seconds(answer.seconds), describe_stages(view.problem, *answer.best)});
  }
  return rows;
}

std::vector<std::vector<std::string>> regime_rows(const planning::FoundPlan& view,
                                                  const std::vector<planning::Regime>& regimes) {
  std::vector<std::vector<std::string>> rows = {{"from", "best", "plan"}};
  for (const planning::Regime& regime : regimes) {
    rows.push_back({fmt::format("{:.4g}", regime.from), format_value(regime.answer, view.objective.criterion),
                    regime.answer.best ? describe_stages(view.problem, *regime.answer.best) : "–"});
  }
  return rows;
}

std::string summary_line(const planning::FoundPlan& view) {
  const planning::Evaluation& evaluation = view.answer.evaluation;
  std::string line = fmt::format("{} samples/s, {} an hour", planning::format_figure(evaluation.throughput),
                                 planning::format_figure(evaluation.hourly_cost));
  if (view.problem.cost_model == planning::CostModel::kPipeline) {
    line += fmt::format(", a step of {} in {} micro-batch{} takes {}", view.problem.batch, view.problem.micro_batches,
                        view.problem.micro_batches == 1 ? "" : "es", format_seconds(evaluation.step_seconds));
  }
  if (view.problem.total_samples > 1) {
    line += fmt::format(", {} for {} samples", planning::format_figure(evaluation.cost),
                        planning::format_figure(view.problem.total_samples));
  }
  return line;
}

// "measured: 12.1 ms a step, the median of 12; the best of 8 plans that were run, 1 of which failed".
std::string measured_line(const planning::FoundPlan& view) {
  const planning::Measuring& measuring = *view.measuring;
  std::string line = fmt::format("measured: {} a step, the median of {}; the best of {} plans that were run",
                                 format_seconds(measuring.best.step_seconds), measuring.best.steps, measuring.plans);
  if (measuring.failed > 0) line += fmt::format(", {} of which failed", measuring.failed);
  return line;
}

// The pipeline as boxes and arrows: width by number of stages, height by devices' shares of time.
std::string drawing(const planning::FoundPlan& view) {
  constexpr double kBox = 210;
  constexpr double kGap = 92;
  constexpr double kHeight = 150;
  const planning::Candidate& stages = *view.answer.best;
  const planning::Evaluation& evaluation = view.answer.evaluation;
  double slowest = 0;
  for (const planning::StageCost& stage : evaluation.stages) {
    slowest = std::max({slowest, stage.compute_seconds, stage.communication_seconds});
  }
  const double width = static_cast<double>(stages.size()) * (kBox + kGap) - kGap + 2;
  std::string svg = fmt::format(
      "<div class=\"scroll\"><svg class=\"pipeline\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "style=\"min-width:{2:.0f}px;max-width:{0:.0f}px\" role=\"img\" "
      "aria-label=\"{3}\"><defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
      "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" class=\"arrow-head\"/></marker></defs>",
      width, kHeight, 0.85 * width, escape(describe_stages(view.problem, stages)));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const planning::StageChoice& stage = stages[i];
    const planning::StageCost& took = evaluation.stages[i];
    const double x = static_cast<double>(i) * (kBox + kGap) + 1;
    const bool is_bottleneck = static_cast<int>(i) == evaluation.bottleneck;
    svg += fmt::format("<rect class=\"stage{}\" x=\"{:.0f}\" y=\"1\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"10\"/>",
                       is_bottleneck ? " bottleneck" : "", x, kBox, kHeight - 2);
    const auto line = [&](double y, const char* kind, const std::string& text) {
      svg += fmt::format("<text class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>", kind, x + 12, y, escape(text));
    };
    line(24, "stage-devices", describe_devices(view.problem, stage));
    line(45, "stage-layers", describe_layers(view.problem, stage));
    line(
        63, "stage-note",
        fmt::format("{} layers, {}", stage.last - stage.first + 1, format_bytes(parameter_bytes(view.problem, stage))));
    const auto bar = [&](double y, const char* kind, double seconds, const char* what) {
      const double full = kBox - 24;
      svg += fmt::format("<rect class=\"ground\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"9\" rx=\"3\"/>",
                         x + 12, y, full);
      svg += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"9\" rx=\"3\"/>", kind,
                         x + 12, y, slowest > 0 ? full * seconds / slowest : 0);
      svg += fmt::format("<text class=\"stage-note\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>", x + 12, y + 21,
                         escape(fmt::format("{} {}", what, format_seconds(seconds))));
    };
    bar(76, "compute", took.compute_seconds, "computes");
    bar(112, "gradient_sync", took.communication_seconds, "communicates");
    if (i + 1 < stages.size()) {
      const double bytes = view.problem.cut_bytes[static_cast<std::size_t>(stage.last) + 1];
      svg += fmt::format(
          "<line class=\"arrow\" x1=\"{:.0f}\" y1=\"{:.0f}\" x2=\"{:.0f}\" y2=\"{:.0f}\" marker-end=\"url(#arrow)\"/>",
          x + kBox + 4, kHeight / 2, x + kBox + kGap - 5, kHeight / 2);
      svg += fmt::format("<text class=\"stage-note centred\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>", x + kBox + kGap / 2,
                         kHeight / 2 - 8, escape(format_bytes(bytes)));
    }
  }
  return svg + "</svg></div>";
}

std::string html_table(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<std::size_t>& numeric = {}) {
  std::vector<std::vector<std::string>> cells(rows.begin() + 1, rows.end());
  for (auto& row : cells) {
    for (std::string& cell : row) cell = escape(cell);
  }
  return report::table(rows.front(), cells, numeric);
}

// The simulated step of a synchronous pipeline; nothing for the steady state, which has no steps.
std::string predicted_step(const planning::FoundPlan& view) {
  if (view.problem.cost_model != planning::CostModel::kPipeline) return "";
  const planning::Plan plan =
      planning::to_plan(view.problem, *view.answer.best, view.answer.evaluation, view.objective, view.method);
  const Result<planning::Timeline> timeline = planning::simulate(view.problem, plan);
  return timeline ? plan_timeline(*timeline, plan) : "";
}

// A bar a method: how near it comes to what is possible.
std::string method_chart(const planning::FoundPlan& view) {
  const double bound = best_bound(view);
  double best = std::numeric_limits<double>::infinity();
  for (const planning::MethodAnswer& method : view.methods) {
    if (method.answer.best) best = std::min(best, planning::value(method.answer.evaluation, view.objective.criterion));
  }
  const double full = bound > 0 ? bound : best;
  std::vector<report::BarRow> bars;
  for (const planning::MethodAnswer& method : view.methods) {
    if (!method.answer.best) continue;
    const double reached = std::min(1.0, full / planning::value(method.answer.evaluation, view.objective.criterion));
    bars.push_back({method.method,
                    report::segment_bar({{0, reached, "compute", percent(reached), 0}}, 1, method.method),
                    format_value(method.answer, view.objective.criterion)});
  }
  return report::bar_group(bound > 0 ? "Fraction of the bound that is reached" : "Fraction of the best that is reached",
                           "longer is better", bars);
}

}  // namespace

std::string plan_text(const planning::FoundPlan& view) {
  std::string text = fmt::format("{}: {}, by {} ({})\n\n", view.problem.model, planning::describe(view.objective),
                                 view.method, certificate(view.answer, view.objective.criterion));
  text += fmt::format("  {}\n\n", describe_stages(view.problem, *view.answer.best));
  text += text_columns(stage_rows(view)) + "\n";
  if (view.measuring) text += fmt::format("  {}\n  by the cost model: ", measured_line(view));
  text += fmt::format("{}{}\n  {}\n", view.measuring ? "" : "  ", summary_line(view), describe_bottleneck(view));
  if (!view.marginals.empty()) text += fmt::format("\n{}", text_columns(marginal_rows(view)));
  for (const auto& [question, regimes] : view.what_ifs) {
    text += fmt::format("\nwhat if {}:\n", question.text) + text_columns(regime_rows(view, regimes));
  }
  if (!view.methods.empty()) text += fmt::format("\n{}", text_columns(method_rows(view)));
  return text;
}

std::string plan_page(const planning::FoundPlan& view) {
  const planning::Evaluation& evaluation = view.answer.evaluation;
  std::string body = fmt::format(
      "<header><h1>Plan for {}<span class=\"badge {}\">{}</span></h1>\n<div "
      "class=\"facts\"><span>{}</span><span>{}</span><span>method: "
      "{}</span><span>cost model: {}</span></div></header>\n<main>\n",
      escape(view.problem.model), view.answer.proved ? "good" : "",
      escape(certificate(view.answer, view.objective.criterion)), escape(planning::describe(view.objective)),
      escape(fmt::format("{} layers", view.problem.layer_count())), escape(view.method),
      planning::to_string(view.problem.cost_model));
  if (view.measuring) {
    body += report::notice("Measured", escape(measured_line(view)) +
                                           ". The plan was chosen by that; all else on this page is the cost model's.");
  }
  body += "<div class=\"tiles\">";
  body += report::tile("Throughput", planning::format_figure(evaluation.throughput), "samples a second",
                       report::Tone::kPlain);
  body += report::tile("Price", planning::format_figure(evaluation.hourly_cost),
                       "an hour, in the currency of the cluster file", report::Tone::kPlain);
  if (view.problem.total_samples > 1) {
    body += report::tile("Cost", planning::format_figure(evaluation.cost),
                         fmt::format("for {} samples", planning::format_figure(view.problem.total_samples)),
                         report::Tone::kPlain);
  }
  if (view.problem.cost_model == planning::CostModel::kPipeline) {
    body +=
        report::tile("Step", format_seconds(evaluation.step_seconds),
                     fmt::format("of {} samples in {} micro-batches", view.problem.batch, view.problem.micro_batches),
                     report::Tone::kPlain);
  }
  body += "</div>\n<div class=\"cards\">";
  body += report::card(
      "The pipeline",
      escape(describe_bottleneck(view)) + ". Bars are to one scale: the longest is what the pipeline waits for.",
      drawing(view), true);
  body += predicted_step(view);
  body += report::card("Stages", "", html_table(stage_rows(view), {3, 4, 5, 6, 7, 8}), true);
  if (!view.marginals.empty()) {
    body += report::card("One device more, one fewer", "The best plan there would be, by what the objective counts.",
                         html_table(marginal_rows(view), {1, 2, 3, 4}), true);
  }
  if (!view.methods.empty()) {
    body += report::card(
        "Methods compared", "The gap is to the best bound that any method proved.",
        method_chart(view) + "<div class=\"last-wide\">" + html_table(method_rows(view), {1, 2, 3, 4, 5, 6}) + "</div>",
        true);
  }
  for (const auto& [question, regimes] : view.what_ifs) {
    body += report::card("What if " + question.text, "The best plan from each value on.",
                         html_table(regime_rows(view, regimes), {0, 1}), true);
  }
  return report::document("Plan for " + view.problem.model, body + "</div></main>");
}

}  // namespace motley::report
