// Gavel (Narayanan et al., OSDI 2020): a linear program says which share X of the time each job should run with the
// workers that it asks for,
//
//     sum of workers_m X_m <= devices,    0 <= X_m <= 1,
//
// and rounds follow it: in each, those go first whose share is largest beside what they have had of their time so far.
// Its heterogeneity-aware max-min policy maximises the least workers_m X_m, and, with the completion objective, its
// max-sum policy the sum of throughputs. What its program leaves free is given by the same order.
#include <algorithm>

#include "motley/schedule/active_jobs.h"
#include "motley/schedule/policies.h"
#include "motley/schedule/program.h"
#include "motley/schedule/ranking.h"
#include "motley/schedule/speed.h"

namespace motley::schedule {
namespace {

constexpr double kFilling = 1e-3;  // what the sum of shares counts beside the least, so that nothing stays free

class Gavel final : public Policy {
 public:
  explicit Gavel(const PolicyOptions& options)
      : objective_(options.objective), ranking_(options.packing), slots_(options.slot_seconds) {}

  std::string name() const override { return "gavel"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    Decision decision;
    if (slots_.begins(state.now) && !active_.jobs().empty()) {
      MOTLEY_ASSIGN(const std::vector<double> shares,
                    objective_ == Objective::kCompletion ? max_sum(state) : max_min(state));
      order_.clear();
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const int number = active_.jobs()[i];
        const double age = std::max(slots_.seconds(), state.now - state.job(number).arrival);
        const double had = (state.run_seconds(number) + slots_.seconds()) / (age + slots_.seconds());
        order_.emplace_back(-shares[i] / had, number);
      }
      std::ranges::sort(order_);
      ranking_.begin(state);
      for (const auto& [rank, number] : order_) {
        if (ranking_.is_full()) break;
        ranking_.offer(number);
      }
      ranking_.end(decision);
    }
    if (!active_.jobs().empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  Result<std::vector<double>> max_min(const State& state) const {
    Program program;
    const int least = program.add_variable(1, 0, Program::kUnlimited);
    Program::Terms devices;
    for (const int number : active_.jobs()) {
      const double workers = state.job(number).workers;
      const int share = program.add_variable(kFilling * workers / state.machines->devices(), 0, 1);
      devices.emplace_back(share, workers);
      program.add_limit({{share, workers}, {least, -1}}, 0, Program::kUnlimited);
    }
    program.add_limit(devices, 0, state.machines->devices());
    return shares_in(program, devices);
  }

  Result<std::vector<double>> max_sum(const State& state) const {
    Program program;
    Program::Terms devices;
    for (const int number : active_.jobs()) {
      const Job& job = state.job(number);
      const double iteration =
          job.elastic ? iteration_seconds(*job.elastic, state.machines->network, {job.workers}) : 1;
      devices.emplace_back(program.add_variable(job.workers / iteration, 0, 1), job.workers);
    }
    program.add_limit(devices, 0, state.machines->devices());
    return shares_in(program, devices);
  }

  static Result<std::vector<double>> shares_in(const Program& program, const Program::Terms& jobs) {
    MOTLEY_ASSIGN(const Program::Answer answer, program.maximise());
    std::vector<double> shares;
    for (const auto& [share, workers] : jobs) shares.push_back(answer.values[static_cast<std::size_t>(share)]);
    return shares;
  }

  const Objective objective_;
  Ranking ranking_;
  ActiveJobs active_;
  Slots slots_;
  std::vector<std::pair<double, int>> order_;  // kept for its memory
};

}  // namespace

std::unique_ptr<Policy> make_gavel(const PolicyOptions& options) {
  return std::make_unique<Gavel>(options);
}

}  // namespace motley::schedule
