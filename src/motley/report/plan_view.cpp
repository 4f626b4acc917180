#include "motley/report/plan_view.h"

#include <algorithm>
#include <cmath>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/text_columns.h"

namespace motley::report {
namespace {

using planning::Answer;
using planning::CostModel;
using planning::Criterion;
using planning::Evaluation;
using planning::format_figure;
using planning::FoundPlan;
using planning::MethodAnswer;
using planning::Problem;
using planning::StageChoice;
using planning::StageCost;

using Rows = std::vector<std::vector<std::string>>;

std::string describe_layers(const Problem& problem, const StageChoice& stage) {
  const std::string& first = problem.layers[static_cast<std::size_t>(stage.first)].name;
  const std::string& last = problem.layers[static_cast<std::size_t>(stage.last)].name;
  return stage.first == stage.last ? first : first + " … " + last;
}

std::string describe_devices(const Problem& problem, const StageChoice& stage) {
  return fmt::format("{} × {}", stage.replicas, problem.types[static_cast<std::size_t>(stage.type)].name);
}

double parameter_bytes(const Problem& problem, const StageChoice& stage) {
  double bytes = 0;
  for (int layer = stage.first; layer <= stage.last; ++layer) {
    bytes += problem.layers[static_cast<std::size_t>(layer)].parameter_bytes;
  }
  return bytes;
}

std::string describe_bottleneck(const FoundPlan& view) {
  const Evaluation& evaluation = view.answer.evaluation;
  const auto index = static_cast<std::size_t>(evaluation.bottleneck);
  const StageChoice& stage = (*view.answer.best)[index];
  const StageCost& took = evaluation.stages[index];
  return fmt::format("Stage {} is the bottleneck ({}); its longest layer is {}", index,
                     took.compute_seconds >= took.communication_seconds ? "computation" : "communication",
                     view.problem.layers[static_cast<std::size_t>(planning::heaviest_layer(view.problem, stage))].name);
}

std::string certificate(const Answer& answer, Criterion criterion) {
  if (answer.proved) return "proved optimal";
  if (answer.bound > 0) return fmt::format("at most {} from the optimum", format_percent(answer.gap(criterion), 2));
  return "no bound";
}

std::string describe_stages(const Problem& problem, const planning::Candidate& candidate) {
  std::vector<std::string> words;
  for (const StageChoice& stage : candidate) {
    words.push_back(fmt::format("[{} | {}]", describe_layers(problem, stage), describe_devices(problem, stage)));
  }
  return fmt::format("{}", fmt::join(words, " → "));
}

// The value of an answer in the objective's own terms: cost, samples a second, seconds a step.
std::string format_value(const Answer& answer, Criterion criterion) {
  if (!answer.best) return answer.proved ? "no plan" : "not found in time";
  switch (criterion) {
    case Criterion::kMinCost:
      return format_figure(answer.evaluation.cost);
    case Criterion::kMaxThroughput:
      return format_figure(answer.evaluation.throughput) + " samples/s";
    case Criterion::kMinStepTime:
      return format_seconds(answer.evaluation.step_seconds);
  }
  return "";
}

// A small change of the best value is lost in the gap of an answer that is not proved.
std::string known(const Answer& answer, const FoundPlan& view) {
  if (!answer.proved || !view.answer.proved) return "not known";
  return answer.best == view.answer.best ? "the same" : format_value(answer, view.objective.criterion);
}

double best_bound(const FoundPlan& view) {
  double bound = view.answer.bound;
  for (const MethodAnswer& method : view.methods) bound = std::max(bound, method.answer.bound);
  return bound;
}

Rows stage_rows(const FoundPlan& view) {
  const bool pipeline = view.problem.cost_model == CostModel::kPipeline;
  const char* per = pipeline ? "a micro-batch" : "a sample";
  Rows rows = {{"stage", "layers", "devices", fmt::format("computes {}", per), fmt::format("communicates {}", per),
                "parameters", "sends a sample"}};
  if (pipeline) rows.front().insert(rows.front().end(), {"gradient synchronisation a step", "memory a device"});
  for (std::size_t i = 0; i < view.answer.best->size(); ++i) {
    const StageChoice& stage = (*view.answer.best)[i];
    const StageCost& took = view.answer.evaluation.stages[i];
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

Rows marginal_rows(const FoundPlan& view) {
  Rows rows = {{"device type", "used", "of", "with one more to use", "with one fewer"}};
  for (const planning::Marginal& marginal : view.marginals) {
    const planning::Type& type = view.problem.types[static_cast<std::size_t>(marginal.type)];
    rows.push_back({type.name, fmt::format("{}", view.answer.evaluation.used[static_cast<std::size_t>(marginal.type)]),
                    fmt::format("{}", type.count), known(marginal.one_more, view), known(marginal.one_fewer, view)});
  }
  return rows;
}

Rows method_rows(const FoundPlan& view) {
  const double bound = best_bound(view);
  Rows rows = {{"method", "cost", "samples/s", "price/h", "step", "gap", "planned in", "stages"}};
  for (const MethodAnswer& method : view.methods) {
    const Answer& answer = method.answer;
    const Evaluation& evaluation = answer.evaluation;
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{method.method});
    if (!method.refused.empty()) {
      row.insert(row.end(), {"–", "–", "–", "–", "–", "–", method.refused});
    } else if (!answer.best) {
      row.insert(row.end(), {"–", "–", "–", "–", "–", format_seconds(answer.seconds),
                             answer.proved ? "there is none" : "none found"});
    } else {
      row.insert(
          row.end(),
          {format_figure(evaluation.cost), format_figure(evaluation.throughput), format_figure(evaluation.hourly_cost),
           format_seconds(evaluation.step_seconds),
           bound > 0 ? format_percent(planning::value(evaluation, view.objective.criterion) / bound - 1, 2) : "–",
           format_seconds(answer.seconds), describe_stages(view.problem, *answer.best)});
    }
  }
  return rows;
}

Rows regime_rows(const FoundPlan& view, const std::vector<planning::Regime>& regimes) {
  Rows rows = {{"from", "best", "plan"}};
  for (const planning::Regime& regime : regimes) {
    rows.push_back({fmt::format("{:.4g}", regime.from), format_value(regime.answer, view.objective.criterion),
                    regime.answer.best ? describe_stages(view.problem, *regime.answer.best) : "–"});
  }
  return rows;
}

std::string summary_line(const FoundPlan& view) {
  const Evaluation& evaluation = view.answer.evaluation;
  std::string line = fmt::format("{} samples/s, {} an hour", format_figure(evaluation.throughput),
                                 format_figure(evaluation.hourly_cost));
  if (view.problem.cost_model == CostModel::kPipeline) {
    line += fmt::format(", a step of {} in {} takes {}", view.problem.batch,
                        format_count(view.problem.micro_batches, "micro-batch", "es"),
                        format_seconds(evaluation.step_seconds));
  }
  if (view.problem.total_samples > 1) {
    line +=
        fmt::format(", {} for {} samples", format_figure(evaluation.cost), format_figure(view.problem.total_samples));
  }
  return line;
}

// "measured: 12.1 ms a step, the median of 12; the best of 8 plans that were run, 1 of which failed".
std::string measured_line(const FoundPlan& view) {
  const planning::Measuring& measuring = *view.measuring;
  std::string line = fmt::format("measured: {} a step, the median of {}; the best of {} plans that were run",
                                 format_seconds(measuring.best.step_seconds), measuring.best.steps, measuring.plans);
  if (measuring.failed > 0) line += fmt::format(", {} of which failed", measuring.failed);
  return line;
}

// The pipeline as boxes and arrows: width by number of stages, height by devices' shares of time.
std::string drawing(const FoundPlan& view) {
  constexpr double kBox = 210;
  constexpr double kGap = 92;
  constexpr double kHeight = 150;
  const planning::Candidate& stages = *view.answer.best;
  const Evaluation& evaluation = view.answer.evaluation;
  double slowest = 0;
  for (const StageCost& stage : evaluation.stages) {
    slowest = std::max({slowest, stage.compute_seconds, stage.communication_seconds});
  }
  const double width = static_cast<double>(stages.size()) * (kBox + kGap) - kGap + 2;
  std::string svg = fmt::format(
      "<div class=\"scroll\"><svg class=\"pipeline\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "style=\"min-width:{2:.0f}px;max-width:{0:.0f}px\" role=\"img\" "
      "aria-label=\"{3}\"><defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
      "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" class=\"arrow-head\"/></marker></defs>",
      width, kHeight, 0.85 * width, escape(describe_stages(view.problem, stages)));
  const auto text = [&](const char* kind, double x, double y, const std::string& words) {
    svg += fmt::format("<text class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>", kind, x, y, escape(words));
  };
  const auto rectangle = [&](const char* kind, double x, double y, double wide, double high, int radius) {
    svg += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"{}\"/>",
                       kind, x, y, wide, high, radius);
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageChoice& stage = stages[i];
    const StageCost& took = evaluation.stages[i];
    const double left = static_cast<double>(i) * (kBox + kGap) + 1;
    const double x = left + 12, full = kBox - 24;
    rectangle(static_cast<int>(i) == evaluation.bottleneck ? "stage bottleneck" : "stage", left, 1, kBox, kHeight - 2,
              10);
    text("stage-devices", x, 24, describe_devices(view.problem, stage));
    text("stage-layers", x, 45, describe_layers(view.problem, stage));
    text(
        "stage-note", x, 63,
        fmt::format("{} layers, {}", stage.last - stage.first + 1, format_bytes(parameter_bytes(view.problem, stage))));
    const auto bar = [&](double y, const char* kind, double seconds, const char* what) {
      rectangle("ground", x, y, full, 9, 3);
      rectangle(kind, x, y, slowest > 0 ? full * seconds / slowest : 0, 9, 3);
      text("stage-note", x, y + 21, fmt::format("{} {}", what, format_seconds(seconds)));
    };
    bar(76, "compute", took.compute_seconds, "computes");
    bar(112, "gradient_sync", took.communication_seconds, "communicates");
    if (i + 1 == stages.size()) break;
    svg += fmt::format(
        "<line class=\"arrow\" x1=\"{:.0f}\" y1=\"{:.0f}\" x2=\"{:.0f}\" y2=\"{:.0f}\" marker-end=\"url(#arrow)\"/>",
        left + kBox + 4, kHeight / 2, left + kBox + kGap - 5, kHeight / 2);
    text("stage-note centred", left + kBox + kGap / 2, kHeight / 2 - 8,
         format_bytes(view.problem.cut_bytes[static_cast<std::size_t>(stage.last) + 1]));
  }
  return svg + "</svg></div>";
}

// The simulated step of a synchronous pipeline; nothing for the steady state, which has no steps.
std::string predicted_step(const FoundPlan& view) {
  if (view.problem.cost_model != CostModel::kPipeline) return "";
  const planning::Plan plan =
      planning::to_plan(view.problem, *view.answer.best, view.answer.evaluation, view.objective, view.method);
  const Result<planning::Timeline> timeline = planning::simulate(view.problem, plan);
  return timeline ? plan_timeline(*timeline, plan) : "";
}

// A bar a method: how near it comes to what is possible.
std::string method_chart(const FoundPlan& view) {
  const double bound = best_bound(view);
  double best = std::numeric_limits<double>::infinity();
  for (const MethodAnswer& method : view.methods) {
    if (method.answer.best) best = std::min(best, planning::value(method.answer.evaluation, view.objective.criterion));
  }
  const double full = bound > 0 ? bound : best;
  std::vector<BarRow> bars;
  for (const MethodAnswer& method : view.methods) {
    if (!method.answer.best) continue;
    const double reached = std::min(1.0, full / planning::value(method.answer.evaluation, view.objective.criterion));
    bars.push_back({method.method,
                    segment_bar({{0, reached, "compute", format_percent(reached, 2), 0}}, 1, method.method),
                    format_value(method.answer, view.objective.criterion)});
  }
  return bar_group(bound > 0 ? "Fraction of the bound that is reached" : "Fraction of the best that is reached",
                   "longer is better", bars);
}

}  // namespace

std::string plan_text(const FoundPlan& view) {
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

std::string plan_page(const FoundPlan& view) {
  const Problem& problem = view.problem;
  const Evaluation& evaluation = view.answer.evaluation;
  Page page{.title = "Plan for " + problem.model,
            .badge = certificate(view.answer, view.objective.criterion),
            .badge_tone = view.answer.proved ? Tone::kGood : Tone::kPlain,
            .facts = {describe(view.objective), fmt::format("{} layers", problem.layer_count()),
                      "method: " + view.method, fmt::format("cost model: {}", to_string(problem.cost_model))}};
  if (view.measuring) {
    page.notices_html =
        notice("Measured", escape(measured_line(view)) +
                               ". The plan was chosen by that; all else on this page is the cost model's.");
  }
  page.tiles_html =
      tile("Throughput", format_figure(evaluation.throughput), "samples a second") +
      tile("Price", format_figure(evaluation.hourly_cost), "an hour, in the currency of the cluster file");
  if (problem.total_samples > 1) {
    page.tiles_html += tile("Cost", format_figure(evaluation.cost),
                            fmt::format("for {} samples", format_figure(problem.total_samples)));
  }
  if (problem.cost_model == CostModel::kPipeline) {
    page.tiles_html += tile("Step", format_seconds(evaluation.step_seconds),
                            fmt::format("of {} samples in {} micro-batches", problem.batch, problem.micro_batches));
  }
  page.cards_html =
      card("The pipeline",
           escape(describe_bottleneck(view)) + ". Bars are to one scale: the longest is what the pipeline waits for.",
           drawing(view), true) +
      predicted_step(view) + card("Stages", "", text_table(stage_rows(view), {3, 4, 5, 6, 7, 8}), true);
  if (!view.marginals.empty()) {
    page.cards_html += card("One device more, one fewer", "The best plan there would be, by what the objective counts.",
                            text_table(marginal_rows(view), {1, 2, 3, 4}), true);
  }
  if (!view.methods.empty()) {
    page.cards_html += card("Methods compared", "The gap is to the best bound that any method proved.",
                            fmt::format("{}<div class=\"last-wide\">{}</div>", method_chart(view),
                                        text_table(method_rows(view), {1, 2, 3, 4, 5, 6})),
                            true);
  }
  for (const auto& [question, regimes] : view.what_ifs) {
    page.cards_html += card("What if " + question.text, "The best plan from each value on.",
                            text_table(regime_rows(view, regimes), {0, 1}), true);
  }
  return document(page);
}

}  // namespace motley::report
