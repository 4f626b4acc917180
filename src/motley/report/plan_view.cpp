#include "motley/report/plan_view.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "motley/base/units.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/text_columns.h"

namespace motley::report {
namespace {

using planning::Alternative;
using planning::Answer;
using planning::CostModel;
using planning::Criterion;
using planning::Evaluation;
using planning::format_figure;
using planning::FoundPlan;
using planning::MethodAnswer;
using planning::Plan;
using planning::Problem;
using planning::Stage;
using planning::StageCost;

using Rows = std::vector<std::vector<std::string>>;

std::string describe_layers(const Plan& plan, const Stage& stage) {
  const std::string& first = plan.layers[static_cast<std::size_t>(stage.first_layer)];
  const std::string& last = plan.layers[static_cast<std::size_t>(stage.last_layer)];
  return stage.first_layer == stage.last_layer ? first : first + " … " + last;
}

// "2 × gpu", and of a stage that mixes types "1 × gpu (70 %) + 2 × cpu (15 % each)".
std::string describe_devices(const Stage& stage) {
  std::vector<std::string> words;
  for (const planning::Replicas& replicas : stage.replicas) {
    words.push_back(fmt::format("{} × {}", replicas.count, replicas.type));
    if (stage.replicas.size() > 1) {
      words.back() += fmt::format(" ({}{})", format_percent(replicas.share, 0), replicas.count > 1 ? " each" : "");
    }
  }
  return fmt::format("{}", fmt::join(words, " + "));
}

// What has room in a box: "2 × gpu", and of a stage that mixes types "3 devices of 2 types".
std::string count_devices(const Stage& stage) {
  if (stage.replicas.size() == 1) return describe_devices(stage);
  std::int64_t devices = 0;
  for (const planning::Replicas& replicas : stage.replicas) devices += replicas.count;
  return fmt::format("{} of {}", format_count(devices, "device"), format_count(std::ssize(stage.replicas), "type"));
}

std::string describe_stages(const Plan& plan) {
  std::vector<std::string> words;
  for (const Stage& stage : plan.stages) {
    words.push_back(fmt::format("[{} | {}]", describe_layers(plan, stage), describe_devices(stage)));
  }
  return fmt::format("{}", fmt::join(words, " → "));
}

// A candidate of the problem as its plan.
std::string describe_stages(const FoundPlan& view, const Answer& answer) {
  return describe_stages(planning::to_plan(view.problem, *answer.best, answer.evaluation, view.objective, ""));
}

double parameter_bytes(const Problem& problem, const Stage& stage) {
  double bytes = 0;
  for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
    bytes += problem.layers[static_cast<std::size_t>(layer)].parameter_bytes;
  }
  return bytes;
}

// With its first letter as a sentence has it, and its end.
std::string as_sentence(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

std::string certificate(const FoundPlan& view) {
  const Answer& answer = view.answer;
  if (view.is_mixed) return "replayed, nothing is proved";
  if (view.problem.merged_from > 0) {
    const std::string blocks =
        fmt::format("of {} blocks of {}", view.problem.layers.size(), format_count(view.problem.merged_from, "layer"));
    return answer.bound > 0 ? fmt::format("{}, at most {} from the optimum of all layers", blocks,
                                          format_percent(answer.gap(view.objective.criterion), 2))
                            : blocks + ", no bound of the optimum of all layers";
  }
  if (answer.proved) return "proved optimal";
  if (answer.bound > 0) {
    return fmt::format("at most {} from the optimum", format_percent(answer.gap(view.objective.criterion), 2));
  }
  return "no bound";
}

// A value in the objective's own terms: cost, samples a second, seconds a step.
std::string format_value(const Evaluation& evaluation, Criterion criterion) {
  switch (criterion) {
    case Criterion::kMinCost:
      return "cost " + format_figure(evaluation.cost);
    case Criterion::kMaxThroughput:
      return format_figure(evaluation.throughput) + " samples/s";
    case Criterion::kMinStepTime:
      return format_seconds(evaluation.step_seconds) + " a step";
  }
  return "";
}

std::string format_value(const Answer& answer, Criterion criterion) {
  if (!answer.best) return answer.proved ? "no plan" : "not found in time";
  return format_value(answer.evaluation, criterion);
}

// "+1.2 %" of one number over another.
std::string format_change(double value, double of) {
  const double change = value / of - 1;
  return std::abs(change) < 5e-4 ? "the same" : fmt::format("{:+.1f} %", 100 * change);
}

// Whether a cost of the whole training can be told.
bool has_total(const FoundPlan& view) {
  return view.problem.total_samples > 1;
}

// Throughput, and what has a price: "14.9 samples/s (+3.1 %), cost 1.02 (-1.2 %)".
std::string format_against(const Evaluation& evaluation, const FoundPlan& view) {
  std::string text = fmt::format("{} samples/s ({})", format_figure(evaluation.throughput),
                                 format_change(evaluation.throughput, view.evaluation.throughput));
  if (view.evaluation.hourly_cost > 0) {
    text += has_total(view) ? fmt::format(", cost {} ({})", format_figure(evaluation.cost),
                                          format_change(evaluation.cost, view.evaluation.cost))
                            : fmt::format(", {} an hour ({})", format_figure(evaluation.hourly_cost),
                                          format_change(evaluation.hourly_cost, view.evaluation.hourly_cost));
  }
  return text;
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
  for (std::size_t i = 0; i < view.plan.stages.size(); ++i) {
    const Stage& stage = view.plan.stages[i];
    const StageCost& took = view.evaluation.stages[i];
    const bool last = i + 1 == view.plan.stages.size();
    rows.push_back({fmt::format("{}", i),
                    fmt::format("{} ({})", describe_layers(view.plan, stage), stage.last_layer - stage.first_layer + 1),
                    describe_devices(stage) + (stage.recompute ? ", recomputing" : ""),
                    format_seconds(took.compute_seconds), format_seconds(took.communication_seconds),
                    format_bytes(parameter_bytes(view.problem, stage)),
                    last ? "–" : format_bytes(view.problem.cut_bytes[static_cast<std::size_t>(stage.last_layer) + 1])});
    if (pipeline) {
      rows.back().push_back(format_seconds(took.gradient_sync_seconds));
      rows.back().push_back(format_bytes(took.memory_bytes));
    }
  }
  return rows;
}

// What such lines are about, and which types are left out.
std::string about_marginals(const FoundPlan& view) {
  std::vector<std::string> left_out;
  for (int type = 0; type < view.problem.type_count(); ++type) {
    const bool is_there = std::ranges::find(view.marginals, type, &planning::Marginal::type) != view.marginals.end();
    if (view.evaluation.used[planning::index(type)] > 0 && !is_there) left_out.push_back(view.problem.type(type).name);
  }
  return "each is planned anew, and may be on other types and other numbers of devices than this plan" +
         (left_out.empty() ? "" : fmt::format("; no time was left for {}", fmt::join(left_out, ", ")));
}

// " on 7 × t4, 1 × cpu"; nothing of stages that mix types, whose devices the evaluation does not have.
std::string list_devices(const Evaluation& evaluation, const FoundPlan& view) {
  if (view.is_mixed) return "";
  std::vector<std::string> devices;
  for (int type = 0; type < view.problem.type_count(); ++type) {
    const std::int64_t used = evaluation.used[planning::index(type)];
    if (used > 0) devices.push_back(fmt::format("{} × {}", used, view.problem.type(type).name));
  }
  return fmt::format(" on {}", fmt::join(devices, ", "));
}

Rows marginal_rows(const FoundPlan& view) {
  Rows rows = {{"device type", "used", "of", "with one more", "with one fewer"}};
  for (const planning::Marginal& marginal : view.marginals) {
    const planning::Type& type = view.problem.types[static_cast<std::size_t>(marginal.type)];
    const auto cell = [&](const planning::Marginal::Change& change) {
      if (!change.best) return std::string(change.is_proved ? "no plan" : "not found in time");
      return format_against(*change.best, view) + list_devices(*change.best, view) +
             (change.is_proved ? "" : ", not proved");
    };
    rows.push_back({type.name, fmt::format("{}", marginal.used), fmt::format("{}", type.count), cell(marginal.one_more),
                    cell(marginal.one_fewer)});
  }
  return rows;
}

// How an alternative differs at a glance: its stages, and its micro-batches where they are others.
std::string describe_alternative(const FoundPlan& view, const Alternative& one) {
  std::string text = describe_stages(one.plan);
  if (one.plan.micro_batches != view.plan.micro_batches) {
    text += fmt::format(" in {}", format_count(one.plan.micro_batches, "micro-batch", "es"));
  }
  return text;
}

Rows alternative_rows(const FoundPlan& view) {
  Rows rows = {{"", "alternative", "throughput and cost", "why it lost"}};
  if (view.uncertainty) rows.front().emplace_back("better in");
  for (std::size_t i = 0; i < view.alternatives.size(); ++i) {
    const Alternative& one = view.alternatives[i];
    rows.push_back(
        {fmt::format("{}", i + 1), describe_alternative(view, one), format_against(one.evaluation, view), one.reason});
    if (view.uncertainty) rows.back().push_back(format_percent(view.uncertainty->better[i], 0) + " of draws");
  }
  return rows;
}

// What is said of alternatives where there are none.
std::string no_alternatives(const FoundPlan& view) {
  if (view.is_interrupted) {
    return "interrupted: this is the best plan so far; what comes near it and what other devices would change was not "
           "looked for";
  }
  return fmt::format("no other plan that was looked at comes within {} of it", format_percent(planning::kNear, 0));
}

// How far the step may be off, and whether another plan could then be the better one.
std::string describe_uncertainty(const FoundPlan& view) {
  if (!view.uncertainty) {
    return "how far that may be off is not known: the profile has no repeated measurements";
  }
  const auto& [low, high, better] = *view.uncertainty;
  std::string text = fmt::format("a step is expected to take between {} and {} (9 of 10 draws of the measured times)",
                                 format_seconds(low), format_seconds(high));
  const auto most = std::ranges::max_element(better);
  if (most == better.end()) return text;
  return text + (*most < 0.05 ? "; no alternative is better in more than 5 % of the draws"
                              : fmt::format("; alternative {} is the better plan in {} of the draws{}",
                                            most - better.begin() + 1, format_percent(*most, 0),
                                            *most > 0.5 ? ": the optimum is that of the medians, from which the "
                                                          "measured times are far; profile again on a quiet machine"
                                                        : ""));
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
           format_seconds(answer.seconds), describe_stages(view, answer)});
    }
  }
  return rows;
}

