#include "motley/planning/search/found_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "motley/base/units.h"

namespace motley::planning {
namespace {

constexpr int kProbes = 17;
constexpr double kBorderWidth = 1e-3;    // relative
constexpr double kMinWidth = 1e-6;       // of the range's upper end
constexpr int kMostDevices = 1'000'000;  // of a type, as in cluster files

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

// Of the candidates that are like this one and have one more device of the type in one of their stages, the best.
std::optional<Evaluation> best_with_one_more(const Problem& problem, const Objective& objective, const Candidate& like,
                                             int type) {
  std::optional<Evaluation> best;
  for (std::size_t s = 0; s < like.size(); ++s) {
    if (like[s].type != type) continue;
    Candidate candidate = like;
    ++candidate[s].replicas;
    Evaluation evaluation = evaluate(problem, candidate, objective);
    if (!evaluation.feasible) continue;
    const bool is_better = !best || value(evaluation, objective.criterion) < value(*best, objective.criterion);
    if (is_better) best = std::move(evaluation);
  }
  return best;
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
        for (double* seconds :
             {&entry.forward.fixed, &entry.forward.per_sample, &entry.backward.fixed, &entry.backward.per_sample,
              &entry.overhead.fixed, &entry.overhead.per_sample, &entry.update_seconds}) {
          *seconds /= value;
        }
      }
      problem.types[index(question.type)].step_seconds /= value;
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
  MOTLEY_TRY(validate(problem));
  MOTLEY_TRY(validate(objective));
  return planner.plan({.problem = problem,
                       .objective = objective,
                       .seed = request.seed,
                       .seconds = request.seconds,
                       .clock = request.clock,
                       .stop = request.stop});
}

}  // namespace

