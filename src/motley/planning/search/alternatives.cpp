#include "motley/planning/search/alternatives.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/random.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/planning/cost/provisioning.h"
#include "motley/planning/search/found_plan.h"
#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr std::size_t kMaxAlternatives = 5;
constexpr int kDraws = 200;
constexpr double kInterval = 0.9;  // of the draws
constexpr std::uint64_t kSeed = 1;

// Neighbours under kHeterps differ in type, as a stage is a longest run of one.
bool is_valid(const Problem& problem, const Candidate& candidate) {
  std::vector<std::int64_t> used(problem.types.size());
  for (std::size_t s = 0; s < candidate.size(); ++s) {
    const StageChoice& stage = candidate[s];
    if (stage.replicas < 1 || stage.replicas > problem.max_replicas(stage.type)) return false;
    used[index(stage.type)] += stage.replicas;
    if (used[index(stage.type)] > problem.type(stage.type).count) return false;
    if (problem.cost_model == CostModel::kHeterps && s > 0 && candidate[s - 1].type == stage.type) return false;
  }
  return true;
}

// The same layers on the same types, with the best counts that are found for them.
std::optional<Candidate> with_best_counts(const Problem& problem, const Objective& objective, const Candidate& like) {
  std::vector<Span> spans;
  for (const StageChoice& stage : like) spans.push_back({stage.first, stage.last, stage.type});
  for (std::size_t s = 1; problem.cost_model == CostModel::kHeterps && s < spans.size(); ++s) {
    if (spans[s - 1].type == spans[s].type) return std::nullopt;
  }
  return provision(problem, spans, objective, kBriefly);
}

// Of the plan: with a device more or fewer in a stage.
std::vector<Candidate> other_counts(const Candidate& best) {
  std::vector<Candidate> all;
  for (std::size_t s = 0; s < best.size(); ++s) {
    for (const int more : {-1, 1}) {
      all.push_back(best);
      all.back()[s].replicas += more;
    }
  }
  return all;
}

// With a border of its stages moved by a layer or two, two stages made one, a stage cut in two, or on another type.
std::vector<Candidate> other_assignments(const Problem& problem, const Candidate& best) {
  std::vector<Candidate> all;
  const auto add = [&](auto change) {
    Candidate other = best;
    change(other);
    all.push_back(std::move(other));
  };
  for (std::size_t s = 0; s < best.size(); ++s) {
    for (int type = 0; type < problem.type_count(); ++type) {
      if (type != best[s].type) add([&](Candidate& other) { other[s].type = type; });
    }
    if (best[s].last > best[s].first) {
      const int middle = (best[s].first + best[s].last) / 2;
      add([&](Candidate& other) {
        StageChoice rest = other[s];
        rest.first = middle + 1;
        other[s].last = middle;
        other.insert(other.begin() + static_cast<std::ptrdiff_t>(s) + 1, rest);
      });
    }
    if (s + 1 == best.size()) break;
    for (const int by : {-2, -1, 1, 2}) {
      if (best[s].last + by < best[s].first || best[s].last + by >= best[s + 1].last) continue;
      add([&](Candidate& other) {
        other[s].last += by;
        other[s + 1].first += by;
      });
    }
    for (const std::size_t keeps : {s, s + 1}) {
      add([&](Candidate& other) {
        other[s].type = best[keeps].type;
        other[s].last = best[s + 1].last;
        other.erase(other.begin() + static_cast<std::ptrdiff_t>(s) + 1);
      });
    }
  }
  return all;
}

// Which layers are on which types, without counts.
std::vector<std::pair<int, int>> assignment(const Candidate& candidate) {
  std::vector<std::pair<int, int>> borders;
  for (const StageChoice& stage : candidate) borders.emplace_back(stage.last, stage.type);
  return borders;
}

// Times drawn anew: what those of a device have in common, and what each layer has for itself.
Problem draw_times(const Problem& problem, Random& random) {
  Problem drawn = problem;
  for (int type = 0; type < problem.type_count(); ++type) {
    const double common = std::exp(problem.type(type).noise * random.normal());
    drawn.types[index(type)].step_seconds *= common;
    for (int layer = 0; layer < problem.layer_count(); ++layer) {
      LayerOnType& times = drawn.table[problem.place(layer, type)];
      const double factor = common * std::exp(times.noise * random.normal());
      for (Affine* part : {&times.forward, &times.backward, &times.overhead}) {
        part->fixed *= factor;
        part->per_sample *= factor;
      }
      times.update_seconds *= factor;
    }
  }
  return drawn;
}

}  // namespace

std::vector<Alternative> find_alternatives(const Problem& problem, const Objective& objective, const Candidate& best,
                                           const Evaluation& evaluation, const std::vector<Rival>& rivals) {
  const Plan plan = to_plan(problem, best, evaluation, objective, "");
  const double least = value(evaluation, objective.criterion);
  std::map<std::vector<std::pair<int, int>>, Alternative> found;
  const auto consider = [&](const Candidate& candidate, std::int64_t micro_batches) {
    Problem its_problem = problem;
    its_problem.micro_batches = micro_batches;
    if (!is_valid(its_problem, candidate) || (candidate == best && micro_batches == problem.micro_batches)) return;
    Evaluation its = evaluate(its_problem, candidate, objective);
    const double worse = value(its, objective.criterion) / least - 1;
    if (!its.feasible || !(worse <= kNear)) return;  // of plans that cost nothing none is near
    const auto known = found.find(assignment(candidate));
    if (known != found.end() && known->second.worse <= worse) return;
    Alternative one{.plan = to_plan(its_problem, candidate, its, objective, ""),
                    .candidate = candidate,
                    .evaluation = std::move(its),
                    .worse = worse,
                    .reason = ""};
    one.reason = explain_loss(problem, objective, one.plan, one.evaluation, plan, evaluation);
    found.insert_or_assign(assignment(candidate), std::move(one));
  };
  for (const Rival& rival : rivals) consider(rival.candidate, rival.micro_batches);
  for (const Candidate& other : other_counts(best)) consider(other, problem.micro_batches);
  for (const Candidate& like : other_assignments(problem, best)) {
    if (const auto other = with_best_counts(problem, objective, like)) consider(*other, problem.micro_batches);
  }
  std::vector<Alternative> all;
  for (auto& [key, alternative] : found) all.push_back(std::move(alternative));
  std::ranges::stable_sort(all, {}, &Alternative::worse);
  if (all.size() > kMaxAlternatives) all.resize(kMaxAlternatives);
  return all;
}

