// Words for waits.
#include "motley/collective/waiting.h"

#include <chrono>
#include <thread>

namespace motley::collective {

std::string describe_ranks(const net::Session& session, const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) {
    const std::string heard = session.last_heard(rank);
    text += fmt::format("{}rank {}{}", text.empty() ? "" : ", ", session.job_rank(rank),
                        heard.empty() ? "" : fmt::format(" (last heard: {})", heard));
  }
  return text.empty() ? "this rank" : text;
}

Error cause_of(const net::Session& session, const Error& error) {
  if (error.code != ErrorCode::kPeerLost) return error;
  const Deadline deadline = Deadline::after(1);
  while (session.health() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Status health = session.health();
  return health ? error : health.error();
}

}  // namespace motley::collective