Rows regime_rows(const FoundPlan& view, const std::vector<planning::Regime>& regimes) {
  Rows rows = {{"from", "best", "plan"}};
  for (const planning::Regime& regime : regimes) {
    std::string plan = regime.answer.best ? describe_stages(view, regime.answer) : "–";
    const std::int64_t micro_batches = regime.answer.micro_batches;
    if (regime.answer.best && micro_batches > 0 && micro_batches != view.problem.micro_batches) {
      plan += fmt::format(" in {}", format_count(micro_batches, "micro-batch", "es"));
    }
    rows.push_back(
        {fmt::format("{:.4g}", regime.from), format_value(regime.answer, view.objective.criterion), std::move(plan)});
  }
  return rows;
}

std::string summary_line(const FoundPlan& view) {
  const Evaluation& evaluation = view.evaluation;
  std::string line =
      fmt::format("{} samples/s, {}", format_figure(evaluation.throughput), planning::describe_price(evaluation));
  if (view.problem.cost_model == CostModel::kPipeline) {
    line += fmt::format(", a step of {} in {} takes {}", format_count(view.problem.batch, "sample"),
                        format_count(view.plan.micro_batches, "micro-batch", "es"),
                        format_seconds(evaluation.step_seconds));
  }
  if (has_total(view) && evaluation.hourly_cost > 0) {
    line +=
        fmt::format(", {} for {} samples", format_figure(evaluation.cost), format_figure(view.problem.total_samples));
  }
  if (evaluation.hourly_cost > 0) line += " (in the currency of the cluster file)";
  return line;
}