std::string explain_loss(const Problem& problem, const Objective& objective, const Plan& lost, const Evaluation& its,
                         const Plan& plan, const Evaluation& evaluation) {
  const auto rate = [](const Evaluation& one) { return format_figure(one.throughput) + " samples/s"; };
  const bool is_same_rate = rate(its) == rate(evaluation);
  const double worse = value(its, objective.criterion) / value(evaluation, objective.criterion) - 1;
  if (is_same_rate && std::abs(worse) < 0.0005) {  // of which a percentage with one digit shows nothing
    return "as good to all digits shown: either could be taken";
  }
  if (objective.criterion == Criterion::kMinCost && its.throughput >= evaluation.throughput) {
    return is_same_rate ? fmt::format("it is as fast, and its devices cost {} more an hour",
                                      format_percent(its.hourly_cost / evaluation.hourly_cost - 1, 1))
                        : fmt::format("its devices cost {} an hour for {}, those of the plan {} for {}",
                                      format_figure(its.hourly_cost), rate(its), format_figure(evaluation.hourly_cost),
                                      rate(evaluation));
  }
  if (objective.criterion == Criterion::kMinCost && its.hourly_cost < evaluation.hourly_cost) {
    return fmt::format("it is cheaper by the hour ({} instead of {}), and takes longer: {} instead of {}",
                       format_figure(its.hourly_cost), format_figure(evaluation.hourly_cost), rate(its),
                       rate(evaluation));
  }
  if (problem.cost_model == CostModel::kHeterps) {
    return fmt::format("its slowest stage takes {} a sample, that of the plan {}", format_seconds(1 / its.throughput),
                       format_seconds(1 / evaluation.throughput));
  }
  struct Parts {
    PipelineTime time;
    std::int64_t micro_batches;
    double followed() const { return static_cast<double>(micro_batches - 1) * time.interval; }
    double closing() const { return time.step - time.fill - followed(); }
  };
  const auto take_apart = [&](const Plan& one, const Evaluation& seen) {
    Problem its_problem = problem;
    its_problem.micro_batches = one.micro_batches;
    return Parts{pipeline_time(its_problem, seen.stages), one.micro_batches};
  };
  const Parts a = take_apart(lost, its), b = take_apart(plan, evaluation);
  const double filling = a.time.fill - b.time.fill, following = a.followed() - b.followed(),
               closing = a.closing() - b.closing();
  if (filling >= following && filling >= closing) {
    return fmt::format("a micro-batch's way there and back takes {}, in the plan {}", format_seconds(a.time.fill),
                       format_seconds(b.time.fill));
  }
  if (following >= closing) {
    const auto describe = [](const Parts& one) {
      return one.micro_batches == 1
                 ? "its one micro-batch has nothing to follow"
                 : fmt::format("{} follow each other every {}", format_count(one.micro_batches, "micro-batch", "es"),
                               format_seconds(one.time.interval));
    };
    return fmt::format("{}; in the plan {}", describe(a), describe(b));
  }
  return fmt::format("gradient synchronisation and the optimizer take {} after the last micro-batch, in the plan {}",
                     format_seconds(std::max(0.0, a.closing())), format_seconds(std::max(0.0, b.closing())));
}

std::optional<Uncertainty> find_uncertainty(const Problem& problem, const Objective& objective, const Plan& plan,
                                            const std::vector<Alternative>& alternatives) {
  const auto varies = [](const auto& one) { return one.noise > 0; };
  if (std::ranges::none_of(problem.types, varies) && std::ranges::none_of(problem.table, varies)) return std::nullopt;
  // Limits are those of the plan that was asked for; which of two is better by the same draw needs none.
  const Objective unlimited{.criterion = objective.criterion};
  const Result<Evaluation> usual = evaluate_plan(problem, plan, unlimited);
  if (!usual) return std::nullopt;
  Random random(kSeed);
  std::vector<double> steps;
  Uncertainty answer{.better = std::vector<double>(alternatives.size())};
  for (int i = 0; i < kDraws; ++i) {
    const Problem drawn = draw_times(problem, random);
    const Evaluation own = *evaluate_plan(drawn, plan, unlimited);
    // Replayed steps are not exactly those of the formula, by which draws are compared.
    steps.push_back(plan.predicted.step_seconds * own.step_seconds / usual->step_seconds);
    for (std::size_t other = 0; other < alternatives.size(); ++other) {
      const Result<Evaluation> its = evaluate_plan(drawn, alternatives[other].plan, unlimited);
      const bool is_better =
          its && value(*its, objective.criterion) < value(own, objective.criterion) * (1 - kTolerance);
      answer.better[other] += is_better ? 1.0 / kDraws : 0;
    }
  }
  answer.low = percentile(steps, (1 - kInterval) / 2);
  answer.high = percentile(steps, (1 + kInterval) / 2);
  return answer;
}

}  // namespace motley::planning