Result<std::vector<Marginal>> marginals(const Planner& planner, const Request& request, const Candidate& best) {
  const Problem& problem = request.problem;
  std::vector<std::int64_t> used(problem.types.size());
  for (const StageChoice& stage : best) used[index(stage.type)] += stage.replicas;
  Request part = request;
  part.seconds = request.seconds / (2 * static_cast<double>(problem.type_count()));
  const double end = request.clock.now() + request.seconds;
  double longest = 0;  // of a type's two answers, so far
  std::vector<Marginal> all;
  for (int type = 0; type < problem.type_count(); ++type) {
    const std::int64_t own = used[index(type)];
    if (own == 0) continue;
    const double begin = request.clock.now();
    if (begin + longest >= end) break;
    Marginal marginal{.type = type, .used = own, .one_more = {}, .one_fewer = {}};
    const auto with_count = [&](std::int64_t count) -> Result<Marginal::Change> {
      const auto value = static_cast<double>(count);
      const WhatIf question{.quantity = Quantity::kCount, .type = type, .low = value, .high = value, .text = ""};
      MOTLEY_ASSIGN(const Answer answer, answer_at(planner, part, question, value));
      return Marginal::Change{answer.best ? std::optional(answer.evaluation) : std::nullopt, answer.proved};
    };
    MOTLEY_ASSIGN(marginal.one_fewer, with_count(own - 1));
    if (own == problem.type(type).count) {
      MOTLEY_ASSIGN(marginal.one_more, with_count(own + 1));
      // One more need not be used: what a short search did not find is there.
      const Criterion criterion = request.objective.criterion;
      const Evaluation same = evaluate(problem, best, request.objective);
      const auto& other = marginal.one_more.best;
      if (!other || value(*other, criterion) > value(same, criterion)) marginal.one_more = {same, false};
    } else {
      marginal.one_more = {best_with_one_more(problem, request.objective, best, type), true};
    }
    all.push_back(std::move(marginal));
    longest = std::max(longest, request.clock.now() - begin);
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
  if (question.quantity == Quantity::kCount && question.high > kMostDevices) {
    return refused(fmt::format("a count is at most {}", kMostDevices));
  }
  return question;
}

static bool is_same(const Answer& one, const Answer& other) {
  return one.best == other.best && one.micro_batches == other.micro_batches;
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
    while (!is_same(answer, regimes.back().answer)) {
      double left = below;
      double right = value;
      Answer at_right = answer;
      while (whole ? right - left > 1 : right - left > std::max(kBorderWidth * right, kMinWidth * question.high)) {
        const double middle = whole ? std::floor((left + right) / 2) : (left + right) / 2;
        MOTLEY_ASSIGN(Answer at_middle, answer_at(planner, request, question, middle));
        if (is_same(at_middle, regimes.back().answer)) {
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

std::string describe_price(const Evaluation& evaluation) {
  return evaluation.hourly_cost > 0 ? format_figure(evaluation.hourly_cost) + " an hour" : "no stated price";
}

std::string describe(const Progress& progress, Criterion criterion) {
  if (!std::isfinite(progress.best)) return "no plan yet";
  const std::string best = criterion == Criterion::kMinCost         ? "cost " + format_figure(progress.best)
                           : criterion == Criterion::kMaxThroughput ? format_figure(1 / progress.best) + " samples/s"
                                                                    : format_seconds(progress.best) + " a step";
  if (progress.bound <= 0) return fmt::format("best {}, no bound yet", best);
  return fmt::format("best {}, at most {} from the optimum", best,
                     format_percent(std::max(0.0, progress.best / progress.bound - 1), 1));
}

int longest_layer(const Problem& problem, int first, int last, int type, double samples) {
  int longest = first;
  for (int layer = first; layer <= last; ++layer) {
    if (problem.at(layer, type).own_seconds(samples) > problem.at(longest, type).own_seconds(samples)) longest = layer;
  }
  return longest;
}

namespace {

// Of a stage's devices one that takes longest, and the samples that it gets at a time.
struct SlowestDevice {
  int type = 0;
  double samples = 1;
};
SlowestDevice find_slowest(const Problem& problem, const Stage& stage) {
  const bool pipeline = problem.cost_model == CostModel::kPipeline;
  SlowestDevice slowest;
  double most = -1;
  for (const Replicas& replicas : stage.replicas) {
    const auto found = std::ranges::find(problem.types, replicas.type, &Type::name);
    const int type = static_cast<int>(found - problem.types.begin());
    const double samples = pipeline ? problem.micro_batch_samples() * replicas.share : problem.profile_batch;
    double seconds = 0;
    for (int layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      seconds += problem.at(layer, type).forward.at(samples) + problem.at(layer, type).backward.at(samples);
    }
    if (seconds > most) {
      most = seconds;
      slowest = {type, samples};
    }
  }
  return slowest;
}

}  // namespace

std::string describe_bottleneck(const Problem& problem, const Plan& plan, const Evaluation& evaluation) {
  const auto number = index(evaluation.bottleneck);
  const Stage& stage = plan.stages[number];
  const StageCost& took = evaluation.stages[number];
  const char* per = problem.cost_model == CostModel::kPipeline ? "a micro-batch" : "a sample";
  const auto [type, samples] = find_slowest(problem, stage);
  const int layer = longest_layer(problem, stage.first_layer, stage.last_layer, type, samples);
  double overhead = 0;
  for (int one = stage.first_layer; one <= stage.last_layer; ++one) {
    overhead += problem.at(one, type).overhead.at(samples);
  }
  const double own = problem.at(layer, type).own_seconds(samples);
  std::string text = fmt::format("stage {} is the bottleneck ", number);
  text += took.compute_seconds >= took.communication_seconds
              ? fmt::format("(it computes {} {})", format_seconds(took.compute_seconds), per)
              : fmt::format("(it communicates {} {}, and computes {})", format_seconds(took.communication_seconds), per,
                            format_seconds(took.compute_seconds));
  text += fmt::format("; its longest layer is {}, {} for {} on {}", problem.layer(layer).name, format_seconds(own),
                      samples == 1 ? "1 sample" : format_figure(samples) + " samples", problem.type(type).name);
  if (overhead > own) {
    text += fmt::format("; loss, loading and the framework take {} besides its layers", format_seconds(overhead));
  }
  return text;
}

std::string explain_impossible(const Problem& problem, const Objective& objective, const Answer& most,
                               const Answer& least) {
  if (!most.best && !most.proved) {
    return fmt::format("no plan meets {}; whether any fits the devices without limits was not found in time",
                       describe(objective));
  }
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
    const std::string layer =
        problem.layer(longest_layer(problem, stage.first, stage.last, stage.type, problem.profile_batch)).name;
    return fmt::format("no plan reaches {} samples/s: the best {} {} with {}{}; layer {} is the bottleneck",
                       format_figure(objective.min_throughput), most.proved ? "is" : "found is",
                       format_figure(best.throughput), fmt::join(used, " and "),
                       most.proved ? "" : ", and none is above " + format_figure(1 / most.bound), layer);
  }
  std::string text =
      fmt::format("no plan meets {}; without these limits, the most is {} samples/s at {}, {} in all",
                  describe(objective), format_figure(best.throughput), describe_price(best), format_figure(best.cost));
  if (least.best) {
    const Evaluation& cheap = least.evaluation;
    text += fmt::format(", and the lowest cost {} at {} samples/s and {}", format_figure(cheap.cost),
                        format_figure(cheap.throughput), describe_price(cheap));
  }
  return text;
}

}  // namespace motley::planning