// "measured: 12.1 ms a step, the median of 12; the best of 8 plans that were run, 1 of which failed".
std::string measured_line(const FoundPlan& view) {
  const planning::Measuring& measuring = *view.measuring;
  std::string line =
      fmt::format("measured: {} a step, the median of {}; the best of {} run",
                  format_seconds(measuring.best.step_seconds), measuring.best.steps,
                  measuring.plans == 1 ? "1 plan that was" : fmt::format("{} plans that were", measuring.plans));
  if (measuring.failed > 0) line += fmt::format(", {} of which failed", measuring.failed);
  return line;
}

// The pipeline as boxes and arrows: width by number of stages, height by devices' shares of time.
std::string drawing(const FoundPlan& view) {
  constexpr double kBox = 210;
  constexpr double kGap = 92;
  constexpr double kHeight = 150;
  const std::vector<Stage>& stages = view.plan.stages;
  const Evaluation& evaluation = view.evaluation;
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
      width, kHeight, 0.85 * width, escape(describe_stages(view.plan)));
  const auto text = [&](const char* kind, double x, double y, const std::string& words) {
    svg += fmt::format("<text class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>", kind, x, y, escape(words));
  };
  const auto rectangle = [&](const char* kind, double x, double y, double wide, double high, int radius) {
    svg += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"{}\"/>",
                       kind, x, y, wide, high, radius);
  };
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const StageCost& took = evaluation.stages[i];
    const double left = static_cast<double>(i) * (kBox + kGap) + 1;
    const double x = left + 12, full = kBox - 24;
    rectangle(static_cast<int>(i) == evaluation.bottleneck ? "stage bottleneck" : "stage", left, 1, kBox, kHeight - 2,
              10);
    text("stage-devices", x, 24, count_devices(stage));
    text("stage-layers", x, 45, describe_layers(view.plan, stage));
    text("stage-note", x, 63,
         fmt::format("{}, {}", format_count(stage.last_layer - stage.first_layer + 1, "layer"),
                     format_bytes(parameter_bytes(view.problem, stage))));
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
         format_bytes(view.problem.cut_bytes[static_cast<std::size_t>(stage.last_layer) + 1]));
  }
  return svg + "</svg></div>";
}

