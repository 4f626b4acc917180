#include "motley/planning/search/found_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "motley/base/units.h"

namespace motley::planning {
namespace {

constexpr int kProbes = 17;
constexpr double kBorderWidth = 1e-3;  // relative
constexpr double kMinWidth = 1e-6;     // of the range's upper end

struct Name {
  const char* text;
  Quantity quantity;
  bool may_be_zero;
};
constexpr Name kNames[] = {{"price", Quantity::kPrice, true},
                           {"count", Quantity::kCount, true},
                           {"memory", Quantity::kMemory, false},
                           {"speed", Quantity::kSpeed, false},
                           {"bandwidth", Quantity::kBandwidth, false}};

std::string accepted(const Problem& problem) {
  std::vector<std::string> names;
  for (const Type& type : problem.types) names.push_back(type.name);
  return fmt::format(
      "accepted: TYPE.QUANTITY=VALUE or =LOW..HIGH with TYPE one of {} and QUANTITY one of price, count, memory, "
      "speed, bandwidth; or throughput=VALUE",
      fmt::join(names, ", "));
}

bool read_number(std::string_view text, double& value) {
  const std::string copy(text);
  char* end = nullptr;
  value = std::strtod(copy.c_str(), &end);
  return !copy.empty() && *end == '\0' && std::isfinite(value);
}

// The answer with one quantity set.
Result<Answer> answer_at(const Planner& planner, const Request& request, const WhatIf& question, double value) {
  Problem problem = request.problem;
  Objective objective = request.objective;
  switch (question.quantity) {
    case Quantity::kPrice:
      problem.types[index(question.type)].price_per_hour = value;
      break;
    case Quantity::kCount:
      problem.types[index(question.type)].count = std::llround(value);
      break;
    case Quantity::kMemory:
      problem.types[index(question.type)].memory_bytes = value;
      break;
    case Quantity::kSpeed:
      for (int layer = 0; layer < problem.layer_count(); ++layer) {
        LayerOnType& entry = problem.table[problem.place(layer, question.type)];
        for (double* seconds : {&entry.forward.fixed, &entry.forward.per_sample, &entry.backward.fixed,
                                &entry.backward.per_sample, &entry.update_seconds}) {
          *seconds /= value;
        }
      }
      break;
    case Quantity::kBandwidth:
      problem.types[index(question.type)].bytes_per_second *= value;
      for (int other = 0; other < problem.type_count(); ++other) {
        problem.links[problem.place(question.type, other)].bytes_per_second *= value;
        if (other != question.type) problem.links[problem.place(other, question.type)].bytes_per_second *= value;
      }
      break;
    case Quantity::kMinThroughput:
      objective.min_throughput = value;
      break;
  }
  return planner.plan({.problem = problem,
                       .objective = objective,
                       .seed = request.seed,
                       .seconds = request.seconds,
                       .clock = request.clock,
                       .stop = request.stop});
}

}  // namespace

Result<std::vector<Marginal>> marginals(const Planner& planner, const Request& request) {
  std::vector<Marginal> all;
  Request part = request;
  part.seconds = request.seconds / (2 * request.problem.type_count());
  for (int type = 0; type < request.problem.type_count(); ++type) {
    const double count = static_cast<double>(request.problem.type(type).count);
    const WhatIf question{.quantity = Quantity::kCount, .type = type, .low = count, .high = count, .text = ""};
    Marginal marginal{.type = type, .one_more = {}, .one_fewer = {}};
    MOTLEY_ASSIGN(marginal.one_more, answer_at(planner, part, question, count + 1));
    MOTLEY_ASSIGN(marginal.one_fewer, answer_at(planner, part, question, std::max(0.0, count - 1)));
    all.push_back(std::move(marginal));
  }
  return all;
}

Result<WhatIf> parse_what_if(std::string_view text, const Problem& problem) {
  const auto refused = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, "--what-if {}: {}; {}", text, what, accepted(problem));
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return refused("no value is given");
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);

  WhatIf question;
  question.text = text;
  bool may_be_zero = true;
  if (name == "throughput") {
    question.quantity = Quantity::kMinThroughput;
  } else {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return refused("the quantity is missing");
    const auto type = std::ranges::find(problem.types, name.substr(0, dot), &Type::name);
    if (type == problem.types.end()) return refused(fmt::format("there is no device type '{}'", name.substr(0, dot)));
    question.type = static_cast<int>(type - problem.types.begin());
    const auto* const found =
        std::ranges::find_if(kNames, [&](const Name& known) { return name.substr(dot + 1) == known.text; });
    if (found == std::end(kNames)) return refused(fmt::format("there is no quantity '{}'", name.substr(dot + 1)));
    question.quantity = found->quantity;
    may_be_zero = found->may_be_zero;
  }

  const std::size_t dots = value.find("..");
  const bool range = dots != std::string_view::npos;
  if (!read_number(value.substr(0, dots), question.low) ||
      !read_number(range ? value.substr(dots + 2) : value, question.high)) {
    return refused(fmt::format("'{}' is no number", value));
  }
  if (question.low < 0 || (question.low == 0 && !may_be_zero)) return refused("the value must be above 0");
  if (range && question.low >= question.high) return refused("the range is empty");
  if (question.quantity == Quantity::kCount &&
      (question.low != std::floor(question.low) || question.high != std::floor(question.high))) {
    return refused("a count is an integer");
  }
  return question;
}

