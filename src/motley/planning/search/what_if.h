// How an answer hangs on its question: what one device more or fewer of each type would change, and at which price,
// count or speed another plan becomes the best.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::planning {

// The best plans with one device more and one fewer of a type.
struct Marginal {
  int type = 0;
  Answer one_more;
  Answer one_fewer;  // of a type that has none: the same as now
};
// One for each type, of which a planner is asked twice: a request's time limit is shared out among all. Errors: those
// of the planner.
Result<std::vector<Marginal>> marginals(const Planner& planner, const Request& request);

enum class Quantity {
  kPrice,      // TYPE.price: per hour
  kCount,      // TYPE.count
  kMemory,     // TYPE.memory: bytes of one device
  kSpeed,      // TYPE.speed: as many times as fast as in the profile
  kBandwidth,  // TYPE.bandwidth: as many times the exchange bandwidth and that of its links
  kFloor,      // throughput: the objective's floor, samples a second
};

// "gpu.price=1.2", or a range "gpu.price=0.5..3" (low < high).
struct WhatIf {
  Quantity quantity = Quantity::kPrice;
  int type = -1;  // -1 for kFloor
  double low = 0;
  double high = 0;
  std::string text;  // as given
};
// Errors (kInvalidInput): an unknown type or quantity, a value that is no number or impossible, with what is accepted.
Result<WhatIf> parse_what_if(std::string_view text, const planning::Problem& problem);

// The best plan from `from` on, up to the next regime.
struct Regime {
  double from = 0;
  Answer answer;
};
// One value: a single regime. A range: every regime that is found on 17 values over it (a geometric series where low >
// 0), its border narrowed to 0.1 % (or a millionth of the range) by bisection. Plans count as the same when their
// stages and counts are. Counts are whole.
Result<std::vector<Regime>> what_if(const Planner& planner, const Request& request, const WhatIf& question);

}  // namespace motley::planning
