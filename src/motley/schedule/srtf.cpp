// Shortest remaining time first. What waits is kept in order, since only those that run come nearer to their ends.
#include <algorithm>
#include <set>

#include "motley/schedule/policies.h"
#include "motley/schedule/ranking.h"

namespace motley::schedule {
namespace {

class Srtf final : public Policy {
 public:
  explicit Srtf(const PolicyOptions& options) : ranking_(options.packing) {}

  std::string name() const override { return "srtf"; }

  Decision decide(const State& state) override {
    const auto remaining = [&](int job) {
      return std::pair(state.jobs[static_cast<std::size_t>(job)].duration - state.run_seconds(job), job);
    };
    for (const int job : state.arrived) waiting_.insert(remaining(job));
    running_.clear();
    for (const int job : state.running) running_.push_back(remaining(job));
    std::ranges::sort(running_);

    ranking_.begin(state);
    started_.clear();
    auto running = running_.begin();
    for (auto waiting = waiting_.begin(); !ranking_.is_full();) {
      if (running != running_.end() && (waiting == waiting_.end() || *running < *waiting)) {
        ranking_.offer((running++)->second);
      } else if (waiting != waiting_.end()) {
        if (ranking_.offer(waiting->second)) started_.push_back(*waiting);
        ++waiting;
      } else {
        break;
      }
    }
    for (const auto& job : started_) waiting_.erase(job);
    for (const auto& job : running_) {
      if (!ranking_.got(job.second)) waiting_.insert(job);
    }
    Decision decision;
    ranking_.end(decision);
    return decision;
  }

 private:
  using Remaining = std::pair<double, int>;  // seconds, job

  Ranking ranking_;
  std::set<Remaining> waiting_;
  std::vector<Remaining> running_;  // kept for their memory
  std::vector<Remaining> started_;
};

}  // namespace

std::unique_ptr<Policy> make_srtf(const PolicyOptions& options) {
  return std::make_unique<Srtf>(options);
}

}  // namespace motley::schedule
