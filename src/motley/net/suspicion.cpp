#include "motley/net/suspicion.h"

namespace motley::net {
namespace {

constexpr double kGraceSeconds = 0.2;        // rank 0 waits for a better explanation
constexpr double kOthersGraceSeconds = 0.8;  // the others wait for rank 0's verdict

// Follows from something else that went wrong, or may: to be held back for a moment.
bool may_be_consequence(const AbortMessage& report) {
  return report.error.rank != report.reporter || report.error.code == ErrorCode::kPeerLost ||
         report.error.code == ErrorCode::kTimeout;
}

}  // namespace

std::optional<AbortMessage> Suspicion::consider(AbortMessage report, bool seen_directly, double now) {
  if (!may_be_consequence(report)) return in_own_words(std::move(report));
  if (!report_) {
    settle_at_ = now + (rank_ == 0 ? kGraceSeconds : kOthersGraceSeconds);
  } else if (!seen_directly || seen_directly_) {
    return {};
  }
  report_ = std::move(report);
  seen_directly_ = seen_directly;
  return {};
}

std::optional<AbortMessage> Suspicion::find_verdict(double now) const {
  if (!report_ || now < settle_at_) return {};
  return in_own_words(*report_);
}

AbortMessage Suspicion::in_own_words(AbortMessage report) const {
  if (report.error.rank == report.reporter) {
    report.error.message = fmt::format("rank {} failed: {}", report.reporter, report.error.message);
  } else if (report.reporter != rank_) {
    report.error.message = fmt::format("{} (seen by rank {})", report.error.message, report.reporter);
  }
  return report;
}

}  // namespace motley::net
