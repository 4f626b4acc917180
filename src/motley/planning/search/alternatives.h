// What a plan was chosen over: other assignments of layers, other counts and other numbers of micro-batches that come
// near it, with why they lost; and how likely it is that one of them is better, as the measured times are not exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

struct Alternative {
  Plan plan;
  Candidate candidate = {};  // the plan in numbers, where each of its stages has one type
  Evaluation evaluation;
  double worse = 0;    // its value over that of the plan, less 1
  std::string reason;  // why it lost, in a sentence
};

// A candidate for the problem, but in so many micro-batches.
struct Rival {
  std::int64_t micro_batches = 1;
  Candidate candidate;
};

inline constexpr double kNear = 0.05;  // of the plan's value

// Those whose value is within kNear, the best first and a few at most: of the plan's neighbours, where a border between
// stages, a device type or a count is another or two stages are one, and of `rivals`. Of those that have the same
// layers on the same types only the best is told. `best` is the plan of the evaluation, with stages of one type each.
std::vector<Alternative> find_alternatives(const Problem& problem, const Objective& objective, const Candidate& best,
                                           const Evaluation& evaluation, const std::vector<Rival>& rivals);

// Of two evaluations of plans of one problem, in these numbers of micro-batches, why the first lost: "a micro-batch
// every 3.1 ms, 16 of them; the plan: every 2.9 ms, 16 of them".
std::string explain_loss(const Problem& problem, const Objective& objective, const Plan& lost, const Evaluation& its,
                         const Plan& plan, const Evaluation& evaluation);

// A step's time, by drawing the times of layers and devices anew as far as their measurements vary.
struct Uncertainty {
  double low = 0, high = 0;    // seconds of a step: 9 of 10 draws are between these
  std::vector<double> better;  // of each alternative, the fraction of draws in which it is better than the plan
};
// Nothing where nothing is known of how the times vary. Of kPipeline and kHeterps; deterministic.
std::optional<Uncertainty> find_uncertainty(const Problem& problem, const Objective& objective, const Plan& plan,
                                            const std::vector<Alternative>& alternatives);

}  // namespace motley::planning
