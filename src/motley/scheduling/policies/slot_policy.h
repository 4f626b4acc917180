// Policies that decide by slots: anew at every multiple of some seconds, as long as there are jobs.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "motley/scheduling/policies/active_jobs.h"

namespace motley::scheduling {

// The times at which slots begin.
class Slots {
 public:
  explicit Slots(double seconds) : seconds_(seconds) {}

  double seconds() const { return seconds_; }
  // Whether a slot has begun since the last call.
  bool begins(double now) {
    if (now < next_) return false;
    next_ = (std::floor(now / seconds_) + 1) * seconds_;
    return true;
  }
  double next() const { return next_; }  // when the next one begins

 private:
  double seconds_;
  double next_ = 0;
};

class SlotPolicy : public Policy {
 public:
  std::string name() const final { return name_; }

  Result<Decision> decide(const State& state) final {
    MOTLEY_TRY(take_in(state));
    active_.update(state);
    const bool begins = slots_.begins(state.now);
    Decision decision;
    if (active_.jobs().empty()) return decision;
    MOTLEY_ASSIGN(decision.changes, begins ? begin_slot(state) : go_on(state));
    decision.wake = slots_.next();
    return decision;
  }

 protected:
  SlotPolicy(std::string name, const PolicyOptions& options)
      : options_(options), slots_(options.slot_seconds), name_(std::move(name)) {}

  // Sees every state, before anything is decided.
  virtual Status take_in(const State&) { return {}; }
  // What changes where a slot begins, and within one; there are jobs.
  virtual Result<std::vector<Change>> begin_slot(const State& state) = 0;
  virtual Result<std::vector<Change>> go_on(const State&) { return std::vector<Change>(); }

  const PolicyOptions options_;
  ActiveJobs active_;
  Slots slots_;

 private:
  const std::string name_;
};

}  // namespace motley::scheduling
