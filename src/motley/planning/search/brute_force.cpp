// The planner "brute-force": evaluates every candidate that the counts allow, and nothing else, so that it can be
// believed where other methods are checked against it.
#include <algorithm>

#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

constexpr std::int64_t kMaxCandidates = 50'000'000;

// Every candidate, one after the other; visit(candidate) returns false to end the enumeration, and so does this.
bool visit_all(const Problem& problem, const std::function<bool(const Candidate&)>& visit) {
  const bool pipeline = problem.cost_model == CostModel::kPipeline;
  const int choices_of_recompute = pipeline && problem.allow_recompute ? 2 : 1;
  std::vector<std::int64_t> left;  // devices of every type
  for (const Type& type : problem.types) left.push_back(type.count);
  Candidate candidate;
  // Appends every possible stage that begins at `first`, and goes on behind it.
  const std::function<bool(int)> visit_from = [&](int first) {
    if (first == problem.layer_count()) return visit(candidate);
    for (int type = 0; type < problem.type_count(); ++type) {
      if (!pipeline && !candidate.empty() && candidate.back().type == type) continue;
      const std::int64_t most = left[index(type)];
      for (std::int64_t replicas = 1; replicas <= most; ++replicas) {
        for (int last = first; last < problem.layer_count(); ++last) {
          for (int recompute = 0; recompute < choices_of_recompute; ++recompute) {
            left[index(type)] = most - replicas;
            candidate.push_back({first, last, type, replicas, recompute == 1});
            const bool go_on = visit_from(last + 1);
            candidate.pop_back();
            left[index(type)] = most;
            if (!go_on) return false;
          }
        }
      }
    }
    return true;
  };
  return visit_from(0);
}

}  // namespace

Result<Answer> plan_brute_force(const Request& request) {
  std::int64_t candidates = 0;
  if (!visit_all(request.problem, [&](const Candidate&) { return ++candidates <= kMaxCandidates; })) {
    return fail(ErrorCode::kInvalidInput,
                "brute-force: {} layers on {} device types have more than {} candidates; accepted: no more than that",
                request.problem.layer_count(), request.problem.type_count(), kMaxCandidates);
  }
  Search search(request);
  const bool all = visit_all(request.problem, [&](const Candidate& candidate) {
    search.consider(candidate);
    return !search.over();
  });
  Answer answer = search.answer();
  answer.proved = all;
  answer.bound = all && answer.best ? value(answer.evaluation, request.objective.criterion) : 0;
  return answer;
}

}  // namespace motley::planning
