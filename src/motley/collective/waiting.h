// What every wait of this room asks now and then, and how it names those it waits for.
#pragma once

#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::collective {

// "rank 2 (step 12, backward, 3.2 s ago) and rank 3 (...)", of ranks that are waited for.
std::string describe_ranks(const net::Session& session, const std::vector<int>& ranks);

// A connection broke with `error`. Its other end may have given up because a third rank was lost; the session knows
// then, or within a second. Returns the session's error if there is one, else `error`.
Error cause_of(const net::Session& session, const Error& error);

// An error if a rank is lost, or if the deadline has passed; `operation` ("all_gather, operation 17") says what was
// being done, and `missing()` returns the ranks that it waits for.
template <class Missing>
Status check_wait(const net::Session& session, const Deadline& deadline, const std::string& operation,
                  const Missing& missing) {
  if (const Status health = session.health(); !health) return fail(health.error().within(operation));
  if (!deadline.passed()) return {};
  const std::vector<int> ranks = missing();
  return fail(
      Error{ErrorCode::kTimeout,
            fmt::format("{}: waited {:.3g} s for {}", operation, deadline.allowed(), describe_ranks(session, ranks)),
            ranks.empty() ? -1 : session.job_rank(ranks.front())});
}

}  // namespace motley::collective
