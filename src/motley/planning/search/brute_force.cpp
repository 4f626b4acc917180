// The planner "brute-force": evaluates every candidate that the counts allow, and nothing else, so that it can be
// believed where other methods are checked against it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::planning {
namespace {

constexpr std::int64_t kMostCandidates = 50'000'000;

class Enumeration {
 public:
  explicit Enumeration(const planning::Problem& problem) : problem_(problem) {
    for (const planning::Type& type : problem.types) {
      left_.push_back(type.count);
    }
  }

  // Appends every possible stage that begins at `first`, and goes on behind it; visit(candidate) returns false to end
  // the enumeration, and so does this.
  template <class Visit>
  bool visit_from(int first, const Visit& visit) {
    if (first == problem_.layer_count()) {
      return visit(candidate_);
    }
    const bool pipeline = problem_.cost_model == planning::CostModel::kPipeline;
    for (int type = 0; type < problem_.type_count(); ++type) {
      if (!pipeline && !candidate_.empty() && candidate_.back().type == type) {
        continue;
      }
      std::int64_t& left = left_[static_cast<std::size_t>(type)];
      const std::int64_t most = left;
      for (std::int64_t replicas = 1; replicas <= most; ++replicas) {
        for (int last = first; last < problem_.layer_count(); ++last) {
          for (int recompute = 0; recompute <= (pipeline && problem_.allow_recompute ? 1 : 0); ++recompute) {
            left = most - replicas;
            candidate_.push_back({first, last, type, replicas, recompute == 1});
            const bool go_on = visit_from(last + 1, visit);
            candidate_.pop_back();
            left = most;
            if (!go_on) {
              return false;
            }
          }
        }
      }
    }
    return true;
  }

 private:
  const planning::Problem& problem_;
  std::vector<std::int64_t> left_;  // devices of every type
  planning::Candidate candidate_;
};

class BruteForce final : public Planner {
 public:
  std::string name() const override { return "brute-force"; }

  Result<Answer> plan(const Request& request) const override {
    std::int64_t candidates = 0;
    if (!Enumeration(request.problem).visit_from(0, [&](const planning::Candidate&) {
          return ++candidates <= kMostCandidates;
        })) {
      return fail(ErrorCode::kInvalidInput,
                  "brute-force: {} layers on {} device types have more than {} candidates; accepted: no more than that",
                  request.problem.layer_count(), request.problem.type_count(), kMostCandidates);
    }
    Search search(request);
    const bool all = Enumeration(request.problem).visit_from(0, [&](const planning::Candidate& candidate) {
      search.consider(candidate);
      return !search.over();
    });
    Answer answer = search.answer();
    answer.proved = all;
    answer.bound = all && answer.best ? planning::value(answer.evaluation, request.objective.goal) : 0;
    return answer;
  }
};

}  // namespace

std::unique_ptr<Planner> make_brute_force() {
  return std::make_unique<BruteForce>();
}

}  // namespace motley::planning
