// The interface of all planning methods: from a problem and an objective to the best candidate that the method finds,
// with a bound where it can prove one. Methods are deterministic for a seed, as long as neither time limit nor stop
// ends them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/planning/cost/evaluation.h"
#include "motley/planning/cost/provisioning.h"

namespace motley::planning {

struct Progress {
  std::int64_t evaluations = 0;
  double best = std::numeric_limits<double>::infinity();  // planning::value of the best candidate so far
  double bound = 0;                                       // proved so far; 0: none
  double seconds = 0;
};

struct Request {
  const planning::Problem& problem;  // valid (planning::validate)
  planning::Objective objective;
  std::uint64_t seed = 0;
  double seconds = 60;  // time limit; the best so far is returned
  Clock& clock = SteadyClock::instance();
  std::stop_token stop = {};
  std::function<void(const Progress&)> progress = {};  // may be empty; called a few times a second at most
  // The reward of a candidate, where it is not the cost model (a simulator, measured steps); empty: planning::evaluate.
  std::function<planning::Evaluation(const planning::Candidate&)> evaluator = {};
  // How many calls of the evaluator are worth their time, at most, one after the other (measured steps); 0: any number,
  // and methods that say so call it from several threads at once.
  std::int64_t most_evaluations = 0;
};

struct Answer {
  std::optional<planning::Candidate> best;  // feasible
  planning::Evaluation evaluation;          // of best
  double bound = 0;                         // no candidate has a value below it (planning::value); 0: nothing proved
  bool proved = false;                      // best is optimal, or there is no feasible candidate
  bool stopped = false;                     // by the time limit or the stop token
  std::int64_t evaluations = 0;
  double seconds = 0;

  // (value - bound) / bound; 0 where proved.
  double gap(planning::Goal goal) const;
};

class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::string name() const = 0;
  // Errors: kInvalidInput where the method cannot take this problem (too many layers for brute force, and so on).
  virtual Result<Answer> plan(const Request& request) const = 0;
};

// How searches that value thousands of assignments ask for counts.
inline constexpr planning::ProvisioningOptions kBriefly{.most_boxes = 100};

// Counts evaluations, keeps the best, watches the clock and the stop token: what every searching method needs.
class Search {
 public:
  explicit Search(const Request& request);
  // Provisions (kBriefly) and evaluates an assignment; the value, infinity where infeasible.
  double consider(const std::vector<int>& type_of_layer, const std::vector<bool>& cut_before = {});
  double consider(const planning::Candidate& candidate);
  double consider(const planning::Candidate& candidate, planning::Evaluation evaluation);  // evaluated already
  bool over();                                 // a limit is reached or a stop was asked for
  double best() const { return best_value_; }  // value of the best candidate; infinity while there is none
  Answer answer() const;

 private:
  const Request& request_;
  double start_;
  double last_progress_ = 0;
  double best_value_ = std::numeric_limits<double>::infinity();
  Answer answer_;
};

// One function a method of this folder.
std::unique_ptr<Planner> make_brute_force();
std::unique_ptr<Planner> make_cpu_only();
std::unique_ptr<Planner> make_gpu_only();
std::unique_ptr<Planner> make_heuristic();
std::unique_ptr<Planner> make_greedy();
std::unique_ptr<Planner> make_genetic();
std::unique_ptr<Planner> make_bayesian();
std::unique_ptr<Planner> make_pipedream();

}  // namespace motley::planning
