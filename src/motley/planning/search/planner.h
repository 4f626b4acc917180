// The interface of all planning methods: from a problem and an objective to the best candidate that the method finds,
// with a bound where it can prove one. Methods are deterministic for a seed, as long as neither time limit nor stop
// ends them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

struct Progress {
  std::int64_t evaluations = 0;
  double best = kInfinity;  // planning::value of the best candidate so far
  double bound = 0;         // proved so far; 0: none
  double seconds = 0;
};

struct Request {
  const Problem& problem;  // valid (planning::validate)
  Objective objective;
  std::uint64_t seed = 0;
  double seconds = 60;  // time limit; the best so far is returned
  Clock& clock = SteadyClock::instance();
  std::stop_token stop = {};
  std::function<void(const Progress&)> progress = {};  // may be empty; called a few times a second at most
  // The reward of a candidate, where it is not the cost model (a simulator, measured steps); empty: planning::evaluate.
  std::function<Evaluation(const Candidate&)> evaluator = {};
  // How many calls of the evaluator are worth their time, at most, one after the other (measured steps); 0: any number,
  // and methods that say so call it from several threads at once.
  std::int64_t max_evaluations = 0;
};

struct Answer {
  std::optional<Candidate> best;  // feasible
  Evaluation evaluation;          // of best
  double bound = 0;               // no candidate has a value below it (planning::value); 0: nothing proved
  bool proved = false;            // best is optimal, or there is no feasible candidate
  bool stopped = false;           // by the time limit or the stop token
  std::int64_t evaluations = 0;
  double seconds = 0;
  std::int64_t micro_batches = 0;  // of best, where more than the request's were tried; 0: the request's

  // (value - bound) / bound; 0 where proved.
  double gap(Criterion criterion) const {
    if (proved) return 0;
    return best && bound > 0 ? (value(evaluation, criterion) - bound) / bound : kInfinity;
  }
};

// A planning method.
struct Planner {
  std::string name;
  // Errors: kInvalidInput where the method cannot take this problem (too many layers for brute force, and so on).
  std::function<Result<Answer>(const Request&)> plan;
};

// The methods of this folder.
Result<Answer> plan_brute_force(const Request& request);
Result<Answer> plan_cpu_only(const Request& request);
Result<Answer> plan_gpu_only(const Request& request);
Result<Answer> plan_heuristic(const Request& request);
Result<Answer> plan_greedy(const Request& request);
Result<Answer> plan_random(const Request& request);
Result<Answer> plan_genetic(const Request& request);
Result<Answer> plan_bayesian(const Request& request);
Result<Answer> plan_pipedream(const Request& request);

}  // namespace motley::planning
