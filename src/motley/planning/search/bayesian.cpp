// "bayesian": Bayesian optimisation. A Gaussian process over the strings of types (and cuts) is fitted to the logarithm
// of what was evaluated so far; of a pool of candidates, half drawn anew and half mutants of the best so far, the one
// of the greatest expected improvement is evaluated next.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "motley/planning/search/gaussian_process.h"
#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr std::size_t kEvaluations = 300;
constexpr std::size_t kFirst = 32;  // that are drawn before the process is asked; single types come first
constexpr std::size_t kPool = 128;
constexpr std::size_t kElite = 5;                          // whose mutants are in the pool
constexpr std::size_t kRefit = 10;                         // evaluations between choices of the kernel's length
constexpr double kNoise = 1e-6;                            // keeps the covariance well-conditioned
constexpr double kLeastValue = 1e-30;                      // what costs nothing counts as
constexpr double kInfeasibleCost = 10;                     // times the dearest feasible
constexpr double kLengths[] = {0.05, 0.1, 0.2, 0.4, 0.8};  // as shares of the string, to choose from

Codes to_codes(const Assignment& assignment) {
  Codes codes = assignment.type_of_layer;
  codes.insert(codes.end(), assignment.cut_before.begin(), assignment.cut_before.end());
  return codes;
}

// What the process learns: the logarithm of the value; of an infeasible assignment, that of a value well above all
// feasible ones, or, where none is feasible yet, of its fastest plan. Then shifted and scaled to the process's prior.
std::vector<double> targets(const std::vector<Score>& scores) {
  const bool any_feasible =
      std::any_of(scores.begin(), scores.end(), [](const Score& s) { return std::isfinite(s.value); });
  std::vector<double> values(scores.size());
  std::transform(scores.begin(), scores.end(), values.begin(),
                 [&](const Score& s) { return std::log(std::max(any_feasible ? s.value : s.fastest, kLeastValue)); });
  double worst = 0;
  bool found = false;
  for (const double value : values) {
    if (std::isfinite(value)) {
      worst = found ? std::max(worst, value) : value;
      found = true;
    }
  }
  std::replace_if(
      values.begin(), values.end(), [](double value) { return !std::isfinite(value); },
      worst + std::log(kInfeasibleCost));
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (double& value : values) {
    value -= mean;
    squares += value * value;
  }
  const double deviation = squares > 0 ? std::sqrt(squares / count) : 1;
  for (double& value : values) value /= deviation;
  return values;
}

// The length under which the values are likeliest.
double likeliest_length(const std::vector<Codes>& points, const std::vector<double>& values) {
  double best_length = 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const double share : kLengths) {
    const double length = share * static_cast<double>(points.front().size());
    if (const double likelihood = GaussianProcess(points, values, length, kNoise).log_likelihood();
        likelihood > best || best_length == 0) {
      best = likelihood;
      best_length = length;
    }
  }
  return best_length;
}

}  // namespace

Result<Answer> plan_bayesian(const Request& request) {
  const Problem& problem = request.problem;
  Random random(request.seed);
  Search search(request);
  std::vector<Assignment> seen;
  std::vector<Score> scores;
  std::vector<Codes> points;
  std::set<Codes> known;
  const auto look_at = [&](const Assignment& assignment) {
    Codes codes = to_codes(assignment);
    if (known.insert(codes).second) {
      scores.push_back(score(request, search, assignment));
      points.push_back(std::move(codes));
      seen.push_back(assignment);
    }
  };

  for (std::size_t i = 0; i < kFirst && !search.over(); ++i) {
    const bool single = i < std::min(problem.types.size(), kFirst * 3 / 4);
    look_at(single ? all_on(problem, static_cast<int>(i)) : draw(problem, random));
  }
  double length = 0;
  std::size_t fitted_at = 0;
  while (points.size() < kEvaluations && !search.over()) {
    const std::vector<double> values = targets(scores);
    if (length == 0 || points.size() >= fitted_at + kRefit) {
      length = likeliest_length(points, values);
      fitted_at = points.size();
    }
    const GaussianProcess process(points, values, length, kNoise);
    const double least = *std::min_element(values.begin(), values.end());
    std::vector<std::size_t> order(points.size());
    std::iota(order.begin(), order.end(), 0);
    const std::size_t elite = std::min(kElite, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(elite), order.end(),
                      [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });

    double most = -1;
    Assignment chosen;
    for (std::size_t i = 0; i < kPool; ++i) {
      Assignment candidate = i % 2 == 0 ? draw(problem, random) : seen[order[random.below(elite)]];
      if (i % 2 == 1) mutate(problem, random, candidate);
      const Codes codes = to_codes(candidate);
      if (known.contains(codes)) continue;
      if (const double improvement = expected_improvement(process.at(codes), least); improvement > most) {
        most = improvement;
        chosen = std::move(candidate);
      }
    }
    if (most < 0) {
      break;  // the whole pool is known: a small space, seen in full or nearly so
    }
    look_at(chosen);
  }
  return search.answer();
}

}  // namespace motley::planning