// The simulated step of a synchronous pipeline; nothing for the steady state, which has no steps.
std::string predicted_step(const FoundPlan& view) {
  if (view.problem.cost_model != CostModel::kPipeline) return "";
  const Result<planning::Timeline> timeline = planning::simulate(view.problem, view.plan);
  return timeline ? plan_timeline(*timeline, view.plan) : "";
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
                                 view.plan.method, certificate(view));
  text += fmt::format("  {}\n\n", describe_stages(view.plan));
  text += text_columns(stage_rows(view)) + "\n";
  if (view.measuring) text += fmt::format("  {}\n  by the cost model: ", measured_line(view));
  text +=
      fmt::format("{}{}\n  {}\n  {}\n", view.measuring ? "" : "  ", summary_line(view),
                  planning::describe_bottleneck(view.problem, view.plan, view.evaluation), describe_uncertainty(view));
  if (view.alternatives.empty()) {
    text += fmt::format("  {}\n", no_alternatives(view));
  } else {
    text += "\nalternatives:\n";
    for (std::size_t i = 0; i < view.alternatives.size(); ++i) {
      const Alternative& one = view.alternatives[i];
      text += fmt::format("  {}. {}\n     {}: {}\n", i + 1, describe_alternative(view, one),
                          format_against(one.evaluation, view), one.reason);
    }
  }
  if (!view.marginals.empty()) {
    text += fmt::format("\n{}{}\n", text_columns(marginal_rows(view)), about_marginals(view));
  }
  for (const auto& [question, regimes] : view.what_ifs) {
    text += fmt::format("\nwhat if {}:\n", question.text) + text_columns(regime_rows(view, regimes));
  }
  if (!view.methods.empty()) text += fmt::format("\n{}", text_columns(method_rows(view)));
  return text;
}

