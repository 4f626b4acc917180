// What of a policy's decision is carried out among jobs that really run: all, but of those whose workers changed a
// short while ago nothing. The controller does this, and a forecast of what it will do.
#pragma once

#include <functional>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// The changes that are carried out, those that change nothing left out: a job stays as it is before the time (seconds,
// of the state's clock; infinite: for ever) until which it is held, and what then has no room keeps what it had, or
// waits, for the next decision. That is when the policy wants it, or once a job is not held any more that was to
// change.
Decision take_over(const State& state, Decision decision, const std::function<double(int job)>& held_until);

}  // namespace motley::scheduling
