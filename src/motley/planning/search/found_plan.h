// What the search for a plan has found: the plan, what other methods answered, and how the answer hangs on its
// question: what one device more or fewer of each type would change, and at which price, count or speed another plan
// becomes the best; or why there is no plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/planning/cost/evaluation.h"
#include "motley/planning/search/alternatives.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {

// What would be with another device of a type that a plan uses, or without one of them.
struct Marginal {
  struct Change {
    std::optional<Evaluation> best;  // of the best plan then; none: there is none
    bool is_proved = false;          // no plan is better, or there is none
  };
  int type = 0;
  std::int64_t used = 0;  // by the plan
  // One more than it uses: where the plan leaves none aside, the best plan with one more to use; else the best of those
  // that are like the plan and use one more.
  Change one_more;
  Change one_fewer;  // of the plans that use fewer than this one
};
// One for each type that the best candidate uses, of which a planner is asked up to twice: a request's time limit is
// shared out among all, and the types for which no time is left have none. Errors: those of the planner.
Result<std::vector<Marginal>> marginals(const Planner& planner, const Request& request, const Candidate& best);

enum class Quantity {
  kPrice,          // TYPE.price: per hour
  kCount,          // TYPE.count
  kMemory,         // TYPE.memory: bytes of one device
  kSpeed,          // TYPE.speed: as many times as fast as in the profile
  kBandwidth,      // TYPE.bandwidth: as many times the exchange bandwidth and that of its links
  kMinThroughput,  // throughput: the objective's minimum throughput, samples a second
};

// "gpu.price=1.2", or a range "gpu.price=0.5..3" (low < high).
struct WhatIf {
  Quantity quantity = Quantity::kPrice;
  int type = -1;  // -1 for kMinThroughput
  double low = 0;
  double high = 0;
  std::string text;  // as given
};
// Errors (kInvalidInput): an unknown type or quantity, a value that is no number or impossible, with what is accepted.
Result<WhatIf> parse_what_if(std::string_view text, const Problem& problem);

// The best plan from `from` on, up to the next regime.
struct Regime {
  double from = 0;
  Answer answer;
};
// One value: a single regime. A range: every regime that is found on 17 values over it (a geometric series where low >
// 0), its border narrowed to 0.1 % (or a millionth of the range) by bisection. Plans count as the same when their
// stages, counts and micro-batches are. Counts are whole.
Result<std::vector<Regime>> what_if(const Planner& planner, const Request& request, const WhatIf& question);

// What one method answered. `refused` says why it has no answer at all (a problem that it cannot take).
struct MethodAnswer {
  std::string method;
  Answer answer;
  std::string refused;
};

// How the plan was chosen, where by steps of real runs.
struct Measuring {
  Measured best;           // of the plan
  std::int64_t plans = 0;  // that were run
  std::int64_t failed = 0;
};

// The plan with all that was asked beside it. Prices are in the currency of the cluster file.
struct FoundPlan {
  Problem problem;  // in the plan's number of micro-batches
  Objective objective;
  std::string method;
  Answer answer;          // of the method, with a best candidate; its evaluation is the cost model's
  Plan plan;              // that is written: the answer, or what it led to with stages that mix types
  Evaluation evaluation;  // of that plan
  bool is_mixed = false;  // the plan is not the answer, and its step was replayed
  // The search was stopped, and this is the best that it had found; what stands beside it was not looked for.
  bool is_interrupted = false;
  std::vector<Alternative> alternatives;
  std::optional<Uncertainty> uncertainty;
  std::optional<Measuring> measuring;
  std::vector<Marginal> marginals;
  std::vector<std::pair<WhatIf, std::vector<Regime>>> what_ifs;
  std::vector<MethodAnswer> methods;  // of a comparison; the answer's own method too
};

// A number in a text: to three digits, and an integer from 1000 on: "3.14", "14,210"; "–" where it is infinite.
std::string format_figure(double value);

// What the devices of a plan cost: "3.14 an hour"; where none of them has a price, that.
std::string describe_price(const Evaluation& evaluation);

// "best 14,210 samples/s, at most 3.1 % from the optimum"; what is not known yet is told so.
std::string describe(const Progress& progress, Criterion criterion);

// The layer of a run of layers that takes longest by itself on devices of a type, each of which gets so many samples.
int longest_layer(const Problem& problem, int first, int last, int type, double samples);

// Where the plan is slowest: "stage 1 is the bottleneck (it computes 3.2 ms a micro-batch); its longest layer is fc1,
// 1.9 ms for 64 samples on cpu".
std::string describe_bottleneck(const Problem& problem, const Plan& plan, const Evaluation& evaluation);

// "no plan reaches 20,000 samples/s: the best is 14,210 with all 8 gpu; layer fc2 is the bottleneck". `most` and
// `least` are the answers to highest throughput and to lowest cost on the same devices, without limits.
std::string explain_impossible(const Problem& problem, const Objective& objective, const Answer& most,
                               const Answer& least);

}  // namespace motley::planning
