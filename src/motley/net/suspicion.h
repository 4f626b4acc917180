// Which failure is told, when several are seen at once? A rank's own word about what went wrong with it settles the
// matter at once. Anything else (a closed connection, silence, a report about another rank) may be a consequence of
// what is still on its way, and becomes the verdict only after a short grace. Rank 0 decides for all; the others wait a
// little longer than it does, so that all ranks name the same cause.
#pragma once

#include <limits>
#include <optional>

#include "motley/net/messages.h"

namespace motley::net {

// What a rank suspects until it is settled. Verdicts are in its own words.
class Suspicion {
 public:
  explicit Suspicion(int rank) : rank_(rank) {}

  // The verdict, where the report settles the matter; else it is held back, or dropped for what is suspected already.
  // `seen_directly`: a control connection told us, not another rank. `now`: monotonic seconds.
  std::optional<AbortMessage> consider(AbortMessage report, bool seen_directly, double now);
  // The verdict, once nothing better has come by `now`.
  std::optional<AbortMessage> find_verdict(double now) const;
  double settle_at() const { return settle_at_; }  // infinite where nothing is suspected
  void clear() { *this = Suspicion(rank_); }

 private:
  AbortMessage in_own_words(AbortMessage report) const;

  int rank_;
  std::optional<AbortMessage> report_;
  bool seen_directly_ = false;
  double settle_at_ = std::numeric_limits<double>::infinity();
};

}  // namespace motley::net