Result<std::vector<Regime>> what_if(const Planner& planner, const Request& request, const WhatIf& question) {
  std::vector<Regime> regimes;
  MOTLEY_ASSIGN(Answer first, answer_at(planner, request, question, question.low));
  regimes.push_back({question.low, std::move(first)});
  if (question.low == question.high) return regimes;

  const bool whole = question.quantity == Quantity::kCount;
  double below = question.low;
  for (int probe = 1; probe < kProbes; ++probe) {
    const double part = static_cast<double>(probe) / (kProbes - 1);
    double value = question.low > 0 ? question.low * std::pow(question.high / question.low, part)
                                    : question.low + (question.high - question.low) * part;
    if (probe == kProbes - 1) value = question.high;
    if (whole) value = std::round(value);
    if (value <= below) continue;
    if (request.stop.stop_requested()) break;
    MOTLEY_ASSIGN(Answer answer, answer_at(planner, request, question, value));
    // Every border between the two probes, from the left: the least value at which the plan is no longer the last one.
    while (answer.best != regimes.back().answer.best) {
      double left = below;
      double right = value;
      Answer at_right = answer;
      while (whole ? right - left > 1 : right - left > std::max(kBorderWidth * right, kMinWidth * question.high)) {
        const double middle = whole ? std::floor((left + right) / 2) : (left + right) / 2;
        MOTLEY_ASSIGN(Answer at_middle, answer_at(planner, request, question, middle));
        if (at_middle.best == regimes.back().answer.best) {
          left = middle;
        } else {
          right = middle;
          at_right = std::move(at_middle);
        }
      }
      regimes.push_back({right, std::move(at_right)});
      below = right;
    }
    below = value;
  }
  return regimes;
}

std::string format_figure(double value) {
  if (!std::isfinite(value)) return "–";
  return std::abs(value) < 1000 ? fmt::format("{:.3g}", value) : format_number(value);
}

int heaviest_layer(const Problem& problem, const StageChoice& stage) {
  int heaviest = stage.first;
  double most = -1;
  for (int layer = stage.first; layer <= stage.last; ++layer) {
    const LayerOnType& times = problem.at(layer, stage.type);
    const double seconds = times.forward.at(problem.profile_batch) + times.backward.at(problem.profile_batch);
    if (seconds > most) {
      most = seconds;
      heaviest = layer;
    }
  }
  return heaviest;
}

std::string explain_impossible(const Problem& problem, const Objective& objective, const Answer& most,
                               const Answer& least) {
  if (!most.best) {
    return fmt::format(
        "no plan for {} fits the devices, even without limits; accepted: more devices, or devices "
        "with more memory",
        problem.model);
  }
  const Evaluation& best = most.evaluation;
  if (objective.min_throughput > best.throughput) {
    std::vector<std::string> used;
    for (int type = 0; type < problem.type_count(); ++type) {
      const std::int64_t count = best.used[index(type)];
      const Type& of = problem.type(type);
      if (count > 0) used.push_back(fmt::format("{}{} {}", count == of.count ? "all " : "", count, of.name));
    }
    const StageChoice& stage = (*most.best)[index(best.bottleneck)];
    const std::string layer = problem.layer(heaviest_layer(problem, stage)).name;
    return fmt::format("no plan reaches {} samples/s: the best {} {} with {}{}; layer {} is the bottleneck",
                       format_figure(objective.min_throughput), most.proved ? "is" : "found is",
                       format_figure(best.throughput), fmt::join(used, " and "),
                       most.proved ? "" : ", and none is above " + format_figure(1 / most.bound), layer);
  }
  std::string text = fmt::format(
      "no plan has {}; without these limits, the most is {} samples/s at {} an hour, {} in all", describe(objective),
      format_figure(best.throughput), format_figure(best.hourly_cost), format_figure(best.cost));
  if (least.best) {
    const Evaluation& cheap = least.evaluation;
    text += fmt::format(", and the lowest cost {} at {} samples/s and {} an hour", format_figure(cheap.cost),
                        format_figure(cheap.throughput), format_figure(cheap.hourly_cost));
  }
  return text;
}

}  // namespace motley::planning