namespace {

std::string headline_tiles(const FoundPlan& view) {
  const Evaluation& evaluation = view.evaluation;
  std::string tiles = tile("Throughput", format_figure(evaluation.throughput), "samples a second");
  if (view.problem.cost_model == CostModel::kPipeline) {
    tiles += tile("Step", format_seconds(evaluation.step_seconds),
                  view.uncertainty
                      ? fmt::format("{} to {}, as far as the measured times vary",
                                    format_seconds(view.uncertainty->low), format_seconds(view.uncertainty->high))
                      : fmt::format("of {} in {}", format_count(view.problem.batch, "sample"),
                                    format_count(view.plan.micro_batches, "micro-batch", "es")));
  }
  if (evaluation.hourly_cost > 0 && has_total(view)) {
    tiles += tile("Cost", format_figure(evaluation.cost),
                  fmt::format("for {} samples, {} an hour, in the currency of the cluster file",
                              format_figure(view.problem.total_samples), format_figure(evaluation.hourly_cost)));
  } else if (evaluation.hourly_cost > 0) {
    tiles += tile("Price", format_figure(evaluation.hourly_cost), "an hour, in the currency of the cluster file");
  }
  const auto bottleneck = static_cast<std::size_t>(evaluation.bottleneck);
  const StageCost& slowest = evaluation.stages[bottleneck];
  return tiles + tile("Bottleneck", fmt::format("Stage {}", bottleneck),
                      fmt::format("{} on {}, {} {}", describe_layers(view.plan, view.plan.stages[bottleneck]),
                                  describe_devices(view.plan.stages[bottleneck]),
                                  format_seconds(std::max(slowest.compute_seconds, slowest.communication_seconds)),
                                  view.problem.cost_model == CostModel::kPipeline ? "a micro-batch" : "a sample"));
}

// What the plan was chosen over, and how sure it is.
std::string choice_card(const FoundPlan& view) {
  const std::string bottleneck = planning::describe_bottleneck(view.problem, view.plan, view.evaluation);
  return card("Why this plan", escape(as_sentence(bottleneck) + " " + as_sentence(describe_uncertainty(view))),
              view.alternatives.empty() ? "<p class=\"hint\">" + escape(as_sentence(no_alternatives(view))) + "</p>"
                                        : text_table(alternative_rows(view)),
              true);
}

}  // namespace

std::string plan_page(const FoundPlan& view) {
  const Problem& problem = view.problem;
  Page page{.title = "Plan for " + problem.model,
            .badge = certificate(view),
            .badge_tone = view.answer.proved && !view.is_mixed ? Tone::kGood : Tone::kPlain,
            .facts = {describe(view.objective), format_count(problem.layer_count(), "layer"),
                      "method: " + view.plan.method, fmt::format("cost model: {}", to_string(problem.cost_model))}};
  if (view.measuring) {
    page.notices_html =
        notice("Measured", escape(measured_line(view)) +
                               ". The plan was chosen by that; all else on this page is the cost model's.");
  }
  page.tiles_html = headline_tiles(view);
  page.cards_html =
      choice_card(view) +
      card("The pipeline", "Bars are to one scale: the longest is what the pipeline waits for.", drawing(view), true) +
      predicted_step(view) + card("Stages", "", text_table(stage_rows(view), {3, 4, 5, 6, 7, 8}), true);
  if (!view.marginals.empty()) {
    page.cards_html += card("One device more, one fewer", escape(about_marginals(view)),
                            text_table(marginal_rows(view), {1, 2}), true);
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
