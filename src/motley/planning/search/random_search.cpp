// "random": draws plans and keeps the best, the control that every method that searches is to beat with as many
// evaluations. Plans are drawn as runs of layers of one type, whose mean length is itself drawn; none is valued twice.
#include <set>

#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr int kMostKnown = 1000;  // draws in a row that were known, after which there is hardly another

}  // namespace

Result<Answer> plan_random(const Request& request) {
  Random random(request.seed);
  Search search(request);
  std::set<Assignment> known;
  for (int repeated = 0; repeated < kMostKnown && !search.over();) {
    const auto [drawn, is_new] = known.insert(draw(request.problem, random));
    repeated = is_new ? 0 : repeated + 1;
    if (is_new) search.consider(drawn->type_of_layer, drawn->cut_before);
  }
  return search.answer();
}

}  // namespace motley::planning
